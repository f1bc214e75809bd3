"""The functions that a batch's tasks run in mapInArrow, Arrow in and Arrow out."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.errors import reason
from checkback.reconcile.publish import half_reader, unpublished
from checkback.reconcile.publish.half_lookup import FoundRows, HalfLookup, due_times
from checkback.reconcile.records.actions import DECISIONS, KEPT, PUBLISHED
from checkback.reconcile.records.segment_records import Action, Reason, Source
from checkback.storage.arrow_streams import to_stream
from checkback.storage.failure_scope import as_reason
from checkback.storage.files import table_files
from checkback.storage.parquet.parquet_files import MOST_ROWS, file_rows
from checkback.storage.schemas import CONTENT, TOPIC_PREFIX, arrow_schema
from checkback.storage.spark_schemas import HALF

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.publish.half_reader import RowGroups
    from checkback.reconcile.publish.unpublished import UnpublishedTopics
    from checkback.reconcile.records.segment_records import Bits, Records
    from checkback.storage.parquet.parquet_files import TableRoot

    Indices = NDArray[np.intp]


#: state of a decision by action
_STATES = pa.array(["COMMIT" if action is Action.SCHEDULE else action.name for action in Action])
_SOURCES = pa.array([source.name.lower() for source in Source])
_REASONS = pa.array([reason.name for reason in Reason])
_TRANSACTION = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic")


def store_us(messages: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """store_timestamp in microseconds, 0 if null: with the offset it identifies a row of `half`."""
    return whole_numbers(messages.column("store_timestamp").cast(pa.timestamp("us", "UTC")).cast(pa.int64()))


def whole_numbers(column: pa.Array, null: int = 0) -> np.ndarray[Any, Any]:
    """An integer column as an array; ``null`` replaces nulls, and must not be a value of any wanted row."""
    return column.fill_null(null).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def table_rows(
    messages: pa.RecordBatch, rows: Indices, marks: Records, wanted: HalfLookup, unpublished_topics: UnpublishedTopics
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """(table name, rows) for each output table.

    ``messages`` has the columns of `half`; ``rows`` selects from them, ``marks`` (WANTED records) are the actions on
    them. Bodies are copied at most once. ``unpublished_topics``: which messages go to `unpublished`.
    """
    action = marks["action"]
    published, decided, kept, delivered, checked = (
        np.flatnonzero(np.isin(action, kinds))
        for kinds in (PUBLISHED, DECISIONS, KEPT, (Action.DELIVER,), (Action.CHECK,))
    )
    if len(published):
        yield from _topics(messages, rows[published], wanted, unpublished_topics)
    if unpublished_topics.only:
        return
    if len(decided):
        yield "decisions", _decisions(messages, rows[decided], marks[decided], wanted)
    if len(delivered):
        yield "deliveries", _deliveries(messages, rows[delivered], marks[delivered], wanted)
    if len(kept):
        yield "discarded", _discarded(messages, rows[kept], marks[kept], wanted)
    if len(checked):
        yield "check_requests", _requests(messages, rows[checked], marks[checked], wanted)


def _topics(
    messages: pa.RecordBatch, rows: Indices, wanted: HalfLookup, unpublished_topics: UnpublishedTopics
) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Messages by topic, as rows of the topic table or of `unpublished`."""
    # As bytes: another writer of `half` may have stored invalid UTF-8.
    topics = _take(messages.column("real_topic"), rows).cast(pa.binary()).dictionary_encode("encode")
    codes = topics.indices.to_numpy(zero_copy_only=False)
    names = [None if name is None else name.decode("utf-8", "replace") for name in topics.dictionary.to_pylist()]
    if len(names) > 1:
        rows = rows[np.argsort(codes, kind="stable")]
    published = _renamed(
        messages,
        rows,
        {
            "half_queue_id": "queue_id",
            "half_queue_offset": "queue_offset",
            "queue_id": "real_queue_id",
            **{name: name for name in ("transaction_id", "producer_group", *CONTENT, "erased_at", "born_timestamp")},
            "half_store_timestamp": "store_timestamp",
        },
        _stamp("published_at", len(rows), wanted),
    )
    begin = 0
    for name, count in zip(names, np.bincount(codes, minlength=len(names)).tolist(), strict=True):
        reason, mine = unpublished_topics.reason(name), published.slice(begin, count)
        if reason is None and not unpublished_topics.only:
            yield f"{TOPIC_PREFIX}{name}", mine
        elif reason is not None and (not unpublished_topics.only or name in unpublished_topics.waiting):
            topic = _take(messages.column("real_topic"), rows[begin : begin + count])
            yield unpublished.TABLE, _unpublished(mine, topic, reason, unpublished_topics.application)
        begin += count


