"""Bounded reading of an Arrow IPC stream: its known columns, in one type each, whatever the client's types are.

Decoding may take far more memory than the stream: compressed buffers, dictionaries, views of one value. All of it is
counted before it is decoded.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.gateway.problems import Problem
from checkback.gateway.requests.batch_decoder import BATCH_MAX
from checkback.messages.fields import unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Kind = Literal["text", "bytes", "integer", "time", "properties", "delay"]

#: messages of a stream: its schema, dictionaries, record batches
MESSAGES_MAX = 256
#: fields of a schema, nested ones too
_FIELDS_MAX = 256
_PROPERTIES = pa.map_(pa.string(), pa.string())
_FIRST = np.zeros(1, np.int32)
_ENTRIES = pa.list_(pa.struct([pa.field("key", pa.string(), nullable=False), pa.field("value", pa.string())]))
# Message.fbs and Schema.fbs of the Arrow format: types of a message's header, places of fields in their tables.
_DICTIONARY, _BATCH = 2, 3
_HEADER_TYPE, _HEADER, _ROWS, _BUFFERS, _COMPRESSION, _DATA = 1, 2, 0, 2, 3, 1


class UnreadableError(Exception):
    """The stream is refused: ``problem`` says why."""

    def __init__(self, code: str, detail: str, field: str | None = None) -> None:
        super().__init__(detail)
        self.problem = Problem(code, detail, {} if field is None else {"field": field})


@dataclass
class _Room:
    """Bytes that may still be decoded."""

    left: int
    most: int

    def take(self, size: int) -> None:
        self.left -= size
        if self.left < 0:
            raise UnreadableError("body_too_large", f"decoded more than {self.most} bytes (gateway.max_body)")


def read_columns(body: bytes, kinds: Mapping[str, Kind], most: int) -> tuple[int, dict[str, pa.Array]]:
    """The number of rows, and the columns that ``kinds`` names, without those that are absent or of type null.

    text is string, bytes is binary, integer as sent, time is int64 in ms since the epoch (rounded down), properties is
    map<string, string> without null, delay is string or integer. ``most``: bytes of the decoded stream, and of the
    columns. Raises UnreadableError, also for any other column.
    """
    try:
        rows = _measure(body, most)
        with pa.ipc.open_stream(body) as stream:
            schema = stream.schema
        if not 1 <= rows <= BATCH_MAX:
            raise UnreadableError(
                "unfit", f"{'more' if rows > BATCH_MAX else rows} rows; 1 to {BATCH_MAX} fit in a request"
            )
        known = _known(schema, kinds)
        if not known:
            return rows, {}
        options = pa.ipc.IpcReadOptions(included_fields=list(known.values()), use_threads=False)
        with pa.ipc.open_stream(body, options=options) as stream:
            table = stream.read_all()
        table.validate(full=True)
        room = _Room(most, most)
        return rows, {name: _CONVERTED[kinds[name]](_joined(table.column(name), room), room) for name in known}
    except (pa.ArrowException, OSError, struct.error, IndexError, UnicodeDecodeError, OverflowError) as error:
        raise UnreadableError("malformed", f"not an Arrow IPC stream: {type(error).__name__}") from None


def _known(schema: pa.Schema, kinds: Mapping[str, Kind]) -> dict[str, int]:
    """The place of each known column. Raises UnreadableError for a type that it cannot have."""
    if _size(schema) > _FIELDS_MAX:
        raise UnreadableError("unfit", f"a schema of more than {_FIELDS_MAX} fields")
    known: dict[str, int] = {}
    for place, field in enumerate(schema):
        kind = kinds.get(field.name)
        if kind is None:
            reason = unknown(field.name, kinds)
            raise UnreadableError("unfit", reason, reason.partition(":")[0])
        if field.name in known:
            raise UnreadableError("unfit", f"{field.name}: two columns have this name", field.name)
        if pa.types.is_null(field.type):
            continue
        if not _FITS[kind](field.type):
            raise UnreadableError("unfit", f"{field.name}: {_shown(field.type)}, not {_NAMES[kind]}", field.name)
        known[field.name] = place
    return known


def _size(schema: pa.Schema) -> int:
    size, left = 0, list(schema)
    while left and size <= _FIELDS_MAX:
        kind = left.pop().type
        size += 1
        left += [kind.field(number) for number in range(min(kind.num_fields, _FIELDS_MAX + 1))]
    return size


def _shown(kind: pa.DataType) -> str:
    return str(kind)[:40]


def _measure(body: bytes, most: int) -> int:
    """The rows of all batches. Raises UnreadableError if there are too many messages, or bytes when decompressed.

    Bytes after the end of the stream are refused, unless they are zeros (padding): Arrow ignores them, and a client
    that sends two streams as one would take the messages of the second for stored.

    Arrow has verified the offsets in a message's metadata, and refuses a buffer whose size is not the stated one.
    """
    rows, room = 0, _Room(most, most)
    with pa.BufferReader(body) as source:
        messages = pa.ipc.MessageReader.open_stream(source)
        for number in range(MESSAGES_MAX + 1):
            try:
                message = messages.read_next_message()
            except StopIteration:
                after = len(body) - source.tell()
                if after and body[-after:].strip(b"\0"):
                    raise UnreadableError("malformed", f"{after} bytes after the end of the Arrow IPC stream") from None
                return rows
            if number == MESSAGES_MAX:
                break
            data = message.metadata.to_pybytes()
            table = _offset(data, 0)
            kind = _field(data, table, _HEADER_TYPE)
            header = _field(data, table, _HEADER)
            if kind is None or header is None:
                continue
            batch = _offset(data, header)
            if data[kind] == _DICTIONARY:
                inner = _field(data, batch, _DATA)
                if inner is not None:
                    room.take(_decompressed(data, _offset(data, inner), message.body))
            elif data[kind] == _BATCH:
                place = _field(data, batch, _ROWS)
                rows += 0 if place is None else max(0, _unpacked("<q", data, place))
                if rows > BATCH_MAX:
                    return rows
                room.take(_decompressed(data, batch, message.body))
    raise UnreadableError("unfit", f"more than {MESSAGES_MAX} messages in the stream")


def _decompressed(data: bytes, batch: int, body: pa.Buffer) -> int:
    """Bytes of a record batch's buffers when decompressed: each states its own in its first 8 bytes; -1 = it is not."""
    vector = _field(data, batch, _BUFFERS)
    if _field(data, batch, _COMPRESSION) is None or vector is None:
        return len(body)
    vector = _offset(data, vector)
    size: int = 0
    for number in range(_unpacked("<I", data, vector)):
        begin, length = (_unpacked("<q", data, vector + 4 + 16 * number + part) for part in (0, 8))
        if length:
            stated = _unpacked("<q", body[begin : begin + 8].to_pybytes(), 0)
            size += length if stated == -1 else max(0, stated)
    return size


