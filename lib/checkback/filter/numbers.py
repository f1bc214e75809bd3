"""Numbers as Java reads them from a property's text (Integer.valueOf, Double.compare), and how two values compare.

RocketMQ's ComparisonExpression converts a property to the type of the constant that it is compared with.
"""

from __future__ import annotations

import math
import re
import struct
import unicodedata
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

INT_BITS, LONG_BITS = 32, 64


@dataclass(frozen=True)
class Whole:
    """A Java Integer (32 bits) or Long (64 bits). Which one decides what a property may be."""

    value: int
    bits: int

    @classmethod
    def of(cls, value: int) -> Whole:
        """An Integer if the value fits, or else a Long (ConstantExpression.createFromDecimal)."""
        return cls(value, INT_BITS if fits(value, INT_BITS) else LONG_BITS)


class NumberType(Enum):
    """The Java type that a property is converted to."""

    INTEGER = "int32"
    LONG = "int64"
    DOUBLE = "double"

    @classmethod
    def of(cls, number: Whole | float) -> NumberType:
        """The type of a constant."""
        if isinstance(number, float):
            return cls.DOUBLE
        return cls.INTEGER if number.bits == INT_BITS else cls.LONG

    @property
    def bits(self) -> int:
        """Size of a whole number."""
        return INT_BITS if self is NumberType.INTEGER else LONG_BITS


#: Unicode's decimal digits outside ASCII, and their values in ASCII. Character.digit(char) takes these, but none beyond
#: the basic plane, which are two chars in Java.
DIGITS = "".join(chr(code) for code in range(128, 0x10000) if unicodedata.category(chr(code)) == "Nd")
DIGIT_VALUES = "".join(str(unicodedata.decimal(char)) for char in DIGITS)
_TO_ASCII = str.maketrans(DIGITS, DIGIT_VALUES)

_WHOLE = re.compile(r"([+-]?)([0-9]+)")
_LONG_DIGITS = 19

_HEX = r"0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+"
# Each digit can be matched in one way only: a hostile text of many digits takes linear time.
_DECIMAL = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
#: What Double.valueOf takes (its documentation has the grammar); String.trim cuts all up to the space.
DOUBLE_PATTERN = rf"[\x00-\x20]*[+-]?(?:NaN|Infinity|(?:{_DECIMAL}|{_HEX})[fFdD]?)[\x00-\x20]*"
_DOUBLE = re.compile(DOUBLE_PATTERN)
_TRIMMED = "".join(map(chr, range(0x21)))


def fits(value: int, bits: int) -> bool:
    """True if a signed integer of that size can hold the value."""
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def whole(text: str, bits: int) -> int | None:
    """Integer.valueOf (32 bits) or Long.valueOf (64); None where they throw: spaces, ``5L``, ``7.0``, too large."""
    match = _WHOLE.fullmatch(text if text.isascii() else text.translate(_TO_ASCII))
    if match is None:
        return None
    sign, digits = match.groups()
    digits = digits.lstrip("0") or "0"
    if len(digits) > _LONG_DIGITS:
        return None
    value = int(sign + digits)
    return value if fits(value, bits) else None


def double(text: str) -> float | None:
    """Double.valueOf; None where it throws."""
    if _DOUBLE.fullmatch(text) is None:
        return None
    text = text.strip(_TRIMMED)
    if "x" in text or "X" in text:
        return _hexadecimal(text.rstrip("fFdD"))
    if text.endswith(("NaN", "Infinity")):
        return float(text)
    return float(text.rstrip("fFdD"))


def _hexadecimal(text: str) -> float:
    try:
        return float.fromhex(text)
    except OverflowError:
        return -math.inf if text.startswith("-") else math.inf


def order_key(value: float) -> int:
    """A signed 64-bit integer that orders doubles as Double.compare: -0.0 before 0.0, NaN above all, equal to NaN."""
    bits: int = struct.unpack("<q", struct.pack("<d", math.nan if math.isnan(value) else value))[0]
    return bits if bits >= 0 else bits ^ 0x7FFF_FFFF_FFFF_FFFF


def key(text: str, number_type: NumberType) -> int | None:
    """The text's number as an integer that compares as the number does; None if it is none."""
    if number_type is not NumberType.DOUBLE:
        return whole(text, number_type.bits)
    value = double(text)
    return None if value is None else order_key(value)


def constant_key(number: Whole | float) -> int:
    """As `key`, of a constant."""
    return order_key(number) if isinstance(number, float) else number.value


#: String, Boolean, Double, Integer or Long; None: null, unknown.
Value: TypeAlias = "str | bool | float | Whole | None"


class EvaluationError(Exception):
    """RocketMQ throws while it evaluates: the message is not delivered."""


def is_true(text: str) -> bool:
    """Boolean.valueOf."""
    return text.lower() == "true"


def compare(left: str | bool | float | Whole, right: str | bool | float | Whole) -> int:
    """Below, at or above 0, as in Java; types that do not compare are -1.

    Raises EvaluationError where the text of a number is none. A Boolean on the left of a String is always an error:
    RocketMQ casts the wrong one of the two.
    """
    if isinstance(left, bool):
        if isinstance(right, str):
            raise EvaluationError("a Boolean cannot be cast to a String")
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, bool):
        return is_true(left) - right if isinstance(left, str) else -1
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        return _compare_numbers(_number(left, right), right)
    return _compare_numbers(left, _number(right, left) if isinstance(right, str) else right)


def compare_as_doubles(left: str, right: str) -> int:
    """How ``>``, ``>=``, ``<`` and ``<=`` compare two properties. Raises EvaluationError."""
    one, other = double(left), double(right)
    if one is None or other is None:
        raise EvaluationError("not a number")
    return _compare_numbers(one, other)


def _number(text: str, like: float | Whole) -> float | Whole:
    value = whole(text, like.bits) if isinstance(like, Whole) else double(text)
    if value is None:
        raise EvaluationError("not a number")
    return Whole(value, like.bits) if isinstance(like, Whole) and isinstance(value, int) else value


def _compare_numbers(left: float | Whole, right: float | Whole) -> int:
    if isinstance(left, Whole) and isinstance(right, Whole):
        one, other = left.value, right.value
    else:
        one, other = (order_key(float(x.value) if isinstance(x, Whole) else x) for x in (left, right))
    return (one > other) - (one < other)