def _unpublished(published: pa.RecordBatch, topic: pa.Array, reason: str, application: str) -> pa.RecordBatch:
    """Rows of a topic table as rows of `unpublished`."""
    names = ["unpublished_at" if name == "published_at" else name for name in published.schema.names]
    more = {name: pa.repeat(value, len(topic)) for name, value in (("reason", reason), ("application", application))}
    columns = [*published.columns, topic, *more.values()]
    return pa.RecordBatch.from_arrays(columns, [*names, "real_topic", *more])


def _decisions(messages: pa.RecordBatch, rows: Indices, marks: Records, wanted: HalfLookup) -> pa.RecordBatch:
    discard = marks["action"] == Action.DISCARD
    return _renamed(
        messages,
        rows,
        {name: name for name in _TRANSACTION},
        {
            "state": _STATES.take(pa.array(marks["action"])),
            "source": _SOURCES.take(pa.array(np.where(discard, int(Source.CHECKBACK), marks["detail"]))),
            "reason": _REASONS.take(pa.array(marks["detail"], mask=~discard)),
            "check_times": pa.array(marks["check_times"]),
            **_stamp("decided_at", len(rows), wanted),
            "deliver_at": _times(due_times(marks), marks["action"] == Action.SCHEDULE),
        },
    )


def _deliveries(messages: pa.RecordBatch, rows: Indices, marks: Records, wanted: HalfLookup) -> pa.RecordBatch:
    more = {"deliver_at": _times(due_times(marks)), **_stamp("delivered_at", len(rows), wanted)}
    return _renamed(messages, rows, {name: name for name in _TRANSACTION}, more)


def _discarded(messages: pa.RecordBatch, rows: Indices, marks: Records, wanted: HalfLookup) -> pa.RecordBatch:
    cancelled = marks["action"] == Action.CANCEL
    return _renamed(
        messages,
        rows,
        {name: name for name in messages.schema.names},
        {
            "check_times": pa.array(marks["check_times"]),
            "reason": _REASONS.take(pa.array(np.where(cancelled, int(Reason.CANCELLED), marks["detail"]))),
            **_stamp("discarded_at", len(rows), wanted),
        },
    )


def _requests(messages: pa.RecordBatch, rows: Indices, marks: Records, wanted: HalfLookup) -> pa.RecordBatch:
    return _renamed(
        messages,
        rows,
        {name: name for name in (*_TRANSACTION, "born_timestamp")},
        {
            "check_times": pa.array(marks["check_times"]),
            **_stamp("requested_at", len(rows), wanted),
        },
    )


def _renamed(
    messages: pa.RecordBatch, rows: Indices, names: dict[str, str], more: dict[str, pa.Array]
) -> pa.RecordBatch:
    columns = {new: _take(messages.column(old), rows) for new, old in names.items()} | more
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _take(column: pa.Array, rows: Indices) -> pa.Array:
    """These rows of a column; consecutive ones as a zero-copy slice."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1 and (np.diff(rows) == 1).all():
        return column.slice(int(rows[0]), len(rows))
    return column.take(pa.array(rows))


def _times(ms: np.ndarray[Any, Any], known: Bits | None = None) -> pa.Array:
    """Times in ms as TIMESTAMPs; null where not ``known``."""
    micros = pa.array(ms * 1000, pa.int64(), mask=None if known is None else ~known)
    return micros.cast(pa.timestamp("us", "UTC"))


def _stamp(time_column: str, rows: int, wanted: HalfLookup) -> dict[str, pa.Array]:
    """The batch's time and id, for every row."""
    time = pa.scalar(wanted.batch_time * 1000, pa.int64()).cast(pa.timestamp("us", "UTC"))
    return {time_column: pa.repeat(time, rows), "batch_id": pa.repeat(pa.scalar(wanted.batch_id, pa.int64()), rows)}


Batches = Iterable[pa.RecordBatch]

SURVEY_SCHEMA = "name STRING, note BINARY, rows BINARY"
#: prefix of the topic in `TaskReport.rows`: rows of `unpublished`
UNPUBLISHED_PREFIX = "unpublished/"


@dataclass(frozen=True)
class TaskReport:
    """A task's report to the driver.

    ``found``: the note of `FoundRows`. ``rows``: counts by table, for `unpublished` by ``unpublished/<real_topic>``.
    ``failed``: the reason by topic table whose file could not be written. ``traces``: that of `FoundRows`.
    """

    found: bytes
    rows: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    traces: Sequence[str] = ()

    def to_bytes(self) -> bytes:
        """Serialised."""
        return pickle.dumps(self)

    @staticmethod
    def of(value: bytes) -> TaskReport:
        """Deserialise a report written by our own task."""
        note: TaskReport = pickle.loads(value)  # noqa: S301
        return note


