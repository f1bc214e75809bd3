"""Rows of the tables, as Arrow, in RECORDED records. Pure.

Strings become numbers: hashes as in `event_columns`, where check_jitter depends on them, else codes that are
equal where the strings are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages.limits import MS_MAX
from checkback.observe.counts import xxhash64
from checkback.reconcile.records.segment_records import NOT_STATED, Kind, Reason, Source
from checkback.what_if.records import RECORDED, Answered, Row, State
from checkback.what_if.timeline import NO_TURN, milliseconds

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from checkback.reconcile.records.segment_records import Records
    from checkback.what_if.timeline import BatchHistory

_IDENTITY = ("transaction_id", "producer_group")
#: columns that are read of each table, the queue's and the offset's first
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "half": (
        *("queue_id", "queue_offset", *_IDENTITY, "born_timestamp", "store_timestamp"),
        *("check_immunity_s", "delay_ms", "deliver_at", "committed", "real_topic"),
    ),
    "op": (
        *("queue_id", "queue_offset", *_IDENTITY, "state", "source", "remark"),
        *("born_timestamp", "store_timestamp"),
    ),
    "decisions": (
        *("queue_id", "queue_offset", *_IDENTITY, "state", "source", "reason", "check_times"),
        *("decided_at", "batch_id"),
    ),
    "check_requests": ("queue_id", "queue_offset", *_IDENTITY, "check_times", "requested_at", "batch_id"),
    "check_answers": (
        *("queue_id", "queue_offset", *_IDENTITY, "check_times", "outcome", "answered_at"),
        "delivered",
    ),
}
_ROWS = dict(zip(COLUMNS, Row, strict=True))
#: by table that batches write, the column with the batch's time
_TIMES = {"decisions": "decided_at", "check_requests": "requested_at"}
_LONGEST_DELAY = 100 * 366 * 86_400_000


def recorded_rows(
    tables: Mapping[str, pa.Table], history: BatchHistory, since: int, hashed: bool
) -> tuple[NDArray[Any], Records, list[str]]:
    """The rows of COLUMNS: queue ids and RECORDED records; and the names of the producer groups by their numbers.

    Without half messages that landed before ``since`` (ms), after the last batch, or whose batches have no row in
    `batches`, but for one in progress. ``hashed``: transactions are numbered by their hashes.
    """
    groups, group_names = _codes([table.column("producer_group") for table in tables.values()])
    transactions, ids = _codes([table.column("transaction_id") for table in tables.values()])
    numbers = np.array(list(map(xxhash64, ids)), np.int64) if hashed else np.arange(1, len(ids) + 1)
    numbers = np.append(np.where(numbers == NOT_STATED, ~NOT_STATED, numbers), NOT_STATED)  # null: -1, the last
    parts, queues, begin = [], [], 0
    for name, table in tables.items():
        rows = np.zeros(table.num_rows, RECORDED)
        rows["row"] = _ROWS[name]
        rows["group"] = groups[begin : begin + len(rows)]
        rows["transaction"] = numbers[transactions[begin : begin + len(rows)]]
        begin += len(rows)
        offset = table.column(COLUMNS[name][1])
        rows["offset"], queue = _integers(offset, -1), _integers(table.column("queue_id"), -1)
        _FILL[name](rows, table)
        if name in _TIMES:
            times = milliseconds(table.column(_TIMES[name]))
            rows["turn"] = history.turns(_integers(table.column("batch_id"), -1), times)
            rows["at"] = times
        kept = (rows["offset"] >= 0) & (queue >= 0) & (rows["group"] >= 0)
        if name == "half":
            kept &= (transactions[begin - len(rows) : begin] >= 0) & table.column("real_topic").is_valid().to_numpy()
            landed = rows["store"] // 1000
            kept &= (landed >= max(since, history.begin)) & (landed <= history.end)
        parts.append(rows[kept])
        queues.append(queue[kept])
    rows, queue = np.concatenate(parts), np.concatenate(queues)
    known = _known(queue, rows, history.end)
    return queue[known], rows[known], group_names


def _known(queue: NDArray[Any], rows: Records, end: int) -> NDArray[np.bool_]:
    """Mask of the rows that a replay can go by: those of half messages all of whose batches are known."""
    places = np.empty(len(rows), [("queue", "<i8"), ("offset", "<i8")])
    places["queue"], places["offset"] = queue, rows["offset"]
    of_batch = np.isin(rows["row"], (Row.DECISION, Row.REQUEST))
    unknown = of_batch & (rows["turn"] == NO_TURN)
    # A batch in progress comes after all that have a row.
    strange = places[unknown & (rows["at"] < end)]
    kept = ~unknown & np.isin(places, places[rows["row"] == Row.HALF])
    if len(strange):
        kept &= ~np.isin(places, strange)
    found: NDArray[np.bool_] = kept
    return found


def _codes(columns: list[pa.ChunkedArray]) -> tuple[NDArray[Any], list[str]]:
    """A number for each value of all columns, -1 for null; and the values by their numbers."""
    values = pa.chunked_array([chunk for column in columns for chunk in column.chunks], pa.string())
    coded = values.dictionary_encode().unify_dictionaries().combine_chunks()
    if isinstance(coded, pa.ChunkedArray):
        coded = coded.combine_chunks()
    return np.asarray(coded.indices.fill_null(-1)).astype(np.int64), coded.dictionary.to_pylist()


def _integers(column: pa.ChunkedArray, null: int = 0) -> NDArray[Any]:
    found: NDArray[Any] = column.cast(pa.int64()).fill_null(null).to_numpy()
    return found


def _enumerated(column: pa.ChunkedArray, values: Mapping[str, int], other: int) -> NDArray[Any]:
    """The number of each text."""
    codes, texts = _codes([column])
    found: NDArray[Any] = np.array([*(values.get(text, other) for text in texts), other], np.uint8)[codes]
    return found


def _half(rows: Records, table: pa.Table) -> None:
    rows["kind"] = np.where(table.column("committed").fill_null(False).to_numpy(), Kind.MESSAGE, Kind.HALF)
    rows["store"] = _integers(table.column("store_timestamp"))
    rows["born"] = _times(table)
    immunity = _integers(table.column("check_immunity_s"), -1)
    rows["immunity"] = np.where(immunity < 0, -1, immunity * 1000)
    # As event_columns._delay.
    at = np.clip(-(-_integers(table.column("deliver_at")) // 1000), 1, MS_MAX)
    after = -np.clip(_integers(table.column("delay_ms")), 0, _LONGEST_DELAY)
    rows["delay"] = np.where(table.column("deliver_at").is_valid().to_numpy(), at, after)


def _op(rows: Records, table: pa.Table) -> None:
    rows["store"], rows["born"] = _integers(table.column("store_timestamp")), _times(table)
    sources = {"check": Source.CHECK, "operator": Source.OPERATOR}
    rows["source"] = _enumerated(table.column("source"), sources, Source.PRODUCER)
    kinds = {kind.name: kind for kind in (Kind.ROLLBACK, Kind.COMMIT, Kind.COUNTED, Kind.CANCEL)}
    kind = _enumerated(table.column("state"), kinds, Kind.UNKNOWN)
    by_check = rows["source"] == Source.CHECK
    of_check = kind == Kind.COUNTED
    kind[(of_check & ~by_check) | ((kind == Kind.CANCEL) & by_check)] = Kind.UNKNOWN
    rows["kind"] = kind
    number = pc.extract_regex(table.column("remark"), "^check (?P<number>[0-9]{1,9})$")
    number = pc.struct_field(number, "number").cast(pa.int64())
    rows["check"] = np.where(by_check, _integers(number, -1), -1)


def _times(table: pa.Table) -> NDArray[Any]:
    """born_timestamp, or else store_timestamp, in ms."""
    return milliseconds(pc.coalesce(table.column("born_timestamp"), table.column("store_timestamp")))


def _decision(rows: Records, table: pa.Table) -> None:
    rows["kind"] = _enumerated(table.column("state"), {state.name: state for state in State}, State.PENDING)
    sources = {source.name.lower(): source for source in Source}
    rows["source"] = _enumerated(table.column("source"), sources, Source.PRODUCER)
    rows["reason"] = _enumerated(table.column("reason"), {reason.name: reason for reason in Reason}, 0)
    rows["number"] = _integers(table.column("check_times"))


def _request(rows: Records, table: pa.Table) -> None:
    rows["number"] = _integers(table.column("check_times"))


def _answer(rows: Records, table: pa.Table) -> None:
    rows["kind"] = _enumerated(table.column("outcome"), {each.name: each for each in Answered}, Answered.NONE)
    rows["number"], rows["at"] = _integers(table.column("check_times")), milliseconds(table.column("answered_at"))
    rows["source"] = table.column("delivered").fill_null(True).to_numpy()


_FILL = {
    "half": _half,
    "op": _op,
    "decisions": _decision,
    "check_requests": _request,
    "check_answers": _answer,
}
