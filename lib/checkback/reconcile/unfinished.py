"""What a batch under way left half done: tables of one batch are committed side by side, and a crash may come between.

A restart of the query finishes it from its checkpoint. Where the checkpoint is lost the tables themselves say what
is missing: a message that is published or discarded has a decision, and a decision has its message.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.errors import StateError
from checkback.schemas import DISCARDED, TOPIC, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.tables import Tables


class Deleted(Enum):
    """What becomes of messages that are decided and in no table, and not of the last batch."""

    REFUSE = "refuse"
    LEAVE_OUT = "leave out"
    PUBLISH_AGAIN = "publish again"


_KEY = ["queue_id", "queue_offset"]
_IDENTITY = [*_KEY, "transaction_id", "producer_group"]


def finish(spark: SparkSession, tables: Tables, deleted: Deleted = Deleted.REFUSE) -> dict[str, int]:
    """Append the rows that are missing; by table, how many.

    Nobody else may write the tables meanwhile. Broken off, it is simply run again. Only the last batch can have been
    left half done: messages of the batches before it somebody has ``deleted``. Raises StorageError, StateError when
    there are such and nobody said what is to become of them.
    """
    decided = tables.read(spark, "decisions").select("real_topic").distinct().collect()
    topics = sorted({*tables.topics(spark), *(TOPIC_PREFIX + row[0] for row in decided)})
    added: dict[str, int] = {}
    gone: dict[str, int] = {}

    def append(name: str, lacking: DataFrame) -> None:
        rows = lacking.persist()
        try:
            if count := rows.count():
                tables.create(spark, name)
                tables.append(rows, name)
                added[name] = added.get(name, 0) + count
        finally:
            rows.unpersist()

    # Decisions first: what they lack the messages tell, and then they tell which messages are missing.
    for name, lacking in _decisions(spark, tables, topics):
        append(name, lacking)
    last = tables.read(spark, "decisions").agg(F.max(F.unix_micros("decided_at"))).collect()[0][0]
    for name, lacking in _messages(spark, tables, topics):
        of_last = F.unix_micros("discarded_at" if name == "discarded" else "committed_at") == F.lit(last)
        append(name, lacking if deleted is Deleted.PUBLISH_AGAIN else lacking.where(of_last))
        if deleted is Deleted.REFUSE and (count := lacking.where(~of_last).count()):
            gone[name] = count
    if gone:
        number = ", ".join(f"{name} lacks {count}" for name, count in gone.items())
        raise StateError(
            f"somebody has deleted messages that were written before the last batch: {number}",
            fix="`checkback rebuild --leave-out` leaves them deleted, `--publish-again` writes them anew",
        )
    return added


def _decisions(spark: SparkSession, tables: Tables, topics: list[str]) -> Iterator[tuple[str, DataFrame]]:
    """The decisions of messages that are published or discarded without one."""
    decided = tables.read(spark, "decisions").select(*_KEY)
    for name in topics:
        if not tables.exists(spark, name):
            continue
        published = tables.read(spark, name).select(
            F.col("half_queue_id").alias("queue_id"),
            F.col("half_queue_offset").alias("queue_offset"),
            "transaction_id",
            "producer_group",
            F.lit(name.removeprefix(TOPIC_PREFIX)).alias("real_topic"),
            F.lit("COMMIT").alias("state"),
            F.lit(None).cast("string").alias("reason"),
            F.col("committed_at").alias("decided_at"),
            "batch_id",
        )
        lacking = published.join(decided, on=_KEY, how="left_anti")
        lacking = lacking.join(_check_times(spark, tables), on=_KEY, how="left")
        yield (
            "decisions",
            lacking.join(_whose_commit(spark, tables), on=_IDENTITY, how="left").withColumns(
                {"source": F.coalesce("source", F.lit("producer")), "check_times": F.coalesce("check_times", F.lit(0))}
            ),
        )
    discarded = tables.read(spark, "discarded").join(decided, on=_KEY, how="left_anti")
    yield (
        "decisions",
        discarded.withColumns(
            {"state": F.lit("DISCARD"), "source": F.lit("checkback"), "decided_at": F.col("discarded_at")}
        ),
    )


def _messages(spark: SparkSession, tables: Tables, topics: list[str]) -> Iterator[tuple[str, DataFrame]]:
    """The messages of decisions that lack theirs: those committed by topic, those discarded."""
    decisions = tables.read(spark, "decisions")
    for name in topics:
        mine = decisions.where((F.col("state") == "COMMIT") & (F.col("real_topic") == name.removeprefix(TOPIC_PREFIX)))
        if tables.exists(spark, name):
            published = tables.read(spark, name).select(
                F.col("half_queue_id").alias("queue_id"), F.col("half_queue_offset").alias("queue_offset")
            )
            mine = mine.join(published, on=_KEY, how="left_anti")
        rows = _of_half(spark, tables, mine).withColumns(
            {
                "half_queue_id": F.col("queue_id"),
                "half_queue_offset": F.col("queue_offset"),
                "half_store_timestamp": F.col("store_timestamp"),
                "committed_at": F.col("decided_at"),
            }
        )
        yield name, rows.withColumn("queue_id", F.col("real_queue_id")).select(*TOPIC.names)
    gone = decisions.where(F.col("state") == "DISCARD")
    gone = gone.join(tables.read(spark, "discarded").select(*_KEY), on=_KEY, how="left_anti")
    rows = _of_half(spark, tables, gone).withColumn("discarded_at", F.col("decided_at"))
    yield "discarded", rows.select(*DISCARDED.names)


def _of_half(spark: SparkSession, tables: Tables, decisions: DataFrame) -> DataFrame:
    """The decisions with the columns of their half messages: of several alike the first that landed."""
    half = tables.read(spark, "half").drop("real_topic")
    found = decisions.join(half, on=_IDENTITY, how="inner")
    first = F.row_number().over(Window.partitionBy(*_KEY).orderBy(_order(found)))
    return found.withColumn("_n", first).where(F.col("_n") == 1).drop("_n")


def _order(rows: DataFrame) -> Column:
    return F.struct("store_timestamp", F.xxhash64(*(name for name in rows.columns if name != "properties")))


def _check_times(spark: SparkSession, tables: Tables) -> DataFrame:
    return tables.read(spark, "check_requests").groupBy(*_KEY).agg(F.max("check_times").alias("check_times"))


def _whose_commit(spark: SparkSession, tables: Tables) -> DataFrame:
    """By half message, who sent the first COMMIT."""
    op = tables.read(spark, "op").where(F.col("state") == "COMMIT")
    op = op.withColumnRenamed("half_offset", "queue_offset")
    return op.groupBy(*_IDENTITY).agg(F.min_by("source", F.struct("store_timestamp", "born_timestamp")).alias("source"))