def picker(
    wanted: HalfLookup, root: TableRoot, unpublished_topics: UnpublishedTopics
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that writes the files of all tables: rows of `half` in, FILES_SCHEMA out."""

    def pick(batches: Batches) -> Iterator[pa.RecordBatch]:
        found, counts = FoundRows(wanted), Counter[str]()
        with root.writer(MOST_ROWS, apart=TOPIC_PREFIX) as writer:
            for name, rows in _tables_of(batches, wanted, found, unpublished_topics):
                counts.update(_counted(name, rows))
                writer.write(name, rows)
            files = writer.close()
            failed = {name: as_reason(reason(error)) for name, error in writer.failed.items()}
            yield file_rows(files, TaskReport(found.note(), counts, failed, found.traces).to_bytes())

    return pick


def reader(
    lists: Sequence[Sequence[RowGroups]],
    wanted: HalfLookup,
    with_body: bool,
    root: TableRoot,
    unpublished_topics: UnpublishedTopics,
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Like `picker`, but the input is indexes into ``lists``, whose files the task reads itself."""
    pick = picker(wanted, root, unpublished_topics)

    def read(numbers: Batches) -> Iterator[pa.RecordBatch]:
        mine = [piece for batch in numbers for number in batch.column(0).to_pylist() for piece in lists[number]]
        sources = table_files.sources([(piece.path, piece.size) for piece in mine])
        yield from pick(
            batch
            for piece, source in zip(mine, sources, strict=True)
            for batch in half_reader.read(piece, source, wanted, with_body)
        )

    return read


def surveyor(
    wanted: HalfLookup, unpublished_topics: UnpublishedTopics, most: int
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that writes nothing: names of the tables that get rows, and a report.

    Beside each name are its rows, as an Arrow stream; null if those of all tables take more than ``most`` bytes.
    """

    def survey(batches: Batches) -> Iterator[pa.RecordBatch]:
        found, counts, size = FoundRows(wanted), Counter[str](), 0
        parts: dict[str, list[pa.RecordBatch]] = {}
        for name, rows in _tables_of(batches, wanted, found, unpublished_topics):
            counts.update(_counted(name, rows))
            size += rows.nbytes
            parts.setdefault(name, [])
            if size > most:
                parts = {name: [] for name in parts}
            else:
                parts[name].append(_as_in(name, rows))
        schema = pa.schema([("name", pa.string()), ("note", pa.binary()), ("rows", pa.binary())])
        tables = [
            {"name": name, "rows": to_stream(pa.Table.from_batches(rows)).to_pybytes() if rows else None}
            for name, rows in sorted(parts.items())
        ]
        yield pa.RecordBatch.from_pylist(
            [*tables, {"note": TaskReport(found.note(), counts, traces=found.traces).to_bytes()}], schema
        )

    return survey


def selector(
    wanted: HalfLookup, table: str, unpublished_topics: UnpublishedTopics
) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow that returns the rows of one table."""

    def select(batches: Batches) -> Iterator[pa.RecordBatch]:
        for name, rows in _tables_of(batches, wanted, FoundRows(wanted), unpublished_topics):
            if name == table:
                yield _as_in(name, rows)

    return select


def _as_in(table: str, rows: pa.RecordBatch) -> pa.RecordBatch:
    """Rows with the table's columns and types."""
    schema = arrow_schema(table)
    return rows.select(schema.names).cast(schema)


def _counted(name: str, rows: pa.RecordBatch) -> dict[str, int]:
    """Row count by name as in `TaskReport`. Rows of `unpublished` come by topic."""
    if name == unpublished.TABLE:
        topic = rows.column("real_topic")[0].cast(pa.binary()).as_py()
        name = UNPUBLISHED_PREFIX + ("" if topic is None else topic.decode("utf-8", "replace"))
    return {name: rows.num_rows}


def _tables_of(
    batches: Batches, wanted: HalfLookup, found: FoundRows, unpublished_topics: UnpublishedTopics
) -> Iterator[tuple[str, pa.RecordBatch]]:
    for batch in batches:
        identity = None
        if wanted.identity is not None:
            identity = whole_numbers(batch.column("group_hash")), whole_numbers(batch.column("transaction_hash"))
        # Rows of another writer may lack an offset: they match nothing.
        queue_id, offset = (whole_numbers(batch.column(name), null=-1) for name in ("queue_id", "queue_offset"))
        rows, records = wanted.find(queue_id, offset, store_us(batch), identity)
        if len(rows):
            found.add(records)
            found.add_traces(batch, rows)
            yield from table_rows(batch.select(HALF.names), rows, wanted.records[records], wanted, unpublished_topics)
