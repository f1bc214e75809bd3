"""Decodes Arrow request bodies, by column: half messages and ops, with the same result as `json_decoder`.

Rows that are clearly valid are validated and kept as columns. Any other row is decoded by the rules of `messages`, as
a JSON object with its values; a null is a missing member. A property test keeps both consistent.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.gateway.problems import Problem
from checkback.gateway.requests import json_decoder, op_blocks
from checkback.gateway.requests.arrow_stream import UnreadableError, read_columns
from checkback.gateway.requests.batch_decoder import PARSED, REMARK_MAX
from checkback.gateway.requests.half_blocks import ASSIGNED, SENT
from checkback.gateway.tables import half_rows
from checkback.messages.half import SHARDING_KEY, Half
from checkback.messages.limits import (
    BODY_MAX,
    INT_MAX,
    LONG_MAX,
    MS_MAX,
    ORDERING_KEY_MAX,
    PROPERTIES_MAX,
    QUEUES,
    TRANSACTION_ID_MAX,
)
from checkback.messages.names import is_group, is_topic
from checkback.messages.op import STATES, Op

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from checkback.gateway.requests.arrow_stream import Kind
    from checkback.gateway.requests.batch_decoder import RemarkedOp

    Mask = NDArray[np.bool_]
    Columns = dict[str, pa.Array]

HALF: dict[str, Kind] = {
    "transaction_id": "text",
    "producer_group": "text",
    "real_topic": "text",
    "real_queue_id": "integer",
    "ordering_key": "text",
    "tags": "text",
    "keys": "text",
    "properties": "properties",
    "body": "bytes",
    "born_timestamp": "time",
    "check_immunity_s": "integer",
    "delay_ms": "integer",
    "deliver_at": "time",
    "delay": "delay",
    "delay_level": "integer",
}
OP: dict[str, Kind] = {
    "queue_id": "integer",
    "half_offset": "integer",
    "transaction_id": "text",
    "producer_group": "text",
    "state": "text",
    "remark": "text",
    "born_timestamp": "time",
}
#: bytes of tags, keys and properties, and properties of a message, that are far below the limit
_SMALL, _FEW = PROPERTIES_MAX // 4, PROPERTIES_MAX // 8
#: properties of a message that are over the limit however short they are: each takes two separators
_MANY = PROPERTIES_MAX // 2
_US = 1000
_NOTHING = np.zeros(1, np.int64)


@dataclass(frozen=True)
class HalfColumns:
    """The half messages of a request: ``rows`` of `half` without what the gateway assigns, and their ``numbers``.

    Numbers count the rows of the request, ascending; ``problems``: the other rows'; ``transaction_ids``: all rows'.
    ``size``: of the rows in bytes.
    """

    rows: pa.Table
    numbers: NDArray[np.int64]
    problems: dict[int, Problem]
    transaction_ids: pa.Array
    size: int


@dataclass(frozen=True)
class OpColumns:
    """The ops of a request: ``rows`` in the schema `op_blocks.SENT`, one for each row of the request.

    ``others``: by number, what is not simply valid, with any values in ``rows``. ``size``: of the rows in bytes.
    """

    rows: pa.Table
    others: dict[int, RemarkedOp | Problem]
    transaction_ids: pa.Array
    size: int

    def messages(self) -> list[RemarkedOp | Problem]:
        """The ops with their remarks, as `json_decoder` has them."""
        lists = [self.rows.column(name).to_pylist() for name in Op._fields[:-1]]
        born = np.asarray(self.rows.column("born_timestamp").cast(pa.int64())) // _US
        ops = map(Op, *lists, born.tolist())
        found: list[RemarkedOp | Problem] = list(zip(ops, self.rows.column("remark").to_pylist(), strict=True))
        for number, other in self.others.items():
            found[number] = other
        return found


def halves_of_stream(body: bytes, now: int, most: int, committed: bool | None = None) -> HalfColumns | Problem:
    """The half messages of a stream, each validated individually. ``now``, ``committed`` as in `json_decoder`.

    ``most``: limit of the decoded stream in bytes.
    """
    try:
        count, columns = read_columns(body, HALF, most)
        if "delay" in columns and "delay_ms" in columns:
            raise UnreadableError("unfit", "delay: delay_ms is there too, only one of them may be", "delay")  # noqa: TRY301
    except UnreadableError as error:
        return error.problem
    if "delay_ms" in columns:
        columns["delay"] = columns.pop("delay_ms")
    ids = _ids(columns, count)
    valid = _valid_halves(columns, count)
    rows, size = _detached(_half_rows(columns, count, now, committed), body)
    if valid.all():
        return HalfColumns(rows, np.arange(count), {}, ids, size)
    problems: dict[int, Problem] = {}
    others: dict[int, Half] = {}
    for number in np.flatnonzero(~valid).tolist():
        half = json_decoder.half(_half_fields(columns, number), now, committed)
        if isinstance(half, Problem):
            problems[number] = half
        else:
            others[number] = half
    rows, numbers = rows.filter(pa.array(valid)), np.flatnonzero(valid)
    if others:
        more = half_rows(list(others.values()), 0, 0, 0).drop_columns(list(ASSIGNED))
        numbers = np.concatenate([numbers, np.array(list(others))])
        order = np.argsort(numbers)
        rows, numbers = pa.concat_tables([rows, more]).take(pa.array(order)), numbers[order]
    return HalfColumns(rows, numbers, problems, ids, rows.nbytes)


def ops_of_stream(body: bytes, now: int, most: int) -> OpColumns | Problem:
    """The ops of a stream, each validated individually. ``now``, ``most`` as in `halves_of_stream`."""
    try:
        count, columns = read_columns(body, OP, most)
    except UnreadableError as error:
        return error.problem
    ids = _ids(columns, count)
    valid = _valid_ops(columns, count)
    rows, size = _detached(_op_rows(columns, count, now), body)
    others = {
        number: json_decoder.op(_fields(columns, number), now)
        for number in ([] if valid.all() else np.flatnonzero(~valid).tolist())
    }
    return OpColumns(rows, others, ids, size)


def _detached(rows: pa.Table, body: bytes) -> tuple[pa.Table, int]:
    """The rows and their bytes; copied if they would hold a much larger body."""
    size = int(rows.nbytes)
    return (rows.take(pa.array(np.arange(len(rows)))) if 2 * size < len(body) else rows), size


def _ids(columns: Columns, count: int) -> pa.Array:
    """The transaction ids, copied: the answer must not hold the body."""
    ids = columns.get("transaction_id")
    return pa.nulls(count, pa.string()) if ids is None else ids.take(pa.array(np.arange(count)))


def _valid_halves(columns: Columns, count: int) -> Mask:
    """Which rows are valid, simple half messages: without a delay, an immunity, or properties near their limit."""
    if any(name not in columns for name in ("transaction_id", "producer_group", "real_topic", "body")):
        return np.zeros(count, np.bool_)
    valid = (
        _identified(columns["transaction_id"])
        & _named(columns["producer_group"], is_group)
        & _named(columns["real_topic"], is_topic)
        & _long(columns["body"], 0, BODY_MAX)
    )
    for name in ("check_immunity_s", "delay", "delay_level", "deliver_at"):
        if name in columns:
            valid &= _true(columns[name].is_null())
    for name, most in (("real_queue_id", INT_MAX), ("born_timestamp", MS_MAX)):
        if name in columns:
            valid &= _within_or_null(columns[name], most)
    if "ordering_key" in columns:
        fit = _long(columns["ordering_key"], 1, ORDERING_KEY_MAX)
        if "real_queue_id" in columns:
            fit &= _true(columns["real_queue_id"].is_null())
        valid &= fit | _true(columns["ordering_key"].is_null())
    size = np.zeros(count, np.int64)
    for name in ("tags", "keys", "ordering_key"):
        if name in columns:
            size += _lengths(columns[name])
    if "properties" in columns:
        valid &= _simple(columns["properties"], size)
    return valid & (size <= _SMALL)


def _simple(properties: pa.MapArray, size: NDArray[np.int64]) -> Mask:
    """Which rows have few properties, none twice, null or parsed. Adds their bytes to ``size``."""
    offsets = np.asarray(properties.offsets)
    first, last, counts = int(offsets[0]), int(offsets[-1]), np.diff(offsets)
    if first == last:
        return np.ones(len(properties), np.bool_)
    keys, items = properties.keys[first:last], properties.items[first:last]
    total = np.concatenate([_NOTHING, np.cumsum(_lengths(keys) + _lengths(items), dtype=np.int64)])
    size += total[offsets[1:] - first] - total[offsets[:-1] - first]
    simple = counts <= _FEW
    if not simple.all():  # the names of the others may be a million
        few = pa.array(np.repeat(simple, counts))
        keys, items, counts = keys.filter(few), items.filter(few), np.where(simple, counts, 0)
    code = keys.dictionary_encode()
    names, codes = code.dictionary.to_pylist(), np.asarray(code.indices)
    if counts.max() <= 1 and not items.null_count and PARSED.isdisjoint(names):
        return simple
    row = np.repeat(np.arange(len(properties)), counts)
    bad = np.array([name in PARSED for name in names])[codes] | _true(items.is_null())
    _, firsts = np.unique(row * len(names) + codes, return_index=True)
    twice = np.ones(len(row), np.bool_)
    twice[firsts] = False
    simple[row[bad | twice]] = False
    return simple


def _valid_ops(columns: Columns, count: int) -> Mask:
    if any(name not in columns for name in list(OP)[:5]):
        return np.zeros(count, np.bool_)
    valid = (
        _within(columns["queue_id"], INT_MAX)
        & _within(columns["half_offset"], LONG_MAX)
        & _identified(columns["transaction_id"])
        & _named(columns["producer_group"], is_group)
        & _named(columns["state"], STATES.__contains__)
    )
    if "remark" in columns:
        valid &= _numbers(pc.utf8_length(columns["remark"])) <= REMARK_MAX
    if "born_timestamp" in columns:
        valid &= _within_or_null(columns["born_timestamp"], MS_MAX)
    return valid


def _half_rows(columns: Columns, count: int, now: int, committed: bool | None) -> pa.Table:
    """Rows of `half`, without what the gateway assigns. Those of invalid messages have any values."""
    made: dict[str, pa.Array] = {name: columns[name] for name in ("tags", "keys") if name in columns}
    for name in ("transaction_id", "producer_group", "real_topic", "body"):
        if name in columns:
            made[name] = columns[name]
    made["real_queue_id"] = pa.array(_real_queues(columns, count).astype(np.int32))
    made["born_timestamp"] = _born(columns, count, now)
    properties = columns["properties"] if "properties" in columns else _no_properties(count)
    made["properties"] = _keyed(properties, columns["ordering_key"]) if "ordering_key" in columns else properties
    if committed is not None:
        made["committed"] = pa.repeat(committed, count)
    return _in_schema(SENT, made, count)


def _real_queues(columns: Columns, count: int) -> NDArray[np.int64]:
    """The real_queue_id of each row: where none is stated `real_queue_of` the ordering key or the transaction id."""
    stated, keys = columns.get("real_queue_id"), columns.get("transaction_id")
    if stated is not None and not stated.null_count:
        return _numbers(stated)
    if keys is None:
        return np.zeros(count, np.int64)
    if "ordering_key" in columns:
        keys = pc.coalesce(columns["ordering_key"], keys)
    texts = pc.fill_null(keys.cast(pa.binary()), b"").to_pylist()
    found = np.fromiter(map(crc32, texts), np.int64, count) % QUEUES
    return found if stated is None else np.where(_true(stated.is_null()), found, _numbers(stated))


def _keyed(properties: pa.MapArray, ordering_keys: pa.Array) -> pa.MapArray:
    """The properties, to which that of the ordering key is added where there is one."""
    keyed = _true(ordering_keys.is_valid())
    offsets = np.asarray(properties.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    ends = np.cumsum(np.diff(offsets) + keyed, dtype=np.int32)
    added = ends[keyed] - 1
    entries = np.ones(last - first + len(added), np.bool_)
    entries[added] = False
    places = np.empty(len(entries), np.int64)
    places[entries], places[added] = np.arange(last - first), last - first + np.arange(len(added))
    names = pa.concat_arrays([properties.keys[first:last], pa.repeat(SHARDING_KEY, len(added))])
    texts = pa.concat_arrays([properties.items[first:last], ordering_keys.drop_null()])
    begins = np.concatenate([_NOTHING, ends]).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(begins), names.take(pa.array(places)), texts.take(pa.array(places)))


def _op_rows(columns: Columns, count: int, now: int) -> pa.Table:
    """Rows of `op`, without what the gateway assigns. Those of invalid ops have any values."""
    texts = ("transaction_id", "producer_group", "state", "remark")
    made: dict[str, pa.Array] = {name: columns[name] for name in texts if name in columns}
    if "queue_id" in columns:
        made["queue_id"] = pa.array(_numbers(columns["queue_id"]).astype(np.int32))
    if "half_offset" in columns:
        made["half_offset"] = pa.array(_numbers(columns["half_offset"]))
    made["born_timestamp"] = _born(columns, count, now)
    return _in_schema(op_blocks.SENT, made, count)


def _in_schema(schema: pa.Schema, made: dict[str, pa.Array], count: int) -> pa.Table:
    columns = (made[field.name] if field.name in made else pa.nulls(count, field.type) for field in schema)
    return pa.Table.from_arrays(list(columns), schema=schema)


def _born(columns: Columns, count: int, now: int) -> pa.Array:
    born = np.full(count, now) if "born_timestamp" not in columns else _numbers(columns["born_timestamp"], now)
    return pa.array(born * _US, pa.timestamp("us", "UTC"))


def _no_properties(count: int) -> pa.MapArray:
    nothing = pa.nulls(0, pa.string())
    return pa.MapArray.from_arrays(pa.array(np.zeros(count + 1, np.int32)), nothing, nothing)


def _half_fields(columns: Columns, number: int) -> dict[str, Any] | Problem:
    texts = columns.get("properties")
    fields = _fields({name: column for name, column in columns.items() if name != "properties"}, number)
    if texts is not None:
        first, last = np.asarray(texts.offsets[number : number + 2]).tolist()
        if last - first > _MANY:  # before each becomes an object
            detail = f"properties: {last - first} of them, over {_MANY}"
            return Problem("unfit", detail, {"field": "properties"})
        # Of a map as one value each entry would take ten times as long.
        pairs = zip(texts.keys[first:last].to_pylist(), texts.items[first:last].to_pylist(), strict=True)
        fields["properties"] = dict(pairs)
    if "body" in fields:
        fields["body"] = base64.b64encode(fields["body"]).decode()
    return fields


def _fields(columns: Columns, number: int) -> dict[str, Any]:
    """A row as a JSON object, without its nulls."""
    values = ((name, column[number].as_py()) for name, column in columns.items())
    return {name: value for name, value in values if value is not None}


def _named(names: pa.Array, fits: Callable[[str], bool]) -> Mask:
    """Which names fit; null does not."""
    code = names.dictionary_encode()
    fit = np.array([*map(fits, code.dictionary.to_pylist()), False])
    return fit[np.asarray(code.indices) if not names.null_count else _numbers(code.indices, len(fit) - 1)]


def _identified(ids: pa.Array) -> Mask:
    """Which are transaction ids."""
    fit = _long(ids, 1, TRANSACTION_ID_MAX)  # no more bytes than characters may be
    return fit if fit.all() else _within(pc.utf8_length(ids), TRANSACTION_ID_MAX) & _long(ids, 1, LONG_MAX)


def _long(values: pa.Array, least: int, most: int) -> Mask:
    """Of which the bytes are within these limits; null is not."""
    lengths = _lengths(values)
    fit = (lengths >= least) & (lengths <= most)
    return fit & _true(values.is_valid()) if values.null_count else fit


def _lengths(values: pa.Array) -> NDArray[np.int32]:
    """The bytes of each text; of null any number."""
    offsets = np.frombuffer(values.buffers()[1], np.int32, len(values) + 1, 4 * values.offset)
    return np.diff(offsets)


def _within(numbers: pa.Array, most: int) -> Mask:
    found = _numbers(numbers, -1)
    return (found >= 0) & (found <= most)


def _within_or_null(numbers: pa.Array, most: int) -> Mask:
    found = _numbers(numbers)
    return (found >= 0) & (found <= most)


def _numbers(numbers: pa.Array, null: int = 0) -> NDArray[np.int64]:
    """As int64; of uint64 those over LONG_MAX become negative."""
    if numbers.null_count:
        numbers = numbers.cast(pa.int64(), safe=False).fill_null(null)
    return np.asarray(numbers).astype(np.int64, copy=False)


def _true(booleans: pa.Array) -> Mask:
    return np.asarray(booleans)
