"""Messages as Arrow IPC streams, in the types and batches that clients may use."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import strategies as st

from checkback.gateway.requests.arrow_decoder import HALF, OP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ARROW = "application/vnd.apache.arrow.stream"
PROPERTIES = pa.map_(pa.string(), pa.string())
LARGE_PROPERTIES = pa.map_(pa.large_string(), pa.large_string())
INDEXED = pa.dictionary(pa.int16(), pa.large_string())
#: types of a kind's column, the table's first
TYPES: dict[str, list[pa.DataType]] = {
    "text": [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string()), INDEXED],
    "bytes": [pa.binary(), pa.large_binary(), pa.binary_view(), pa.dictionary(pa.int8(), pa.binary())],
    "integer": [pa.int64(), pa.uint64(), pa.int32(), pa.int8()],
    "time": [pa.timestamp(unit, zone) for unit, zone in (("us", "UTC"), ("ms", "Europe/Berlin"), ("ns", "UTC"))]
    + [pa.timestamp("s", "UTC"), pa.int64()],
    "properties": [PROPERTIES, LARGE_PROPERTIES],
    "delay": [pa.int64(), pa.string()],
}


def stream(columns: Mapping[str, pa.Array], rows: int = 1000, compression: str | None = None) -> bytes:
    """The IPC stream of the columns, in batches of so many rows."""
    table = pa.table(dict(columns))
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=True)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def column(values: Sequence[Any], kind: str, which: int = 0) -> pa.Array | None:
    """Values as JSON has them, in the kind's type ``which``; if they do not fit, in the first that they do."""
    if kind == "bytes":
        values = [None if value is None else base64.b64decode(value) for value in values]
    if kind == "properties":
        values = [None if value is None else list(value.items()) for value in values]
    types = TYPES[kind]
    for candidate in types[which % len(types) :] + types:
        try:
            plain = pa.array(values, pa.int64()) if pa.types.is_timestamp(candidate) else None
            if plain is not None:  # values are in ms
                return plain.cast(pa.timestamp("ms", candidate.tz)).cast(candidate)
            if pa.types.is_dictionary(candidate):
                return pa.array(values, candidate.value_type).dictionary_encode().cast(candidate)
            return pa.array(values, candidate)
        except (pa.ArrowException, OverflowError):  # noqa: PERF203 - the next type may fit
            continue
    raise AssertionError(f"{kind}: no type fits")


def columns(messages: Sequence[Mapping[str, Any]], which: Mapping[str, int] | None = None) -> dict[str, pa.Array]:
    """The columns of messages that JSON can state, too: those that none has are left out."""
    kinds: dict[str, str] = {**HALF, **OP}
    names = [name for name in kinds if any(name in message for message in messages)]
    values = {name: [message.get(name) for message in messages] for name in names}
    return {name: column(values[name], kinds[name], (which or {}).get(name, 0)) for name in names}


TEXT = st.text(max_size=4)
_NOTHING: st.SearchStrategy[None] = st.none()
#: Messages of which each member has its type, fit or not; None = absent.
HALVES = st.lists(
    st.fixed_dictionaries(
        {
            "transaction_id": st.sampled_from(["a", "b", "é" * 65, "x" * 1025, ""]) | TEXT | _NOTHING,
            "producer_group": st.sampled_from(["orders"] * 9 + ["stock", "a b", "", "g" * 121]) | _NOTHING,
            "real_topic": st.sampled_from(["payments"] * 9 + ["rmq_sys_x", "_x", "Nul", "t" * 128]) | _NOTHING,
            "body": st.binary(max_size=5).map(lambda body: base64.b64encode(body).decode()) | _NOTHING,
        },
        optional={
            "real_queue_id": _NOTHING | st.integers(-1, 3) | st.sampled_from([2**31 - 1, 2**31, 2**62]),
            "ordering_key": _NOTHING | TEXT | st.sampled_from(["k" * 255, "é" * 255, "k" * 256]),
            "tags": _NOTHING | TEXT | st.just("€" * 11_000),
            "keys": _NOTHING | TEXT,
            "properties": _NOTHING
            | st.dictionaries(
                TEXT | st.sampled_from(["CHECK_IMMUNITY_TIME_IN_SECONDS", "DELAY", "TAGS", "__SHARDINGKEY"]),
                TEXT | st.sampled_from(["7", "€" * 11_000]),
                max_size=3,
            ),
            "born_timestamp": _NOTHING | st.integers(-1, 2**40) | st.sampled_from([253_402_300_799_999, 2**60]),
            "check_immunity_s": _NOTHING | st.integers(-2, 2**31),
            "delay_level": _NOTHING | st.integers(-1, 20),
            "delay": _NOTHING | st.integers(-1, 2**62),
            "deliver_at": _NOTHING | st.integers(-1, 2**40),
        },
    ),
    min_size=1,
    max_size=5,
)
OPS = st.lists(
    st.fixed_dictionaries(
        {
            "queue_id": st.sampled_from([0, 0, 0, 1, -1, 2**31]) | _NOTHING,
            "half_offset": st.integers(0, 5) | st.just(2**63) | _NOTHING,
            "transaction_id": st.sampled_from(["a", "b", "x" * 1025, ""]) | TEXT | _NOTHING,
            "producer_group": st.sampled_from(["orders"] * 9 + ["stock", "a b", ""]) | _NOTHING,
            "state": st.sampled_from(["COMMIT", "ROLLBACK", "UNKNOWN", ""]) | _NOTHING,
        },
        optional={
            "remark": _NOTHING | TEXT | st.just("r" * 1025),
            "born_timestamp": _NOTHING | st.integers(-1, 2**40) | st.just(2**60),
        },
    ),
    min_size=1,
    max_size=5,
)
#: for each column which type, how many rows a batch, the compression
SHAPE = st.tuples(
    st.dictionaries(st.sampled_from(sorted({**HALF, **OP})), st.integers(0, 4)),
    st.integers(1, 6),
    st.sampled_from([None, None, "zstd", "lz4"]),
)
