"""A filter as an expression of Arrow: for ``pa.Table.filter`` and for reading a dataset.

Numbers are compared by functions that are registered in this process (`arrow_numbers`), so such an expression cannot be
sent to another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checkback.filter.arrow_numbers import function
from checkback.filter.columns import source
from checkback.filter.expressions import Order, Search
from checkback.filter.numbers import NumberType, Whole, constant_key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COMPARE: dict[Order, Callable[[Any, Any], Any]] = {
    Order.GREATER: pc.greater,
    Order.GREATER_EQUAL: pc.greater_equal,
    Order.LESS: pc.less,
    Order.LESS_EQUAL: pc.less_equal,
}
_FIND: dict[Search, Callable[..., Any]] = {
    Search.CONTAINS: pc.match_substring,
    Search.STARTS_WITH: pc.starts_with,
    Search.ENDS_WITH: pc.ends_with,
}


class ExpressionColumns:
    """`Columns` as pc.Expression."""

    shares = False

    def literal(self, value: bool) -> Any:
        return pc.scalar(value)

    def first(self, cases: Sequence[tuple[Any, bool]], default: bool) -> Any:
        # Not case_when: nested, it ends the process (pyarrow 26). No condition is ever null.
        result = pc.scalar(default)
        for condition, says in reversed(cases):
            result = condition | result if says else ~condition & result
        return result

    def present(self, name: str) -> Any:
        return _text(name).is_valid()

    def equals(self, name: str, text: str) -> Any:
        return self._known(name, _text(name) == text)

    def same(self, name: str, other: str) -> Any:
        return _sure(_text(name) == _text(other))

    def one_of(self, name: str, texts: Sequence[str]) -> Any:
        return _text(name).isin(pa.array(texts, pa.string()))

    def finds(self, name: str, search: Search, part: str) -> Any:
        return self._known(name, _FIND[search](_text(name), part))

    def is_true(self, name: str) -> Any:
        return self._known(name, pc.equal(pc.ascii_lower(_text(name)), "true"))

    def is_number(self, name: str, number_type: NumberType) -> Any:
        return _number(name, number_type).is_valid()

    def number_equals(self, name: str, number: Whole | float) -> Any:
        return _sure(_number(name, NumberType.of(number)) == constant_key(number))

    def number_compares(self, name: str, order: Order, number: Whole | float) -> Any:
        return _sure(_COMPARE[order](_number(name, NumberType.of(number)), constant_key(number)))

    def doubles_compare(self, name: str, order: Order, other: str) -> Any:
        return _sure(_COMPARE[order](_number(name, NumberType.DOUBLE), _number(other, NumberType.DOUBLE)))

    def _known(self, name: str, condition: Any) -> Any:
        """Never null. Of a column, by a form that a reader of Parquet can compare with statistics."""
        return _text(name).is_valid() & condition if source(name).key is None else _sure(condition)


def _text(name: str) -> Any:
    column, key = source(name)
    return pc.field(column) if key is None else pc.map_lookup(pc.field(column), pa.scalar(key), "first")


def _number(name: str, number_type: NumberType) -> Any:
    return pc.Expression._call(function(number_type), [_text(name)])


def _sure(condition: Any) -> Any:
    return pc.coalesce(condition, pc.scalar(False))
