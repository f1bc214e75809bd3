"""Publishing a batch: a lookup of the actions in `half` yields the rows of the output tables.

The actions are integers. They are sent to the tasks that read `half`, which select exactly the rows that the segments
took (queue_id, queue_offset and store_timestamp identify a row) and write them, Arrow in and Parquet out: one pass for
all tables, no shuffle, no cache. The driver commits the files that the tasks have written, and does a small batch's
task itself.
"""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.reconcile import half_reader, rejected, unpublished
from checkback.reconcile.actions import Actions
from checkback.reconcile.batches import TABLE as BATCHES
from checkback.reconcile.batches import Written, application, batch_row
from checkback.reconcile.event_columns import identity_columns, store_us
from checkback.reconcile.group_hash import GROUP_HASH, GroupHash
from checkback.reconcile.half_lookup import HalfLookup
from checkback.reconcile.ownership import NAME, claim
from checkback.reconcile.preconditions import REPLACED_FIX
from checkback.reconcile.segment import Action
from checkback.reconcile.tasks import PARKED_PREFIX, SURVEY_SCHEMA, TaskReport, picker, reader, selector, surveyor
from checkback.reconcile.topic_tables import TopicTables, side_by_side
from checkback.spark.connect import query_id
from checkback.storage.checkpoint import read_batch
from checkback.storage.dataframes import frame, is_connect
from checkback.storage.offset_ranges import MAX_RANGES, within
from checkback.storage.parquet_files import FILES_SCHEMA, files_of
from checkback.storage.schemas import HALF, SOURCES, TOPIC_PREFIX, schema_of
from checkback.storage.seen_commits import SeenCommits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from checkback.reconcile.batch_rules import BatchRules
    from checkback.reconcile.segment import Records
    from checkback.reconcile.unpublished import Parking
    from checkback.reconcile.wake_timers import WakeTimers
    from checkback.storage.checkpoint import Batch
    from checkback.storage.parquet_files import ParquetFile
    from checkback.storage.tables import Tables

#: A batch's plans are small and fixed: adaptive query execution costs more than it saves. Set in the batch's session,
#: a clone of the query's.
_ADAPTIVE = "spark.sql.adaptive.enabled"
#: If fewer than one row in this many is wanted, Spark filters the rows with a broadcast join before Python gets them.
_FEW = 4
#: bytes of files up to which the driver does a task's work: starting a Spark job takes longer
_SMALL = 8 << 20


