"""The functions that a batch's tasks run in mapInArrow, Arrow in and Arrow out."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.errors import reason
from checkback.reconcile.publish import half_reader, unpublished
from checkback.reconcile.publish.half_lookup import FoundRows, HalfLookup
from checkback.reconcile.publish.output_rows import store_us, table_rows, whole_numbers
from checkback.storage.arrow_streams import to_stream
from checkback.storage.files import table_files
from checkback.storage.own_failure import as_reason
from checkback.storage.parquet.parquet_files import MOST_ROWS, file_rows
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.spark_schemas import HALF

if TYPE_CHECKING:
    from checkback.reconcile.publish.half_reader import RowGroups
    from checkback.reconcile.publish.unpublished import UnpublishedTopics
    from checkback.storage.parquet.parquet_files import TableRoot

Batches = Iterable[pa.RecordBatch]

SURVEY_SCHEMA = "name STRING, note BINARY, rows BINARY"
#: prefix of the topic in `TaskReport.rows`: rows of `unpublished`
UNPUBLISHED_PREFIX = "unpublished/"


@dataclass(frozen=True)
class TaskReport:
    """A task's report to the driver.

    ``found``: the note of `FoundRows`. ``rows``: counts by table, for `unpublished` by ``unpublished/<real_topic>``.
    ``failed``: the reason by topic table whose file could not be written.
    """

    found: bytes
    rows: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

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
            yield file_rows(files, TaskReport(found.note(), counts, failed).to_bytes())

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
        yield pa.RecordBatch.from_pylist([*tables, {"note": TaskReport(found.note(), counts).to_bytes()}], schema)

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
            yield from table_rows(batch.select(HALF.names), rows, wanted.records[records], wanted, unpublished_topics)
