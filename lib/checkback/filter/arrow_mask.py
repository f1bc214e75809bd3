"""A filter over a table in memory: a mask of booleans, by Arrow's kernels and NumPy.

A property is looked up once in a batch, for all of its conditions. Of a name that is twice in a map the first counts,
as in Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.filter.expressions import Order, Search, source
from checkback.filter.numbers import NumberType, Whole, constant_key, key

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_COMPARE: dict[Order, Callable[[Any, Any], Mask]] = {
    Order.GREATER: np.greater,
    Order.GREATER_EQUAL: np.greater_equal,
    Order.LESS: np.less,
    Order.LESS_EQUAL: np.less_equal,
}
_FIND: dict[Search, Callable[..., Any]] = {
    Search.CONTAINS: pc.match_substring,
    Search.STARTS_WITH: pc.starts_with,
    Search.ENDS_WITH: pc.ends_with,
}

#: As many digits as an Integer has for sure, and no plus, which Arrow does not take.
_PLAIN_WHOLE = r"\A-?[0-9]{1,9}\z"
_PLAIN_DOUBLE = r"\A-?[0-9]{1,17}(?:\.[0-9]{1,17})?\z"


class BatchColumns:
    """`Columns` of one record batch; each value is an array of booleans, a row each."""

    shares = True

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._lookup: _Lookup | None = None
        self._texts: dict[str, Any] = {}
        self._numbers: dict[tuple[str, NumberType], tuple[Mask, NDArray[np.int64]]] = {}

    def literal(self, value: bool) -> Mask:
        return np.full(self._batch.num_rows, value)

    def first(self, cases: Sequence[tuple[Mask, bool]], default: bool) -> Mask:
        result = self.literal(default)
        for condition, says in reversed(cases):
            result[condition] = says
        return result

    def present(self, name: str) -> Mask:
        return _mask(pc.is_valid(self._text(name)))

    def equals(self, name: str, text: str) -> Mask:
        return _mask(pc.equal(self._text(name), text))

    def same(self, name: str, other: str) -> Mask:
        return _mask(pc.equal(self._text(name), self._text(other)))

    def one_of(self, name: str, texts: Sequence[str]) -> Mask:
        return _mask(pc.is_in(self._text(name), value_set=pa.array(texts, pa.string())))

    def finds(self, name: str, search: Search, part: str) -> Mask:
        return _mask(_FIND[search](self._text(name), part))

    def is_true(self, name: str) -> Mask:
        return _mask(pc.equal(pc.ascii_lower(self._text(name)), "true"))

    def is_number(self, name: str, number_type: NumberType) -> Mask:
        return self._number(name, number_type)[0]

    def number_equals(self, name: str, number: Whole | float) -> Mask:
        valid, values = self._number(name, NumberType.of(number))
        return _both(valid, values == constant_key(number))

    def number_compares(self, name: str, order: Order, number: Whole | float) -> Mask:
        valid, values = self._number(name, NumberType.of(number))
        return _both(valid, _COMPARE[order](values, constant_key(number)))

    def doubles_compare(self, name: str, order: Order, other: str) -> Mask:
        (valid, left), (also, right) = (self._number(side, NumberType.DOUBLE) for side in (name, other))
        return _both(valid, _both(also, _COMPARE[order](left, right)))

    def _text(self, name: str) -> Any:
        if name not in self._texts:
            column, key = source(name)
            if key is None:
                texts = self._batch.column(column)
                self._texts[name] = texts if texts.type == pa.string() else texts.cast(pa.string())
            else:
                self._lookup = self._lookup or _Lookup(self._batch.column(column))
                self._texts[name] = self._lookup.texts(key)
        return self._texts[name]

    def _number(self, name: str, number_type: NumberType) -> tuple[Mask, NDArray[np.int64]]:
        if (name, number_type) not in self._numbers:
            numbers = _keys(self._text(name), number_type)
            valid = _mask(pc.is_valid(numbers))
            self._numbers[name, number_type] = valid, pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
        return self._numbers[name, number_type]


class _Lookup:
    """A column of maps. Looking a name up in its flat keys takes a quarter of the time of Arrow's map_lookup."""

    def __init__(self, maps: Any) -> None:
        self._rows = len(maps)
        offsets = maps.offsets.to_numpy()
        first, last = int(offsets[0]), int(offsets[-1])
        self._offsets = offsets - first
        self._keys = maps.keys.slice(first, last - first)
        items = maps.items.slice(first, last - first)
        self._items = items if items.type == pa.string() else items.cast(pa.string())
        self._null = _mask(pc.is_null(maps)) if maps.null_count else None

    def texts(self, name: str) -> Any:
        hits = np.flatnonzero(_mask(pc.equal(self._keys, pa.scalar(name, self._keys.type))))
        rows = np.searchsorted(self._offsets, hits, side="right") - 1
        # Backwards, so that of several in one map the first is written last.
        where = np.full(self._rows, -1, dtype=np.int64)
        where[rows[::-1]] = hits[::-1]
        if self._null is not None:
            where[self._null] = -1
        return self._items.take(pa.array(where, mask=where < 0))


def _keys(texts: Any, number_type: NumberType) -> Any:
    """Numbers as Java reads them: int64 that compare alike (`numbers.key`), null = none. ``texts``: a pa.StringArray.

    Plain numbers are converted by Arrow's kernels; of the rest each distinct text once, by `numbers.key`.
    """
    is_double = number_type is NumberType.DOUBLE
    plain = pc.fill_null(pc.match_substring_regex(texts, _PLAIN_DOUBLE if is_double else _PLAIN_WHOLE), False)
    numbers = pc.cast(pc.if_else(plain, texts, None), pa.float64() if is_double else pa.int64())
    if is_double:
        numbers = _order_keys(numbers)
    odd = pc.and_(pc.is_valid(texts), pc.invert(plain))
    if not pc.any(odd, min_count=0).as_py():
        return numbers
    return pc.if_else(odd, _each(pc.if_else(odd, texts, None), number_type), numbers)


def _order_keys(doubles: Any) -> Any:
    """`numbers.order_key` of each; none is NaN."""
    bits = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False).view(np.int64)
    ordered = np.where(bits >= 0, bits, bits ^ np.int64(0x7FFF_FFFF_FFFF_FFFF))
    return pc.if_else(pc.is_valid(doubles), pa.array(ordered), None)


def _each(texts: Any, number_type: NumberType) -> Any:
    encoded = pc.dictionary_encode(texts)
    judged = [None if text is None else key(text, number_type) for text in encoded.dictionary.to_pylist()]
    return pa.array(judged, pa.int64()).take(encoded.indices)


def _both(one: Mask, other: Mask) -> Mask:
    return np.logical_and(one, other)


def _mask(condition: Any) -> Mask:
    if condition.null_count:
        condition = pc.fill_null(condition, False)
    mask: Mask = condition.to_numpy(zero_copy_only=False)
    return mask
