"""Publishing a batch: a lookup of the actions in `half` yields the rows of the output tables.

The actions are integers. They are sent to the tasks that read `half`, which select exactly the rows that the segments
took (queue_id, queue_offset and store_timestamp identify a row) and write them, Arrow in and Parquet out: one pass for
all tables, no shuffle, no cache. The driver commits the files that the tasks have written, and does a small batch's
task itself.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from checkback import tracing
from checkback.errors import StorageError
from checkback.messages.trace_context import TRACEPARENT
from checkback.reconcile.checkpoint_owner import NAME, claim
from checkback.reconcile.checkpointed_rules import HALF_BYTES
from checkback.reconcile.publish import rejected, unpublished
from checkback.reconcile.publish.batch_row import NOT_KNOWN, READ, Written, application, batch_row, read_ranges
from checkback.reconcile.publish.batch_row import TABLE as BATCHES
from checkback.reconcile.publish.batch_writers import BatchWriter, FileBatchWriter, SparkBatchWriter, total_rows
from checkback.reconcile.publish.half_lookup import HalfLookup
from checkback.reconcile.publish.half_reader import ROWS_A_TASK
from checkback.reconcile.publish.half_rows import HalfRows
from checkback.reconcile.publish.tasks import UNPUBLISHED_PREFIX
from checkback.reconcile.publish.topic_tables import TopicTables, side_by_side
from checkback.reconcile.records.actions import Actions
from checkback.reconcile.records.segment_records import Action
from checkback.reconcile.start.preconditions import REPLACED_FIX
from checkback.reconcile.state.processor import BEHIND
from checkback.spark.connect import query_id
from checkback.storage.checkpoints.checkpoint import numbers, plan_versions, read_batch, refuse_other_plan
from checkback.storage.checkpoints.seen_commits import SeenCommits
from checkback.storage.dataframes import compile_plans, is_connect
from checkback.storage.files import filesystem
from checkback.storage.log.commit_reader import MostFiles, may_be_cut_off
from checkback.storage.offset_ranges import MAX_RANGES, within
from checkback.storage.schemas import SOURCES, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from checkback.reconcile.checkpointed_rules import BatchRules
    from checkback.reconcile.publish.batch_row import ReadRange
    from checkback.reconcile.records.segment_records import Records
    from checkback.reconcile.state.wake_timers import WakeTimers
    from checkback.storage.checkpoints.checkpoint import Batch
    from checkback.storage.tables import Tables

#: A batch's plans are small and fixed: adaptive query execution costs more than it saves. Set in the query's session,
#: a clone that it has for all its batches.
_ADAPTIVE = "spark.sql.adaptive.enabled"
#: An available-now run ends where the tables end when it starts. After so many seconds more may have landed.
_RECENT = 10.0
#: file in the checkpoint: the numbers of the last batches that are late in such a run
_LATE = "late"


class BatchListener(Protocol):
    """Called after each published batch. Never raises."""

    def published(self, actions: Actions, batch_id: int, segments: Records) -> None:
        """``segments``: SEGMENT records of the segments that the batch touched."""

    def behind(self, batch_id: int) -> None:
        """The batch may leave ops unread, and therefore checks and delivers nothing."""

    def waiting(self, rows: int) -> None:
        """``rows``: number of committed messages that wait for their topic table."""


class Publisher:
    """Writes the batches of the reconcile query; foreachBatch calls it.

    Idempotent: Delta's txnAppId is the query id and the table's name, txnVersion the batch id, so a replayed batch
    skips the tables that have it.
    """

    def __init__(
        self,
        tables: Tables,
        segment_size: int,
        decided: BatchRules | None = None,
        observer: BatchListener | None = None,
        wakes: WakeTimers | None = None,
        restored: Mapping[str, int] | None = None,
        available_now: bool = False,
        late: int | None = None,
    ) -> None:
        """``decided``: the rules that decide the batches, recorded in `batches`; None = unknown.

        ``restored``: of a rebuilt checkpoint, by source the first version that it reads. ``available_now``: the query's
        trigger. ``late``: see `late_batch`.
        """
        self._tables = tables
        self._size = segment_size
        self._decided = decided
        self._observer = observer
        self._wakes = wakes
        self._restored = restored
        self._late_from = time.monotonic() + _RECENT if available_now else None
        self._late = late
        self._planned: dict[int, Batch] = {}  # of the offset log: this batch's entry, and that of the one before
        self._topics = TopicTables(tables)
        self._flush = tables.flush_of(NAME, *SOURCES[NAME])
        self._durable: Callable[[], None] = _nothing  # makes the current batch's inputs durable, while they are not
        self._seen = SeenCommits(tables, NAME, REPLACED_FIX)
        self._compiled: bool | None = None  # whether the plan of the next batch is; None = before the first one
        self._claimed = tables.by_files  # with by_files, the command has claimed them
        self._concluded = False  # the first batch may be a replay

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Publish one batch of ACTIONS_SCHEMA, and the unpublished messages due for a retry; then conclude the batch.

        The actions are collected once: a second pass would run the stateful operator again.
        """
        with tracing.reconciling(batch_id) if tracing.loaded() else nullcontext():
            self._publish_batch(batch, batch_id)

    def _publish_batch(self, batch: DataFrame, batch_id: int) -> None:
        self._tables.guard()
        spark, app = batch.sparkSession, query_id(batch, NAME)
        actions, segments = self._collect(batch, spark, batch_id)
        self._durable = partial(self._flush_inputs, spark, batch_id, actions.batch_time)
        written = Written()
        if len(actions.records) or self._topics.due(spark, _now()):
            written = self.publish(spark, actions, batch_id, app)
        self._conclude(spark, actions, batch_id, app, written)
        if self._observer is not None:
            self._observer.published(actions, batch_id, segments)
            self._observer.waiting(self._topics.rows)
        if self._wakes is not None:
            self._wakes.update(segments, self._topics.next_try)

    def _collect(self, batch: DataFrame, spark: SparkSession, batch_id: int) -> tuple[Actions, Records]:
        """The batch's actions and SEGMENT records. Decides whether the next batch's plan is compiled.

        Spark makes and compiles code for each batch anew, which takes a small one a fifth of its time, and saves a
        tenth of a large one's.
        """
        if is_connect(batch):  # the session is shared
            return Actions.of(batch.toArrow())
        if self._compiled is None:
            spark.conf.set(_ADAPTIVE, "false")
        behind = self._is_behind(spark, batch_id)
        spark.sparkContext.setLocalProperty(BEHIND, "yes" if behind else "no")
        if behind and self._observer is not None:
            self._observer.behind(batch_id)
        actions, segments = Actions.of(batch.toArrow())
        many = len(actions.records) > ROWS_A_TASK
        if many != self._compiled:
            compile_plans(spark, many)
            self._compiled = many
        return actions, segments

    def _is_behind(self, spark: SparkSession, batch_id: int) -> bool:
        """True if half messages, or ops on those that were read, may have landed that no batch has read.

        Such a batch checks and delivers nothing, and rejects no op for want of its half message. So does a replay: it
        follows from offsets and log, or is noted before the batch is planned.
        """
        most = None if self._decided is None else self._decided.most_ops
        if most is None:
            return False
        if batch_id == self._late:
            return True
        read = self._read(spark, batch_id) or {}
        self._planned.pop(batch_id, None)  # whether it is this process's plan is to be seen after the batch
        for name, limit in (("half", MostFiles(most.files, HALF_BYTES)), ("op", most)):
            if name not in read:  # it begins with the table as it was
                return True
            begin, end = read[name][:2], read[name][2:]
            if begin != end and may_be_cut_off(self._tables.location(name), begin, end, limit):
                return True
        return False

    def _note_late(self, spark: SparkSession, batch_id: int) -> None:
        """Note whether the next batch is late, and that this one was: until Spark has committed it, it may come again.

        Not by the batches' times: a replay may be on a machine whose clock is behind.
        """
        late = self._late_from is not None and time.monotonic() >= self._late_from
        if late and self._decided is not None and self._decided.most_ops is not None:
            mine = [batch_id] if batch_id == self._late else []
            self._late = batch_id + 1
            self._tables.guard()
            filesystem.write(spark, _late_note(self._tables), " ".join(map(str, [*mine, self._late])))
        else:
            self._late = None

    def publish(self, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> Written:
        """Publish the actions of a batch, idempotently per table by (app, batch_id). Returns what was written.

        Step 1: publish the messages in `unpublished` that are due for a retry.
        Step 2: look up the actions' rows in `half`, and append them to the tables.
        Step 3: record rejected half messages and ops in `rejected`.

        Raises StorageError if `half` no longer holds a row that a segment took; step 2 has then appended nothing.
        """
        if not self._claimed:
            self._make_durable()
            # In a catalog no lock keeps checkpoints in different folders apart: one may have claimed since the start.
            # A rebuilt one takes the tables from the one that is lost.
            new = self._restored is None and not self._tables.readable
            claim(spark, self._tables, app, self._size, if_unowned=new)
            self._claimed = True
        # Step 1
        late: list[str] = []
        if self._topics.due(spark, _now()):
            self._make_durable()
            late = self._topics.publish_unpublished(spark, app, batch_id, self._time(spark, actions, batch_id), _now())
        # Step 2
        links = tracing.LINKS_MAX if tracing.loaded() else 0
        wanted, added = HalfLookup.of(actions, batch_id, links=links), Written()
        if len(wanted.records):
            # If half messages landed together at one offset but were read by two batches, the first batch does not
            # know of the second row: look up by identity then.
            added = self._add(spark, actions, wanted, app) or (
                self._add(spark, actions, HalfLookup.of(actions, batch_id, by_identity=True, links=links), app) or added
            )
        # Step 3
        rejected = self._reject(spark, actions, batch_id, app)
        waiting = self._unpublished(spark, batch_id, app) or added.unpublished
        names = added.names.union(late, ["rejected"] if rejected else [], [unpublished.TABLE] if waiting else [])
        return Written(names, rejected, waiting)

    def _make_durable(self) -> None:
        """Flush what the batch depends on, once a batch: before its first commit.

        Raises UnflushedError, StateError, FencedError if another process has planned the batch.
        """
        self._durable()
        self._durable = _nothing

    def _flush_inputs(self, spark: SparkSession, batch_id: int, batch_time: int) -> None:
        self._flush()
        if self._tables.readable:
            entry = self._entry(spark, batch_id)
            refuse_other_plan(entry, batch_time, self._tables.checkpoint(NAME))
            self._seen.keep(spark, _seen(entry))

    def _unpublished(self, spark: SparkSession, batch_id: int, app: str) -> int:
        """Rows in `unpublished` from an interrupted first attempt at this batch; tables may be repaired since."""
        name = unpublished.TABLE
        if self._concluded or self._tables.last_version(spark, name, f"{app}/{name}") != batch_id:
            return 0
        mine = (F.col("application") == app) & (F.col("batch_id") == batch_id)
        return self._tables.read(spark, name).where(mine).count()

    def _conclude(self, spark: SparkSession, actions: Actions, batch_id: int, app: str, written: Written) -> None:
        """Commit the batch's row in `batches`: the last commit of every batch."""
        self._make_durable()
        batch_time, names = self._time(spark, actions, batch_id), sorted(written.names)
        versions = dict(zip(names, side_by_side(partial(self._tables.committed_version, spark), names), strict=True))
        versions |= dict.fromkeys(self._topics.in_doubt - written.names, NOT_KNOWN)
        row = batch_row(
            *(app, batch_id, batch_time, _now(), self._decided, actions.counts, written, versions),
            read=self._read(spark, batch_id),
            restored=self._restored_sources() if batch_id == 0 else None,
        )
        plan = plan_versions(application(app), batch_id, batch_time)
        self._tables.append_arrow(spark, row, BATCHES, application(app), batch_id, plan)
        self._topics.concluded(spark)
        self._note_late(spark, batch_id)
        self._concluded = True

    def _time(self, spark: SparkSession, actions: Actions, batch_id: int) -> int:
        """The batch's time (ms); from the offset log if the batch touched no segment."""
        return actions.batch_time or self._entry(spark, batch_id).time

    def _read(self, spark: SparkSession, batch_id: int) -> dict[str, ReadRange] | None:
        """What the batch has read; None if the offset log does not tell."""
        try:
            before = self._entry(spark, batch_id - 1) if batch_id else None
            return read_ranges(self._entry(spark, batch_id), before, self._restored)
        except StorageError:  # perhaps Spark has deleted the entry of the batch before
            return None

    def _restored_sources(self) -> dict[str, int] | None:
        return None if self._restored is None else {name: self._restored[name] for name in READ}

    def _entry(self, spark: SparkSession, batch_id: int) -> Batch:
        """A batch's entry in the offset log, read once. Raises StorageError."""
        if batch_id not in self._planned:
            found = read_batch(spark, self._tables.checkpoint(NAME), batch_id)
            self._planned = {**{n: one for n, one in self._planned.items() if abs(n - batch_id) <= 1}, batch_id: found}
        return self._planned[batch_id]

    def _add(self, spark: SparkSession, actions: Actions, wanted: HalfLookup, app: str) -> Written | None:
        """Step 2: find and write the rows, then commit them table by table, `unpublished` last.

        Returns None, and commits nothing, if some rows can only be told apart by their identity.
        """
        half = HalfRows(spark, self._tables, actions, self._size)
        unpublished_topics = self._topics.unpublished_topics(spark, app)
        kind = FileBatchWriter if self._tables.by_files else SparkBatchWriter
        with ThreadPoolExecutor(max_workers=1) as pool:
            durable = pool.submit(self._make_durable)
            try:
                writer: BatchWriter = kind(half, wanted, unpublished_topics, app)
            finally:
                durable.result()  # if both fail, its error has the cause
        if not self._prove(wanted, [report.found for report in writer.reports]):
            return None

        if wanted.links:
            tracing.link({TRACEPARENT: each} for report in writer.reports for each in report.traces)

        def commit(name: str) -> str | None:
            work = partial(writer.append, name)
            return self._topics.attempt(spark, name, work) if name.startswith(TOPIC_PREFIX) else work()

        failed = {name: why for report in writer.reports for name, why in report.failed.items()}
        failed |= self._topics.put_off(spark, writer.names)
        ready = [name for name in writer.names if name not in failed]
        outcomes = zip(ready, side_by_side(commit, ready), strict=True)
        failed |= {name: why for name, why in outcomes if why is not None}
        rows = total_rows(writer.reports)
        unwritten = {name.removeprefix(TOPIC_PREFIX): why for name, why in failed.items()}
        if failed or any(name.startswith(UNPUBLISHED_PREFIX) for name in rows):
            writer.leave_unpublished(unwritten)
        unpublished_rows = {
            name.removeprefix(UNPUBLISHED_PREFIX): count
            for name, count in rows.items()
            if name.startswith(UNPUBLISHED_PREFIX)
        }
        unpublished_rows |= {topic: rows[TOPIC_PREFIX + topic] for topic in unwritten}
        self._topics.leave_unpublished(spark, wanted, app, unpublished_rows, unwritten)
        written = {name for name in writer.names if name not in failed} | (
            {unpublished.TABLE} if unpublished_rows else set()
        )
        return Written(frozenset(written), unpublished=sum(unpublished_rows.values()))

    def _prove(self, wanted: HalfLookup, notes: Iterable[bytes]) -> bool:
        """True if each action matched exactly one row. False if some matched several without their identity.

        Raises StorageError if an action matched none, or several even by identity.
        """
        missing, doubled = wanted.missing(notes)
        if doubled and not missing and wanted.identity is None:
            return False
        if missing or doubled:
            raise StorageError(
                f"of {len(wanted.records)} half messages that a batch acts on, {missing} are not there as they landed "
                f"and {doubled} more than once",
                where=self._tables.location("half"),
                fix="rows were removed from the table or changed in it: put its newest good state back, "
                "or run `checkback rebuild`",
            )
        return True

    def _reject(self, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> int:
        """Step 3. Returns the number of rows that the batch has in `rejected`."""
        about = actions.only(Action.REJECT_OP, Action.LATE_OP, Action.REJECT_HALF)
        if not len(about.records):
            return 0
        self._make_durable()
        ranges = about.ranges(self._size, MAX_RANGES)
        half = self._tables.read(spark, "half").where(within(ranges))
        rows = rejected.action_rows(spark, about)
        found = []
        if about.count(Action.REJECT_OP, Action.LATE_OP):
            op = self._tables.read(spark, "op").where(within(ranges))
            found.append(rejected.rejected_ops(rows, op, half))
        if about.count(Action.REJECT_HALF):
            found.append(rejected.rejected_halves(rows, half))
        # Counted here, because a replay that finds them committed could not tell the number. A late op that only
        # repeats the one that decided its half leaves no row.
        both = reduce(DataFrame.unionByName, found).persist()
        try:
            if count := both.count():
                name = f"{app}/rejected"
                plan = plan_versions(name, batch_id, actions.batch_time)
                self._tables.append(both, "rejected", name, batch_id, plan)
        finally:
            both.unpersist()
        return count


def _seen(batch: Batch) -> dict[str, int]:
    """The versions up to which a batch has read its sources; without `ticks`, which only reconcile writes."""
    positions = zip(SOURCES[NAME], batch.positions, strict=False)
    return {name: at.seen for name, at in positions if at is not None and at.seen >= 0 and name != "ticks"}


def _nothing() -> None:
    """The batch's inputs are durable."""


def late_batch(spark: SparkSession, tables: Tables) -> int | None:
    """The number of the newest planned batch if the run that planned it noted it as late. Raises StorageError.

    Others that are noted were not planned, and are not late in the run that plans them: the note forgets them.
    """
    note = _late_note(tables)
    if not filesystem.exists(spark, note):
        return None
    newest, noted = max(numbers(spark, f"{tables.checkpoint(NAME)}/offsets"), default=-1), filesystem.text(spark, note)
    late = newest if str(newest) in noted.split() else None
    left = "" if late is None else str(late)
    if noted != left:
        filesystem.write(spark, note, left)
    return late


def _late_note(tables: Tables) -> str:
    return f"{tables.checkpoint(NAME)}/{_LATE}"


def _now() -> int:
    return round(time.time() * 1000)
