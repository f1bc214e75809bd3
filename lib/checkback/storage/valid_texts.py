"""Text that is UTF-8. Parquet, Arrow and Spark pass on what another writer has stored; Python and DuckDB refuse it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Iterable


#: the error of an attempt of a check, in `check_answers`, that a circuit breaker prevented
NOT_TRIED = "not tried: "
#: the error of a check that cannot be sent: another writer's half message
NOT_UTF8 = "not asked: its transaction id, group or topic is not UTF-8"
#: shown in place of NOT_TRIED's errors, which differ with each check
BREAKER_OPEN = f"{NOT_TRIED}breaker open"
#: the error of a check, SKIPPED, that was requested again before its outcome was read
OVERTAKEN = "overtaken by the outcome of the same check"
#: the reason of a dead letter's RESUME_DEAD_LETTER, in `operations`: this, the consumer group, and `CONSUMER_GROUP_END`
CONSUMER_GROUP, CONSUMER_GROUP_END = "consumer group ", ": "


def tried_error(errors: Iterable[str | None]) -> str | None:
    """The first error of a check's attempts that was made; None = all were prevented, or there is none."""
    return next((error for error in errors if error is not None and not error.startswith(NOT_TRIED)), None)


def python_values(rows: pa.Table) -> pa.Table:
    """The rows as Python can hold them, which `to_pylist` needs: `python_times`, and `valid_texts`."""
    return python_times(valid_texts(rows))


def valid_texts(rows: pa.Table) -> pa.Table:
    """The rows with replacement characters for text that is not UTF-8, as Spark shows it."""
    for place, field in enumerate(rows.schema):
        column = rows.column(place)
        if not all(map(is_valid, column.chunks)):
            chunks = [chunk if is_valid(chunk) else _replaced(chunk) for chunk in column.chunks]
            rows = rows.set_column(place, field, pa.chunked_array(chunks, field.type))
    return rows


def is_valid(values: pa.Array) -> bool:
    """Whether all text in them is UTF-8."""
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _replaced(values: Any) -> Any:
    kind = values.type
    if pa.types.is_dictionary(kind):
        return _replaced(values.dictionary_decode()).dictionary_encode().cast(kind)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        raw = values.cast(pa.large_binary()).to_pylist()
        return pa.array([None if each is None else each.decode("utf-8", "replace") for each in raw], kind)
    if pa.types.is_struct(kind):
        fields = [kind.field(place) for place in range(kind.num_fields)]
        children = [_replaced(values.field(place)) for place in range(kind.num_fields)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=values.is_null())
    if pa.types.is_map(kind):
        pairs = pa.StructArray.from_arrays(
            [_replaced(values.keys), _replaced(values.items)], fields=[kind.key_field, kind.item_field]
        )
        return _with_children(values, pairs)
    if pa.types.is_list(kind):
        return _with_children(values, _replaced(values.values))
    return values


def _with_children(values: Any, children: Any) -> Any:
    buffers = values.buffers()[:2]
    return pa.Array.from_buffers(values.type, len(values), buffers, offset=values.offset, children=[children])
