"""Two ways to write a batch's rows into the tables: files that Checkback commits, or a Spark query for each table."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.reconcile.publish import half_reader, unpublished
from checkback.reconcile.publish.tasks import (
    SURVEY_SCHEMA,
    UNPUBLISHED_PREFIX,
    TaskReport,
    picker,
    reader,
    selector,
    surveyor,
)
from checkback.storage.arrow_streams import of_stream
from checkback.storage.checkpoints.checkpoint import plan_versions
from checkback.storage.checkpoints.checkpoint_fit import refuse_newer
from checkback.storage.dataframes import without_codegen
from checkback.storage.parquet.parquet_files import FILES_SCHEMA, files_of
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.spark_schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame

    from checkback.reconcile.publish.half_lookup import HalfLookup
    from checkback.reconcile.publish.half_rows import HalfRows
    from checkback.reconcile.publish.unpublished import UnpublishedTopics
    from checkback.storage.parquet.parquet_files import ParquetFile

#: bytes of files up to which the driver does a task's work: starting a Spark job takes longer
_SMALL = 8 << 20


class BatchWriter(Protocol):
    """The rows of a batch, found but not committed.

    Commits are idempotent: the application is ``app`` and the table's name, the version the batch id.
    """

    @property
    def reports(self) -> Sequence[TaskReport]:
        """What the tasks have found."""

    @property
    def names(self) -> Sequence[str]:
        """The tables that get rows, except `unpublished`."""

    def append(self, name: str) -> None:
        """Commit a table's rows. Raises what the table's writer raises."""

    def leave_unpublished(self, failed: Mapping[str, str]) -> None:
        """Commit the rows of `unpublished`; ``failed``: further topics whose messages go there, with the reason."""


class FileBatchWriter:
    """One job writes the files of all tables; the driver commits them."""

    def __init__(self, half: HalfRows, wanted: HalfLookup, unpublished_topics: UnpublishedTopics, app: str) -> None:
        """Writes the files. Raises OSError if one cannot be read or written."""
        self._half, self._wanted, self._unpublished_topics, self._app = half, wanted, unpublished_topics, app
        files, self.reports = self._write(wanted, unpublished_topics)
        failed = {name for report in self.reports for name in report.failed}
        self._files: dict[str, list[ParquetFile]] = {}
        for file in files:
            if file.name not in failed:
                self._files.setdefault(file.name, []).append(file)
        self._unpublished = self._files.pop(unpublished.TABLE, [])
        self.names = list(self._files)

    def append(self, name: str) -> None:
        """See BatchWriter."""
        self._commit(name, self._files[name])

    def leave_unpublished(self, failed: Mapping[str, str]) -> None:
        """See BatchWriter. A second job writes the messages of the failed topics, whose files nothing commits."""
        if failed:
            more, reports = self._write(self._wanted.published(), self._unpublished_topics.of(failed))
            _prove_parked(failed, total_rows(self.reports), total_rows(reports))
            self._unpublished = [*self._unpublished, *more]
        self._commit(unpublished.TABLE, self._unpublished)

    def _commit(self, name: str, files: Sequence[ParquetFile]) -> None:
        app, wanted = f"{self._app}/{name}", self._wanted
        plan, tables = plan_versions(app, wanted.batch_id, wanted.batch_time), self._half.tables
        if not tables.commit(self._half.spark, name, files, app, wanted.batch_id, plan):
            refuse_newer(tables, name, app, wanted.batch_id, wanted.batch_time)

    def _write(
        self, wanted: HalfLookup, unpublished_topics: UnpublishedTopics
    ) -> tuple[list[ParquetFile], list[TaskReport]]:
        spark, tables, log = self._half.spark, self._half.tables, self._half.tables.log("half")
        if wanted.identity is None and log.readable():
            lists = half_reader.pieces(log.data_files(wanted.spans()), wanted)
            work = reader(lists, wanted, self._half.actions.need_bodies, tables.table_root, unpublished_topics)
            if len(lists) <= 1 and sum(piece.size for each in lists for piece in each) <= _SMALL:
                return _written(pa.Table.from_batches(work([pa.record_batch([range(len(lists))], ["id"])])))
            tasks = spark.range(0, len(lists), 1, len(lists))
        else:
            tasks, work = self._half.read(wanted), picker(wanted, tables.table_root, unpublished_topics)
        return _written(tasks.mapInArrow(work, FILES_SCHEMA).toArrow())


class SparkBatchWriter:
    """For tables that only Spark can write: a job that surveys the rows, then one for each table.

    The survey brings the rows of a small batch along: Spark then writes them without reading `half` again. Of a few
    files that the driver can read it needs no job.
    """

    def __init__(self, half: HalfRows, wanted: HalfLookup, unpublished_topics: UnpublishedTopics, app: str) -> None:
        """Surveys the rows; writes nothing."""
        self._half, self._wanted, self._unpublished_topics, self._app = half, wanted, unpublished_topics, app
        few = len(wanted.records) <= half_reader.ROWS_A_TASK
        survey = surveyor(wanted, unpublished_topics, _SMALL if few else 0)
        read = half.in_driver(wanted, _SMALL) if few else None
        if read is None:
            with without_codegen(half.spark) if few else nullcontext():
                rows = self._rows if few else self._without_body
                found = rows.mapInArrow(survey, SURVEY_SCHEMA).toArrow().to_pylist()
        else:
            found = pa.Table.from_batches(survey(read)).to_pylist()
        self.reports = [TaskReport.of(row["note"]) for row in found if row["note"] is not None]
        tables = [row for row in found if row["name"] is not None]
        self.names = sorted({row["name"] for row in tables} - {unpublished.TABLE})
        self._brought: dict[str, pa.Table] = {}
        if few and all(row["rows"] is not None for row in tables):
            self._brought = _rows([(row["name"], row["rows"]) for row in tables])

    @cached_property
    def _rows(self) -> DataFrame:
        return self._half.read(self._wanted)

    @property
    def _without_body(self) -> DataFrame:
        return self._rows.withColumn("body", F.lit(None).cast("binary"))

    def append(self, name: str) -> None:
        """See BatchWriter."""
        self._append(name, self._unpublished_topics)

    def leave_unpublished(self, failed: Mapping[str, str]) -> None:
        """See BatchWriter."""
        if failed:
            self._brought.pop(unpublished.TABLE, None)
        self._append(unpublished.TABLE, self._unpublished_topics.with_more(failed))

    def _append(self, name: str, unpublished_topics: UnpublishedTopics) -> None:
        tables, app, batch_id = self._half.tables, f"{self._app}/{name}", self._wanted.batch_id
        if name in self._brought:
            tables.append_arrow(self._half.spark, self._brought[name], name, app, batch_id)
        else:
            tables.append(self._selected(name, unpublished_topics), name, app, batch_id)

    def _selected(self, name: str, unpublished_topics: UnpublishedTopics) -> DataFrame:
        rows = self._rows
        if name.startswith(TOPIC_PREFIX):
            rows = rows.where(F.col("real_topic") == name.removeprefix(TOPIC_PREFIX))
        elif name not in ("discarded", unpublished.TABLE):
            rows = self._without_body
        return rows.mapInArrow(selector(self._wanted, name, unpublished_topics), schema_of(name))


def total_rows(reports: Sequence[TaskReport]) -> Counter[str]:
    """Total rows that the tasks report, by name as in `TaskReport.rows`."""
    total = Counter[str]()
    for report in reports:
        total.update(report.rows)
    return total


def _rows(streams: Iterable[tuple[str, bytes]]) -> dict[str, pa.Table]:
    """By table the rows of all tasks' streams."""
    parts: dict[str, list[pa.Table]] = {}
    for name, stream in streams:
        parts.setdefault(name, []).append(of_stream(stream))
    return {name: pa.concat_tables(rows) for name, rows in parts.items()}


def _written(rows: pa.Table) -> tuple[list[ParquetFile], list[TaskReport]]:
    files, notes = files_of(rows)
    return files, [TaskReport.of(note) for note in notes]


def _prove_parked(failed: Mapping[str, str], first: Mapping[str, int], second: Mapping[str, int]) -> None:
    """Raises StorageError if the second pass found other row counts than the first."""
    for topic in failed:
        name = TOPIC_PREFIX + topic
        if first[name] != second[UNPUBLISHED_PREFIX + topic]:
            raise StorageError(
                f"of {first[name]} messages for it {second[UNPUBLISHED_PREFIX + topic]} were found again", name
            )
