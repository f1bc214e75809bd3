"""The values of an expression, and how RocketMQ compares two of them (ComparisonExpression.__compare)."""

from __future__ import annotations

from typing import TypeAlias

from checkback.filter.numbers import Whole, double, order_key, whole

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
