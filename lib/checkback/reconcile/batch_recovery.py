"""What a batch under way left half done: tables of one batch are committed side by side, and a crash may come between.

A restart of the query finishes it from its checkpoint. Where the checkpoint is lost the tables themselves say what
is missing: a message that is published, unpublished or discarded has a decision, and a decision has its message. One
job looks for those of all topics: only where some are missing, a topic's table has work of its own.
"""

from __future__ import annotations

import uuid
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.errors import StateError
from checkback.reconcile import interrupted_batch, unpublished
from checkback.reconcile.topic_tables import TopicTables, own_failure
from checkback.storage.dataframes import union
from checkback.storage.schemas import DECISIONS, DISCARDED, TOPIC, TOPIC_PREFIX, UNPUBLISHED

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.storage.tables import Tables


class Deleted(Enum):
    """What becomes of messages that are decided and in no table, though their batch is whole."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave out"
    PUBLISH_AGAIN = "publish again"


_KEY = ["queue_id", "queue_offset"]
_IDENTITY = [*_KEY, "transaction_id", "producer_group"]
#: a topic's table calls them otherwise, and has a queue_id of its own
_OF_HALF = {"queue_id": "real_queue_id", "half_queue_id": "queue_id", "half_queue_offset": "queue_offset"}


def finish(spark: SparkSession, tables: Tables, deleted: Deleted = Deleted.REFUSE) -> dict[str, int]:
    """Append the rows that are missing; by table, how many.

    A topic's table that cannot be read or written stops no other: what it may lack is put into `unpublished`. What a
    whole batch lacks somebody has ``deleted``. Nobody else may write the tables meanwhile. Broken off, it is simply run
    again. Raises StorageError, StateError when rows are deleted and nobody said what is to become of them.
    """
    topics = tables.topics(spark)
    try:
        return _finish(spark, tables, topics, {}, deleted)
    except Exception as error:
        own_failure(error)
        broken = _unreadable(spark, tables, topics)
        if not broken:
            raise
    return _finish(spark, tables, [name for name in topics if name not in broken], broken, deleted)


def _finish(
    spark: SparkSession, tables: Tables, topics: Collection[str], broken: Mapping[str, str], deleted: Deleted
) -> dict[str, int]:
    """``topics``: tables that can be read. ``broken``: by name those that cannot, and why."""
    added: dict[str, int] = {}
    gone: dict[str, int] = {}

    def add(rows: DataFrame, name: str) -> None:
        rows = rows.persist()
        try:
            if count := rows.count():
                tables.append(rows, name)
                added[name] = added.get(name, 0) + count
        finally:
            rows.unpersist()

    def left(rows: DataFrame, name: Column) -> DataFrame:
        """Those to be added; of those that are deleted and nobody spoke of, how many there are is noted."""
        if deleted is Deleted.PUBLISH_AGAIN:
            return rows
        if deleted is Deleted.REFUSE:
            counts = rows.where(~F.col("half_done")).groupBy(name.alias("name")).count().collect()
            gone.update({row["name"]: row["count"] for row in counts})
        return rows.where("half_done")

    # Decisions first: what they lack the messages tell, and then they tell which messages are missing.
    add(_decisions(spark, tables, topics), "decisions")
    decided = _decided(spark, tables)
    add(left(_undiscarded(spark, tables, decided), F.lit("discarded")), "discarded")
    rows = _messages(spark, tables, decided, topics, broken)
    rows = left(rows, F.concat(F.lit(TOPIC_PREFIX), "real_topic")).persist()
    try:
        counts = {row["real_topic"]: row["count"] for row in rows.groupBy("real_topic").count().collect()}
        waiting = _publish(spark, tables, rows, counts, broken, added)
        if waiting:
            tables.append(_parked(rows, waiting), unpublished.TABLE)
            added[unpublished.TABLE] = sum(counts[topic] for topic in waiting)
    finally:
        rows.unpersist()
    if gone:
        number = ", ".join(f"{name} lacks {count}" for name, count in sorted(gone.items()))
        raise StateError(
            f"somebody has deleted messages of batches that were whole: {number}",
            fix="`checkback rebuild --leave-out` leaves them deleted, "
            "`checkback rebuild --publish-again` writes them anew",
        )
    return added


def _decided(spark: SparkSession, tables: Tables) -> DataFrame:
    """The decisions, and whether their batch may be half done: half_done BOOLEAN."""
    decisions, found = tables.read(spark, "decisions"), interrupted_batch.find(spark, tables)
    if found is None:
        return decisions.withColumn("half_done", F.lit(False))
    same_time = F.unix_millis("decided_at") == found.rows.time
    return decisions.withColumn("half_done", (F.col("batch_id") == found.rows.batch_id) & same_time)


def _publish(
    spark: SparkSession,
    tables: Tables,
    rows: DataFrame,
    counts: Mapping[str | None, int],
    broken: Mapping[str, str],
    added: dict[str, int],
) -> dict[str | None, str]:
    """Append the messages to their topics' tables; by topic, why some cannot be."""
    known = TopicTables(tables)
    parking = known.parking(spark, "")
    waiting: dict[str | None, str] = {}
    for topic, count in counts.items():
        name = f"{TOPIC_PREFIX}{topic}"
        mine = rows.where(F.col("real_topic") == F.lit(topic)).select(*TOPIC.names)
        why = broken.get(name) or parking.reason(topic)
        why = why or known.attempt(spark, name, partial(tables.append, mine, name))
        if why is None:
            added[name] = count
        else:
            waiting[topic] = why
    return waiting


