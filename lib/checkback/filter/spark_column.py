"""A filter as a Column of Spark, of Spark's own functions: no Python runs in the executors.

Spark casts a text to a double by Java's own Double.parseDouble, after a check that Double.valueOf takes it.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column
from pyspark.sql import functions as F

from checkback.filter.expressions import Order, Search, source
from checkback.filter.numbers import DIGIT_VALUES, DIGITS, DOUBLE_PATTERN, INT_BITS, NumberType, Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMPARE: dict[Order, Callable[[Any, Any], Any]] = {
    Order.GREATER: lambda left, right: left > right,
    Order.GREATER_EQUAL: lambda left, right: left >= right,
    Order.LESS: lambda left, right: left < right,
    Order.LESS_EQUAL: lambda left, right: left <= right,
}
_FIND: dict[Search, Callable[[Column, Any], Column]] = {
    Search.CONTAINS: F.contains,
    Search.STARTS_WITH: F.startswith,
    Search.ENDS_WITH: F.endswith,
}
_ASCII = r"\A[+-]?[0-9]{1,18}\z"
_WHOLE = r"\A[+-]?\p{Nd}+\z"
_MINUS = r"\A[\x00-\x20]*-"
_DOUBLE = rf"\A{DOUBLE_PATTERN}\z"


class SparkColumns:
    """`Columns` as Column."""

    shares = False

    def literal(self, value: bool) -> Column:
        return F.lit(value)

    def first(self, cases: Sequence[tuple[Column, bool]], default: bool) -> Column:
        (condition, says), *others = cases
        start = F.when(condition, says)
        return reduce(lambda chain, case: chain.when(*case), others, start).otherwise(default)

    def present(self, name: str) -> Column:
        return _text(name).isNotNull()

    def equals(self, name: str, text: str) -> Column:
        return self.present(name) & (_text(name) == F.lit(text))

    def same(self, name: str, other: str) -> Column:
        return self.present(name) & self.present(other) & (_text(name) == _text(other))

    def one_of(self, name: str, texts: Sequence[str]) -> Column:
        return self.present(name) & _text(name).isin(list(texts))

    def finds(self, name: str, search: Search, part: str) -> Column:
        return self.present(name) & _FIND[search](_text(name), F.lit(part))

    def is_true(self, name: str) -> Column:
        return self.present(name) & (F.lower(_text(name)) == F.lit("true"))

    def is_number(self, name: str, number_type: NumberType) -> Column:
        return _number(name, number_type).isNotNull()

    def number_equals(self, name: str, number: Whole | float) -> Column:
        return _sure(_number(name, NumberType.of(number)) == _constant(number))

    def number_compares(self, name: str, order: Order, number: Whole | float) -> Column:
        return _sure(_COMPARE[order](_number(name, NumberType.of(number)), _constant(number)))

    def doubles_compare(self, name: str, order: Order, other: str) -> Column:
        both = self.is_number(name, NumberType.DOUBLE) & self.is_number(other, NumberType.DOUBLE)
        return both & _sure(_COMPARE[order](_signed(name), _signed(other)))


def _text(name: str) -> Column:
    column, key = source(name)
    return F.col(column) if key is None else F.col(column)[key]


def _number(name: str, number_type: NumberType) -> Column:
    """The number, null for what is none."""
    text = _text(name)
    if number_type is NumberType.DOUBLE:
        return F.when(text.rlike(_DOUBLE), text.try_cast("double"))
    digits = F.translate(text, DIGITS, DIGIT_VALUES)
    number = F.when(text.rlike(_ASCII), text.try_cast("long")).when(text.rlike(_WHOLE), digits.try_cast("long"))
    if number_type.bits == INT_BITS:
        low, high = -(1 << (INT_BITS - 1)), (1 << (INT_BITS - 1)) - 1
        number = F.when(number.between(low, high), number)
    return number


def _signed(name: str) -> Column:
    """A double that orders as Double.compare: Spark's order has NaN above all as well, but -0.0 and 0.0 as equal."""
    number = _number(name, NumberType.DOUBLE)
    negative_zero = (number == 0) & _text(name).rlike(_MINUS)
    return F.struct(number, ~negative_zero)


def _constant(number: Whole | float) -> Column:
    return F.lit(number) if isinstance(number, float) else F.lit(number.value).cast("long")


def _sure(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))
