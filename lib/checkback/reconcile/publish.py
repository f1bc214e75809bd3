"""Publishing a batch: the actions, looked up in `half`, become rows of the tables.

The actions are integers. They go to the tasks that read `half`, which pick the very rows that the segments took
(queue_id, queue_offset and store_timestamp name a row) and write them, Arrow in and Parquet out: one pass for all
tables, no shuffle, no cache. The driver commits what the tasks have written.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.connect import is_connect, query_id
from checkback.errors import StorageError
from checkback.files import FILES_SCHEMA, files_of
from checkback.reconcile import halves, rejected
from checkback.reconcile.actions import Actions
from checkback.reconcile.claims import NAME, claim
from checkback.reconcile.columns import identity_columns, store_us
from checkback.reconcile.ranges import MAX_RANGES, within
from checkback.reconcile.segment import Action
from checkback.reconcile.tasks import SURVEY_SCHEMA, picker, reader, selector, surveyor
from checkback.reconcile.wanted import Wanted
from checkback.schemas import HALF, SOURCES, TOPIC_PREFIX, schema_of
from checkback.session import frame

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from checkback.files import File
    from checkback.observe.observer import Observer
    from checkback.reconcile.wakes import Wakes
    from checkback.tables import Tables

#: The plans of a batch are small and known beforehand: planning them adaptively, stage by stage, costs more than it
#: brings. Set in the batch's own session, a clone of the query's.
_ADAPTIVE = "spark.sql.adaptive.enabled"
#: Where less than one row in so many is wanted, Spark drops the others before they go to Python.
_FEW = 4


class Publisher:
    """Writes the batches of the reconcile query; foreachBatch calls it.

    Delta's application id is the query's id and the table's name, its version the batch id: a batch that is run again
    leaves out the tables that have it.
    """

    def __init__(
        self, tables: Tables, segment_size: int, observer: Observer | None = None, wakes: Wakes | None = None
    ) -> None:
        self._tables = tables
        self._size = segment_size
        self._observer = observer
        self._wakes = wakes
        self._flush = tables.flush_of(NAME, *SOURCES[NAME])
        self._made: set[str] = set()
        self._claimed = tables.by_files  # by the command, then

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Publish one batch of ACTIONS_SCHEMA.

        The actions are fetched once: a second pass would run the stateful operator again.
        """
        if not is_connect(batch):  # there it is the session of all
            batch.sparkSession.conf.set(_ADAPTIVE, "false")
        actions, segments = Actions.of(batch.toArrow())
        self._flush()  # its state is computed, and nothing of it is in a table yet
        if len(actions.records):
            self.publish(batch.sparkSession, actions, batch_id, query_id(batch, NAME))
        if self._observer is not None:
            self._observer.published(actions, batch_id, segments)
        if self._wakes is not None:
            self._wakes.update(segments)

    def publish(self, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> None:
        """Publish the actions of a batch: (app, batch_id) once in each table.

        Step 1: pick the rows that they are about from `half`, and add them to the tables.
        Step 2: record what was not taken in `rejected`.

        Raises StorageError when `half` no longer holds a row that a segment took; then nothing has been added.
        """
        if not self._claimed:
            claim(spark, self._tables, app, self._size)
            self._claimed = True
        # Step 1
        wanted = Wanted.of(actions, batch_id)
        if len(wanted.records) and not self._add(spark, actions, wanted, app):
            # Half messages that landed together at one offset, and were read by two batches: the first of them does
            # not know of the second row.
            self._add(spark, actions, Wanted.of(actions, batch_id, by_identity=True), app)
        # Step 2
        self._reject(spark, actions, batch_id, app)

    def _add(self, spark: SparkSession, actions: Actions, wanted: Wanted, app: str) -> bool:
        """Step 1; False, and nothing is added, when only their identity can tell some rows apart."""
        if self._tables.by_files:
            return self._by_files(spark, actions, wanted, app)
        return self._by_spark(self._messages(spark, actions, wanted), wanted, app)

    def _messages(self, spark: SparkSession, actions: Actions, wanted: Wanted) -> DataFrame:
        """The rows of `half` among which the wanted ones are, by as few tasks as there is work for.

        Columns: those of `half`, and with ``wanted.identity`` group_hash and transaction_hash. Bodies are null, and
        not even read, when nobody needs one.
        """
        ranges = actions.ranges(self._size, MAX_RANGES)
        half = self._tables.read(spark, "half").where(within(ranges, "queue_offset"))
        if sum(span.last - span.first + 1 for span in ranges) > _FEW * len(wanted.records):
            half = half.join(F.broadcast(_offsets(spark, wanted)), on=["queue_id", "queue_offset"], how="left_semi")
        names: list[str] = list(HALF.names)
        if wanted.identity is not None:
            half = one_of_each(half)
            names += ["group_hash", "transaction_hash"]
        if not actions.need_bodies:
            half = half.withColumn("body", F.lit(None).cast("binary"))
        return half.select(*names).coalesce(-(-len(wanted.records) // halves.ROWS_A_TASK))

    def _by_files(self, spark: SparkSession, actions: Actions, wanted: Wanted, app: str) -> bool:
        """One job writes the files of all tables; then each table's are committed."""
        log = self._tables.log("half")
        if wanted.identity is None and log.readable():
            lists = halves.pieces(log.data_files(wanted.spans()), wanted)
            tasks = spark.range(0, len(lists), 1, max(1, len(lists)))
            work = reader(lists, wanted, actions.need_bodies, self._tables.root, self._tables.sync)
        else:
            tasks, work = self._messages(spark, actions, wanted), picker(wanted, self._tables.root, self._tables.sync)
        files, notes = files_of(tasks.mapInArrow(work, FILES_SCHEMA).toArrow())
        if not self._prove(wanted, notes):
            return False
        of_table: dict[str, list[File]] = {}
        for file in files:
            of_table.setdefault(file.name, []).append(file)
        self._make(spark, of_table)

        def commit(name: str) -> None:
            self._tables.commit(spark, name, of_table[name], f"{app}/{name}", wanted.batch_id)

        _side_by_side(commit, of_table)
        return True

    def _by_spark(self, messages: DataFrame, wanted: Wanted, app: str) -> bool:
        """A job that looks what there is, then one a table: for tables that only Spark can write."""
        seen = messages.withColumn("body", F.lit(None).cast("binary"))
        found = seen.mapInArrow(surveyor(wanted), SURVEY_SCHEMA).toArrow().to_pylist()
        if not self._prove(wanted, [row["note"] for row in found if row["note"] is not None]):
            return False
        names = sorted({row["name"] for row in found if row["name"] is not None})
        self._make(messages.sparkSession, names)

        def append(name: str) -> None:
            mine = messages
            if name.startswith(TOPIC_PREFIX):
                mine = messages.where(F.col("real_topic") == name.removeprefix(TOPIC_PREFIX))
            elif name != "discarded":
                mine = seen
            rows = mine.mapInArrow(selector(wanted, name), schema_of(name))
            self._tables.append(rows, name, f"{app}/{name}", wanted.batch_id)

        _side_by_side(append, names)
        return True

    def _prove(self, wanted: Wanted, notes: Iterable[bytes]) -> bool:
        """Has each action found its row, and only one? False: some found several, by their numbers alone.

        Raises StorageError when one has found none, or several by their identity, too.
        """
        missing, doubled = wanted.missing(notes)
        if doubled and not missing and wanted.identity is None:
            return False
        if missing or doubled:
            raise StorageError(
                f"of {len(wanted.records)} half messages that a batch acts on, {missing} are not there as they landed "
                f"and {doubled} more than once",
                where=self._tables.location("half"),
                fix="rows were removed from the table or changed in it: restore it to its last good version",
            )
        return True

    def _make(self, spark: SparkSession, names: Iterable[str]) -> None:
        """Make the topic tables that are new."""
        new = [name for name in names if name.startswith(TOPIC_PREFIX) and name not in self._made]
        self._tables.create(spark, *new)
        self._made.update(new)

    def _reject(self, spark: SparkSession, actions: Actions, batch_id: int, app: str) -> None:
        about = actions.only(Action.REJECT_OP, Action.LATE_OP, Action.REJECT_HALF)
        if not len(about.records):
            return
        ranges = about.ranges(self._size, MAX_RANGES)
        half = self._tables.read(spark, "half").where(within(ranges, "queue_offset"))
        rows = rejected.action_rows(spark, about)
        found = []
        if about.count(Action.REJECT_OP, Action.LATE_OP):
            op = self._tables.read(spark, "op").where(within(ranges, "half_offset"))
            found.append(rejected.rejected_ops(rows, op, half))
        if about.count(Action.REJECT_HALF):
            found.append(rejected.rejected_halves(rows, half))
        self._tables.append(reduce(DataFrame.unionByName, found), "rejected", f"{app}/rejected", batch_id)


def one_of_each(half: DataFrame) -> DataFrame:
    """`half` with one row of those that agree in offset, store_timestamp and identity: always the same one."""
    key = ["queue_id", "queue_offset", "store_us", "group_hash", "transaction_hash"]
    names = half.columns
    half = half.select("*", store_us(), *identity_columns())
    order = Window.partitionBy(*key).orderBy(F.xxhash64(F.to_json(F.struct(*names))))
    return half.withColumn("_n", F.row_number().over(order)).where(F.col("_n") == 1).drop("_n", "store_us")


def _offsets(spark: SparkSession, wanted: Wanted) -> DataFrame:
    fields = {"queue_id": wanted.records["queue_id"], "queue_offset": wanted.records["offset"]}
    rows = pa.table({name: pa.array(values) for name, values in fields.items()})
    return frame(spark, rows)


def _side_by_side(work: Callable[[str], None], names: Iterable[str]) -> None:
    with ThreadPoolExecutor(max_workers=8) as pool:
        list(pool.map(work, names))