def _parked(rows: DataFrame, waiting: Mapping[str | None, str]) -> DataFrame:
    """The messages of these topics as rows of `unpublished`, of an application that has no other."""
    reason = F.lit(None).cast("string")
    for topic, why in waiting.items():
        reason = F.when(F.col("real_topic").eqNullSafe(F.lit(topic)), F.lit(why)).otherwise(reason)
    mine = rows.withColumns(
        {"reason": reason, "application": F.lit(f"rebuild/{uuid.uuid4()}"), "unpublished_at": F.col("committed_at")}
    )
    return mine.where(F.col("reason").isNotNull()).select(*UNPUBLISHED.names)


def _unreadable(spark: SparkSession, tables: Tables, topics: Collection[str]) -> dict[str, str]:
    """By name the topics' tables that cannot be read, and why."""

    def fault(name: str) -> str | None:
        try:
            _published(spark, tables, [name]).agg(F.max(F.xxhash64("*"))).collect()
        except Exception as error:  # noqa: BLE001 - raised again where it is not the table's own
            return own_failure(error)
        return None

    return {name: why for name in topics if (why := fault(name)) is not None}


def _published(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    """The rows of these topics' tables and of `unpublished`: _IDENTITY, real_topic, decided_at, batch_id."""

    def rows(name: str, topic: Column, time: str) -> DataFrame:
        table = tables.read(spark, name).withColumn("real_topic", topic).withColumnsRenamed(_OF_HALF)
        return table.select(*_IDENTITY, "real_topic", F.col(time).alias("decided_at"), "batch_id")

    parts = [rows(name, F.lit(name.removeprefix(TOPIC_PREFIX)), "committed_at") for name in topics]
    return union([rows(unpublished.TABLE, F.col("real_topic"), "unpublished_at"), *parts])


def _decisions(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    """The decisions of messages that are published, unpublished or discarded without one."""
    decided = tables.read(spark, "decisions").select(*_KEY)
    lacking = _published(spark, tables, topics).join(decided, on=_KEY, how="left_anti")
    lacking = lacking.dropDuplicates([*_IDENTITY, "real_topic"])
    lacking = lacking.join(_check_times(spark, tables), on=_IDENTITY, how="left")
    committed = lacking.join(_whose_commit(spark, tables), on=_IDENTITY, how="left").withColumns(
        {
            "state": F.lit("COMMIT"),
            "source": F.coalesce("source", F.lit("producer")),
            "reason": F.lit(None).cast("string"),
            "check_times": F.coalesce("check_times", F.lit(0)),
        }
    )
    discarded = tables.read(spark, "discarded").join(decided, on=_KEY, how="left_anti")
    discarded = discarded.withColumns(
        {"state": F.lit("DISCARD"), "source": F.lit("checkback"), "decided_at": F.col("discarded_at")}
    )
    return committed.select(*DECISIONS.names).unionByName(discarded.select(*DECISIONS.names))


def _undiscarded(spark: SparkSession, tables: Tables, decided: DataFrame) -> DataFrame:
    """The messages of decisions DISCARD that are not in `discarded`: its columns, and half_done."""
    gone = decided.where(F.col("state") == "DISCARD")
    gone = gone.join(tables.read(spark, "discarded").select(*_KEY), on=_KEY, how="left_anti")
    rows = _of_half(spark, tables, gone).withColumn("discarded_at", F.col("decided_at"))
    return rows.select(*DISCARDED.names, "half_done")


def _messages(
    spark: SparkSession, tables: Tables, decided: DataFrame, topics: Collection[str], broken: Mapping[str, str]
) -> DataFrame:
    """The messages of decisions COMMIT that are neither published nor unpublished.

    Columns: TOPIC's, real_topic, half_done. Of a table that cannot be read: those of a batch that may be half done.
    """
    lacking = decided.where(F.col("state") == "COMMIT")
    if broken:
        unknown = F.col("real_topic").isin([name.removeprefix(TOPIC_PREFIX) for name in broken])
        lacking = lacking.where(~F.coalesce(unknown, F.lit(False)) | F.col("half_done"))
    there = _published(spark, tables, topics).select(*_KEY, F.col("real_topic").alias("_topic"))
    same = [*(lacking[name] == there[name] for name in _KEY), F.col("real_topic").eqNullSafe(F.col("_topic"))]
    lacking = lacking.join(there, on=same, how="left_anti")
    rows = _of_half(spark, tables, lacking).withColumns(
        {
            "half_queue_id": F.col("queue_id"),
            "half_queue_offset": F.col("queue_offset"),
            "half_store_timestamp": F.col("store_timestamp"),
            "committed_at": F.col("decided_at"),
        }
    )
    return rows.withColumn("queue_id", F.col("real_queue_id")).select(*TOPIC.names, "real_topic", "half_done")


def _of_half(spark: SparkSession, tables: Tables, decisions: DataFrame) -> DataFrame:
    """The decisions with the columns of their half messages: of several alike the first that landed."""
    half = tables.read(spark, "half").drop("real_topic")
    found = decisions.join(half, on=_IDENTITY, how="inner")
    first = F.row_number().over(Window.partitionBy(*_KEY).orderBy(_order(found)))
    return found.withColumn("_n", first).where(F.col("_n") == 1).drop("_n")


def _order(rows: DataFrame) -> Column:
    return F.struct("store_timestamp", F.xxhash64(*(name for name in rows.columns if name != "properties")))


def _check_times(spark: SparkSession, tables: Tables) -> DataFrame:
    return tables.read(spark, "check_requests").groupBy(*_IDENTITY).agg(F.max("check_times").alias("check_times"))


def _whose_commit(spark: SparkSession, tables: Tables) -> DataFrame:
    """By half message, who sent the first COMMIT."""
    op = tables.read(spark, "op").where(F.col("state") == "COMMIT")
    op = op.withColumnRenamed("half_offset", "queue_offset")
    return op.groupBy(*_IDENTITY).agg(F.min_by("source", F.struct("store_timestamp", "born_timestamp")).alias("source"))
