"""All tables at fixed versions, such that every batch is either completely included or completely left out.

A batch commits its tables side by side, not atomically: one in progress may be in some tables and not in others. And
batches go on while an audit opens one table after the other. Therefore, in this order:

1. Read the last completed batch (``commits`` of the checkpoint), and the batches with a row in `batches`, which is
   written last. Everything that these and earlier batches wrote is visible.
2. Fix the versions of the tables that batches write, then those of `half` and `op`, so that these contain everything
   that the others refer to.
3. Read the batches that got a row since, and those begun since (``offsets`` of the checkpoint). Their rows, by batch
   id and batch time, are left out. No other batch can have written: a batch is in ``offsets`` before it begins.

Without a checkpoint only its rows reveal a batch in progress: its id follows the last one in `batches`, or is 0 after a
rebuild (`batch_audit`). Batch ids alone are not enough, as another checkpoint restarts them; nor are times, as clocks
are set back.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.spark_engine import SparkEngine
from checkback.inspect.topic_scan import read_topics
from checkback.inspect.whole_batches import BatchTable, batch_time, read_batches
from checkback.storage.checkpoint import Batch, batches_since, last_done, read_checkpoint
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX
from checkback.storage.spark_schemas import schema_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables

#: written by landing, and therefore fixed last
_SOURCES = ("half", "op")
_LANDED_SINCE = 100
#: index of `half` among the sources of the query
_HALF = 0


@dataclass(frozen=True)
class FixedTables:
    """Tables as of the batch ``done`` (None = unknown, or none). ``under_way``: batches in progress, left out.

    ``versions``: of the existing tables, by name. ``whole``: the batches with a row in `batches` before the versions
    were fixed. ``logged``: whether a checkpoint tells which batches have begun.
    """

    spark: SparkSession
    tables: Tables
    versions: Mapping[str, int]
    done: Batch | None
    under_way: tuple[Batch, ...]
    whole: BatchTable
    logged: bool

    @classmethod
    def take(cls, spark: SparkSession, tables: Tables) -> FixedTables:
        """The tables as they are now. Raises StorageError if the checkpoint cannot be read."""
        place = tables.checkpoint("reconcile")
        checkpoint, done = read_checkpoint(spark, place), last_done(spark, place)
        whole = read_batches(SparkEngine(spark, tables))
        outputs = [*(name for name in SCHEMAS if name not in _SOURCES), *tables.topics(spark)]
        with ThreadPoolExecutor(max_workers=4) as pool:
            found = list(pool.map(lambda name: (name, tables.history(spark, name, 1)), outputs))
            found += list(pool.map(lambda name: (name, tables.history(spark, name, 1)), _SOURCES))
        begun = batches_since(spark, place, done)
        since = read_batches(SparkEngine(spark, tables)).others(whole.applications, whole.batches)
        fixed = cls(
            spark=spark,
            tables=tables,
            versions={name: max(history) for name, history in found if history},
            done=next((batch for batch in begun if batch.batch_id == done), None),
            under_way=tuple(batch for batch in begun if batch.batch_id > done),
            whole=whole,
            logged=checkpoint is not None or bool(begun),
        )
        return fixed.without((int(batch["batch_id"]), int(batch["time"])) for batch in since)

    def without(self, batches: Iterable[tuple[int, int]]) -> FixedTables:
        """The tables without the rows of these batches, (id, time), either."""
        known = {(batch.batch_id, batch.time) for batch in self.under_way}
        more = (Batch(*batch) for batch in batches if batch not in known)
        return replace(self, under_way=(*self.under_way, *more))

    @property
    def ignores_case(self) -> bool:
        """Whether the name of a topic's table may differ from the topic in case."""
        return bool(self.tables.catalog)

    @property
    def topics(self) -> list[str]:
        """Names of the topics' tables."""
        return [name for name in self.versions if name not in SCHEMAS]

    def read(self, name: str) -> DataFrame:
        """A table without the rows of batches in progress; empty if there is no such table."""
        return self._done_rows(self.all_rows(name), batch_time(name))

    def read_topics(self) -> DataFrame:
        """As `read`, for all topics' tables at once (`topic_scan.read_topics`)."""
        return self._done_rows(self.all_topic_rows(), batch_time(TOPIC_PREFIX))

    def _done_rows(self, rows: DataFrame, time: str | None) -> DataFrame:
        if time is None or not self.under_way:
            return rows
        of_batch = (
            (F.col("batch_id") == batch.batch_id) & (F.unix_millis(time) == batch.time) for batch in self.under_way
        )
        return rows.where(reduce(and_, (~F.coalesce(found, F.lit(False)) for found in of_batch)))

    def all_rows(self, name: str) -> DataFrame:
        """As `read`, with the rows of batches in progress."""
        version = self.versions.get(name)
        if version is None:
            return self.spark.createDataFrame([], schema_of(name))
        return self.tables.read(self.spark, name, version)

    def all_topic_rows(self) -> DataFrame:
        """As `read_topics`, with the rows of batches in progress."""
        return read_topics(self.spark, self.tables, {name: self.versions[name] for name in self.topics})

    def half_read_until(self) -> int | None:
        """The landing time (ms) up to which the batch ``done`` has read `half`; None if unknown.

        Everything that was there when it began, unless reconcile lags behind.
        """
        if self.done is None or "half" not in self.versions:
            return None
        first_unread = self.done.unread(_HALF)
        behind = self.versions["half"] - first_unread + 1
        if behind <= 0:
            return self.done.time
        # Counted from the newest version; more may have landed since the version was fixed.
        unread = self.tables.history(self.spark, "half", behind + _LANDED_SINCE).get(first_unread)
        return None if unread is None else min(unread, self.done.time)