class BatchListener(Protocol):
    """Called after each published batch. Never raises."""

    def published(self, actions: Actions, batch_id: int, segments: Records) -> None:
        """``segments``: SEGMENT records of the segments that the batch touched."""

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
    ) -> None:
        """``decided``: the rules that decide the batches, recorded in `batches`; None = unknown."""
        self._tables = tables
        self._size = segment_size
        self._decided = decided
        self._group_hash = GROUP_HASH if decided is None else decided.group_hash
        self._observer = observer
        self._wakes = wakes
        self._topics = TopicTables(tables)
        self._flush = tables.flush_of(NAME, *SOURCES[NAME])
        self._durable: Callable[[], None] = _nothing  # makes the current batch's inputs durable, while they are not
        self._seen = SeenCommits(tables, NAME, REPLACED_FIX)
        self._claimed = tables.by_files  # with by_files, the command has claimed them
        self._concluded = False  # the first batch may be a replay

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Publish one batch of ACTIONS_SCHEMA, and the unpublished messages due for a retry; then conclude the batch.

        The actions are collected once: a second pass would run the stateful operator again.
        """
        spark, app = batch.sparkSession, query_id(batch, NAME)
        if not is_connect(batch):  # with Connect the session is shared
            spark.conf.set(_ADAPTIVE, "false")
        actions, segments = Actions.of(batch.toArrow())
        self._durable = partial(self._flush_inputs, spark, batch_id)
        written = Written()
        if len(actions.records) or self._topics.due(spark, _now()):
            written = self.publish(spark, actions, batch_id, app)
        self._conclude(spark, actions, batch_id, app, written)
        if self._observer is not None:
            self._observer.published(actions, batch_id, segments)
            self._observer.waiting(self._topics.rows)
        if self._wakes is not None:
            self._wakes.update(segments, self._topics.next_try)

    def publish(self, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> Written:
        """Publish the actions of a batch, idempotently per table by (app, batch_id). Returns what was written.

        Step 1: publish the messages in `unpublished` that are due for a retry.
        Step 2: look up the actions' rows in `half`, and append them to the tables.
        Step 3: record rejected half messages and ops in `rejected`.

        Raises StorageError if `half` no longer holds a row that a segment took; step 2 has then appended nothing.
        """
        if not self._claimed:
            self._make_durable()
            claim(spark, self._tables, app, self._size)
            self._claimed = True
        # Step 1
        late: list[str] = []
        if self._topics.due(spark, _now()):
            self._make_durable()
            late = self._topics.publish_late(spark, batch_id, self._time(spark, actions, batch_id), _now())
        # Step 2
        wanted, added = HalfLookup.of(actions, batch_id), Written()
        if len(wanted.records):
            # If half messages landed together at one offset but were read by two batches, the first batch does not
            # know of the second row: look up by identity then.
            added = self._add(spark, actions, wanted, app) or (
                self._add(spark, actions, HalfLookup.of(actions, batch_id, by_identity=True), app) or added
            )
        # Step 3
        rejected = self._reject(spark, actions, batch_id, app)
        waiting = self._parked(spark, batch_id, app) or added.unpublished
        names = added.names.union(late, ["rejected"] if rejected else [], [unpublished.TABLE] if waiting else [])
        return Written(names, rejected, waiting)

    def _make_durable(self) -> None:
        """Flush what the batch depends on, once a batch: before its first commit. Raises UnflushedError, StateError."""
        self._durable()
        self._durable = _nothing

    def _flush_inputs(self, spark: SparkSession, batch_id: int) -> None:
        self._flush()
        if self._tables.local:
            self._seen.keep(spark, _seen(read_batch(spark, self._tables.checkpoint(NAME), batch_id)))

    def _parked(self, spark: SparkSession, batch_id: int, app: str) -> int:
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
        row = batch_row(app, batch_id, batch_time, _now(), self._decided, actions.counts, written, versions)
        self._tables.append_arrow(spark, row, BATCHES, application(app), batch_id)
        self._concluded = True

    def _time(self, spark: SparkSession, actions: Actions, batch_id: int) -> int:
        """The batch's time (ms); from the offset log if the batch touched no segment."""
        return actions.batch_time or read_batch(spark, self._tables.checkpoint(NAME), batch_id).time

    def _add(self, spark: SparkSession, actions: Actions, wanted: HalfLookup, app: str) -> Written | None:
        """Step 2. Returns None, and appends nothing, if some rows can only be told apart by their identity."""
        if self._tables.by_files:
            return self._by_files(spark, actions, wanted, app)
        return self._by_spark(self._messages(spark, actions, wanted), wanted, app)

    def _messages(self, spark: SparkSession, actions: Actions, wanted: HalfLookup) -> DataFrame:
        """The rows of `half` that include the wanted ones, in as few partitions as the work allows.

        Columns: those of `half`, and with ``wanted.identity`` group_hash and transaction_hash. Bodies are null, and
        not read, if no action needs one.
        """
        ranges = actions.ranges(self._size, MAX_RANGES)
        half = self._tables.read(spark, "half").where(within(ranges, "queue_offset"))
        if sum(box.offsets for box in ranges) > _FEW * len(wanted.records):
            half = half.join(F.broadcast(_offsets(spark, wanted)), on=["queue_id", "queue_offset"], how="left_semi")
        names: list[str] = list(HALF.names)
        if wanted.identity is not None:
            half = one_of_each(half, self._group_hash)
            names += ["group_hash", "transaction_hash"]
        if not actions.need_bodies:
            half = half.withColumn("body", F.lit(None).cast("binary"))
        return half.select(*names).coalesce(-(-len(wanted.records) // half_reader.ROWS_A_TASK))

    def _by_files(self, spark: SparkSession, actions: Actions, wanted: HalfLookup, app: str) -> Written | None:
        """Write the files of all tables in one job; then commit them table by table, `unpublished` last.

        A second job writes the messages of topics whose table could not be committed to `unpublished`.
        """
        parking = self._topics.parking(spark, app)
        with ThreadPoolExecutor(max_workers=1) as pool:
            durable = pool.submit(self._make_durable)
            try:
                files, notes = self._files(spark, actions, wanted, parking)
            finally:
                durable.result()  # if both fail, its error has the cause
        if not self._prove(wanted, [note.found for note in notes]):
            return None
        failed = {name: why for note in notes for name, why in note.failed.items()}
        of_table: dict[str, list[ParquetFile]] = {}
        for file in files:
            if file.name not in failed:
                of_table.setdefault(file.name, []).append(file)
        waiting = of_table.pop(unpublished.TABLE, [])

        def commit(name: str) -> str | None:
            work = partial(self._tables.commit, spark, name, of_table[name], f"{app}/{name}", wanted.batch_id)
            return self._commit(spark, name, work)

        failed |= self._topics.put_off(spark, of_table)
        ready = [name for name in of_table if name not in failed]
        failed |= _failures(ready, side_by_side(commit, ready))
        rows = _sum(notes)
        if failed:
            more, found = self._files(spark, actions, wanted.committed(), parking.of(_by_topic(failed)))
            _prove_parked(failed, rows, _sum(found))
            waiting += more
        if waiting:
            name = unpublished.TABLE
            self._tables.commit(spark, name, waiting, f"{app}/{name}", wanted.batch_id)
        return self._added(spark, wanted, app, of_table, rows, failed)

    def _files(
        self, spark: SparkSession, actions: Actions, wanted: HalfLookup, parking: Parking
    ) -> tuple[list[ParquetFile], list[TaskReport]]:
        log = self._tables.log("half")
        if wanted.identity is None and log.readable():
            lists = half_reader.pieces(log.data_files(wanted.spans()), wanted)
            work = reader(lists, wanted, actions.need_bodies, self._tables.root, parking, self._tables.sync)
            if sum(piece.size for each in lists for piece in each) <= _SMALL and len(lists) <= 1:
                return _read(work([pa.record_batch([pa.array(range(len(lists)))], ["id"])]))
            tasks = spark.range(0, len(lists), 1, max(1, len(lists)))
        else:
            messages = self._messages(spark, actions, wanted)
            tasks, work = messages, picker(wanted, self._tables.root, parking, self._tables.sync)
        return _read(tasks.mapInArrow(work, FILES_SCHEMA).toArrow().to_batches())

    def _by_spark(self, messages: DataFrame, wanted: HalfLookup, app: str) -> Written | None:
        """For tables that only Spark can write: a job that surveys the rows, then one per table, `unpublished` last."""
        spark = messages.sparkSession
        self._make_durable()
        parking = self._topics.parking(spark, app)
        seen = messages.withColumn("body", F.lit(None).cast("binary"))
        found = seen.mapInArrow(surveyor(wanted, parking), SURVEY_SCHEMA).toArrow().to_pylist()
        notes = [TaskReport.of(row["note"]) for row in found if row["note"] is not None]
        if not self._prove(wanted, [note.found for note in notes]):
            return None
        names = sorted({row["name"] for row in found if row["name"] is not None} - {unpublished.TABLE})

        def append(name: str, parking: Parking = parking) -> None:
            mine = messages
            if name.startswith(TOPIC_PREFIX):
                mine = messages.where(F.col("real_topic") == name.removeprefix(TOPIC_PREFIX))
            elif name not in ("discarded", unpublished.TABLE):
                mine = seen
            rows = mine.mapInArrow(selector(wanted, name, parking), schema_of(name))
            self._tables.append(rows, name, f"{app}/{name}", wanted.batch_id)

        failed = self._topics.put_off(spark, names)
        ready = [name for name in names if name not in failed]
        failed |= _failures(ready, side_by_side(lambda name: self._commit(spark, name, partial(append, name)), ready))
        rows = _sum(notes)
        if failed or any(name.startswith(PARKED_PREFIX) for name in rows):
            append(unpublished.TABLE, parking.with_more(_by_topic(failed)))
        return self._added(spark, wanted, app, names, rows, failed)

    def _commit(self, spark: SparkSession, name: str, work: Callable[[], object]) -> str | None:
        """Commit to a table. Returns the reason if a topic table cannot take it."""
        if name.startswith(TOPIC_PREFIX):
            return self._topics.attempt(spark, name, work)
        work()
        return None

    def _added(
        self,
        spark: SparkSession,
        wanted: HalfLookup,
        app: str,
        names: Iterable[str],
        rows: Mapping[str, int],
        failed: Mapping[str, str],
    ) -> Written:
        """Summarise step 2 once all tables are committed, and register the parked messages for a retry."""
        parked = {
            name.removeprefix(PARKED_PREFIX): count for name, count in rows.items() if name.startswith(PARKED_PREFIX)
        }
        parked |= {topic: rows[TOPIC_PREFIX + topic] for topic in _by_topic(failed)}
        self._topics.park(spark, wanted, app, parked, _by_topic(failed))
        written = {name for name in names if name not in failed} | ({unpublished.TABLE} if parked else set())
        return Written(frozenset(written), unpublished=sum(parked.values()))

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
        half = self._tables.read(spark, "half").where(within(ranges, "queue_offset"))
        rows = rejected.action_rows(spark, about)
        found = []
        if about.count(Action.REJECT_OP, Action.LATE_OP):
            op = self._tables.read(spark, "op").where(within(ranges, "half_offset"))
            found.append(rejected.rejected_ops(rows, op, half, self._group_hash))
        if about.count(Action.REJECT_HALF):
            found.append(rejected.rejected_halves(rows, half, self._group_hash))
        # Counted here, because a replay that finds them committed could not tell the number. A late op that only
        # repeats the one that decided its half leaves no row.
        both = reduce(DataFrame.unionByName, found).persist()
        try:
            if count := both.count():
                self._tables.append(both, "rejected", f"{app}/rejected", batch_id)
        finally:
            both.unpersist()
        return count


def one_of_each(half: DataFrame, group_hash: GroupHash = GROUP_HASH) -> DataFrame:
    """`half` deduplicated by offset, store_timestamp and identity, deterministically."""
    key = ["queue_id", "queue_offset", "store_us", "group_hash", "transaction_hash"]
    names = half.columns
    half = half.select("*", store_us(), *identity_columns(group_hash))
    order = Window.partitionBy(*key).orderBy(F.xxhash64(F.to_json(F.struct(*names))))
    return half.withColumn("_n", F.row_number().over(order)).where(F.col("_n") == 1).drop("_n", "store_us")


def _offsets(spark: SparkSession, wanted: HalfLookup) -> DataFrame:
    fields = {"queue_id": wanted.records["queue_id"], "queue_offset": wanted.records["offset"]}
    rows = pa.table({name: pa.array(values) for name, values in fields.items()})
    return frame(spark, rows)


def _seen(batch: Batch) -> dict[str, int]:
    """The versions up to which a batch has read its sources; without `ticks`, which only reconcile writes."""
    positions = zip(SOURCES[NAME], batch.positions, strict=False)
    return {name: at.seen for name, at in positions if at is not None and at.seen >= 0 and name != "ticks"}


def _nothing() -> None:
    """The batch's inputs are durable."""


def _now() -> int:
    return round(time.time() * 1000)


def _read(rows: Iterable[pa.RecordBatch]) -> tuple[list[ParquetFile], list[TaskReport]]:
    files, notes = files_of(pa.Table.from_batches(rows))
    return files, [TaskReport.of(note) for note in notes]


def _failures(names: Iterable[str], found: Iterable[str | None]) -> dict[str, str]:
    return {name: why for name, why in zip(names, found, strict=True) if why is not None}


def _by_topic(failed: Mapping[str, str]) -> dict[str, str]:
    return {name.removeprefix(TOPIC_PREFIX): why for name, why in failed.items()}


def _sum(notes: Iterable[TaskReport]) -> Counter[str]:
    """Total rows reported by the tasks, by name."""
    total = Counter[str]()
    for note in notes:
        total.update(note.rows)
    return total


def _prove_parked(failed: Iterable[str], first: Mapping[str, int], second: Mapping[str, int]) -> None:
    """Raises StorageError if the second pass found other row counts than the first."""
    for name in failed:
        topic = name.removeprefix(TOPIC_PREFIX)
        if first[name] != second[PARKED_PREFIX + topic]:
            raise StorageError(
                f"of {first[name]} messages for it {second[PARKED_PREFIX + topic]} were found again", name
            )