def _offset(data: bytes, place: int) -> int:
    """Where the flatbuffer's offset at a place leads."""
    return place + _unpacked("<I", data, place)


def _field(data: bytes, table: int, number: int) -> int | None:
    """The place of a flatbuffer table's field; None = absent."""
    fields = table - _unpacked("<i", data, table)
    at = 4 + 2 * number
    offset = _unpacked("<H", data, fields + at) if at < _unpacked("<H", data, fields) else 0
    return table + offset if offset else None


def _unpacked(layout: str, data: bytes, place: int) -> int:
    (number,) = struct.unpack_from(layout, data, place)
    return int(number)


def _joined(column: pa.ChunkedArray, room: _Room) -> pa.Array:
    """The column as one array, not dictionary-encoded."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        parts = []
        for chunk in column.chunks:
            lengths = pc.binary_length(chunk.dictionary).take(chunk.indices)
            room.take(pc.sum(lengths).as_py() or 0)
            parts.append(chunk.dictionary_decode())
        return pa.concat_arrays(parts) if len(parts) > 1 else parts[0]
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _text(array: pa.Array, room: _Room) -> pa.Array:
    return _plain(array, pa.string(), room)


def _bytes(array: pa.Array, room: _Room) -> pa.Array:
    return _plain(array, pa.binary(), room)


def _plain(array: pa.Array, kind: pa.DataType, room: _Room) -> pa.Array:
    if array.type == kind:
        return array
    if _is_view(array.type):
        end = array.offset + len(array)
        # By the count: a buffer may have any number of bytes behind the last view.
        views = np.frombuffer(array.buffers()[1], "<i4", 4 * end).reshape(-1, 4)[array.offset :, 0]
        room.take(int(views[np.asarray(array.is_valid())].sum(dtype=np.int64)))
    return array.cast(kind)


def _integer(array: pa.Array, _: _Room) -> pa.Array:
    return array


def _delay(array: pa.Array, room: _Room) -> pa.Array:
    return array if pa.types.is_integer(array.type) else _text(array, room)


def _time(array: pa.Array, _: _Room) -> pa.Array:
    if pa.types.is_integer(array.type):
        return array
    numbers = array.view(pa.int64())
    if array.type.unit == "ms":
        return numbers
    times = np.asarray(numbers.fill_null(0))
    if array.type.unit == "s":
        times = np.clip(times, -(2**50), 2**50) * 1000  # beyond what any time may be, and no overflow
    else:
        times = times // {"us": 1000, "ns": 1_000_000}[array.type.unit]
    return pa.array(times, mask=np.asarray(array.is_null()))


def _properties(array: pa.MapArray, _: _Room) -> pa.MapArray:
    if not array.type.equals(_PROPERTIES, check_metadata=True):
        array = array.cast(_PROPERTIES)
    if array.null_count:
        entries = array.cast(_ENTRIES)  # functions take no maps
        ends = np.cumsum(np.asarray(pc.list_value_length(entries).fill_null(0)), dtype=np.int32)
        entries = entries.flatten()
        array = pa.MapArray.from_arrays(np.concatenate([_FIRST, ends]), entries.field(0), entries.field(1))
    if array.keys.null_count:
        raise UnreadableError("malformed", "properties: a name is null", "properties")
    return array


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string_view(kind) or pa.types.is_binary_view(kind))


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_text(kind: pa.DataType) -> bool:
    return _is_string(kind.value_type if pa.types.is_dictionary(kind) else kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_binary(plain) or pa.types.is_large_binary(plain) or pa.types.is_binary_view(kind))


def _is_time(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None))


def _is_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) and _is_string(kind.key_type) and _is_string(kind.item_type)


def _is_delay(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or _is_text(kind)


_FITS: dict[Kind, Callable[[pa.DataType], bool]] = {
    "text": _is_text,
    "bytes": _is_bytes,
    "integer": pa.types.is_integer,
    "time": _is_time,
    "properties": _is_map,
    "delay": _is_delay,
}
_NAMES: dict[Kind, str] = {
    "text": "string",
    "bytes": "binary",
    "integer": "an integer type",
    "time": "timestamp with a time zone, or ms since the epoch as an integer",
    "properties": "map<string, string>",
    "delay": "ms as an integer, or string",
}
_CONVERTED: dict[Kind, Callable[[Any, _Room], pa.Array]] = {
    "text": _text,
    "bytes": _bytes,
    "integer": _integer,
    "time": _time,
    "properties": _properties,
    "delay": _delay,
}
