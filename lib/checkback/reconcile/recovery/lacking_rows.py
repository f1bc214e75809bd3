"""Which tables may lack rows, asked at once of the keys of all tables: after a whole batch none does.

The answer errs on one side only. A table that is not named lacks nothing; of one that is, `batch_recovery` asks what.
"""

from __future__ import annotations

from enum import IntFlag
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.reconcile.publish import published_notes, unpublished
from checkback.storage.dataframes import union
from checkback.storage.table_scan import read_table, read_topics

if TYPE_CHECKING:
    from collections.abc import Collection

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.storage.tables import Tables

KEY = ["queue_id", "queue_offset"]
IDENTITY = [*KEY, "transaction_id", "producer_group"]
#: IDENTITY and batch_id in topic tables and in `unpublished`, where queue_id is the real queue's
_OF_MESSAGE = [*(f"half_{name}" for name in KEY), *IDENTITY[2:], "batch_id"]


class Lack(IntFlag):
    """What may lack rows. MESSAGES: topic tables and `unpublished`."""

    DECISIONS = 1
    DELIVERIES = 2
    DISCARDED = 4
    MESSAGES = 8


class _Has(IntFlag):
    """What a row, or all rows of a message, tell about it."""

    #: it has a decision; one that discards or cancels it; a CANCEL
    DECIDED = 1
    GONE = 2
    CANCELLED = 4
    #: it is to be published later; it was; it is to be in its topic's table
    SCHEDULED = 8
    DELIVERED = 16
    TO_PUBLISH = 32
    #: it is or was in its topic's table or `unpublished`; it is there to be read
    PUBLISHED = 64
    THERE = 128
    #: it is in `discarded`; by a DISCARD; by a CANCEL
    KEPT = 256
    DISCARDED = 512
    CANCELLED_KEPT = 1024


def published(spark: SparkSession, tables: Tables, topics: Collection[str], outstanding: bool = False) -> DataFrame:
    """The rows of these topic tables and of `unpublished`: IDENTITY, real_topic, decided_at, batch_id.

    ``outstanding``: of `unpublished` only those that are not noted as published: the others must be in their topic.
    """
    waiting = _outstanding(spark, tables) if outstanding else read_table(spark, tables, unpublished.TABLE)
    return _waiting(waiting).unionByName(_in_topics(spark, tables, topics))


def may_lack(spark: SparkSession, tables: Tables, topics: Collection[str]) -> Lack:
    """What may lack rows. ``topics``: the readable topic tables; the messages of others are taken for missing."""
    (row,) = lacking(spark, tables, topics).agg(F.bit_or("lack").alias("lack")).collect()
    return Lack(row["lack"] or 0)


def lacking(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    """IDENTITY, lack INT: what rows of a message the tables may lack, as the sum of its `Lack`s."""
    decisions, deliveries = (read_table(spark, tables, name) for name in ("decisions", "deliveries"))
    discarded, state = read_table(spark, tables, "discarded"), F.col("state")
    at_once = F.when(F.col("deliver_at").isNull(), F.lit(int(_Has.TO_PUBLISH))).otherwise(F.lit(int(_Has.SCHEDULED)))
    of_decision = (
        F.when(state == "COMMIT", at_once)
        .when(state == "DISCARD", F.lit(int(_Has.GONE)))
        .when(state == "CANCEL", F.lit(int(_Has.GONE | _Has.CANCELLED)))
        .otherwise(F.lit(0))
    )
    cancelled = F.col("reason") == "CANCELLED"
    of_discarded = F.when(cancelled, F.lit(int(_Has.CANCELLED_KEPT))).when(~cancelled, F.lit(int(_Has.DISCARDED)))
    parts = [
        _having(decisions, of_decision.bitwiseOR(F.lit(int(_Has.DECIDED)))),
        _having(deliveries, F.lit(int(_Has.DELIVERED | _Has.TO_PUBLISH))),
        _having(discarded, F.coalesce(of_discarded, F.lit(0)).bitwiseOR(F.lit(int(_Has.KEPT)))),
        _having(_waiting(read_table(spark, tables, unpublished.TABLE)), F.lit(int(_Has.PUBLISHED))),
        _having(_waiting(_outstanding(spark, tables)), F.lit(int(_Has.THERE))),
        _having(_in_topics(spark, tables, topics), F.lit(int(_Has.PUBLISHED | _Has.THERE))),
    ]
    # By message and topic: a decision of another topic, transaction or group does not count here.
    rows = union(parts).repartition(*IDENTITY).groupBy(*IDENTITY, "real_topic").agg(F.bit_or("has").alias("has"))
    lack = rows.withColumn("lack", _lack())
    return lack.groupBy(*IDENTITY).agg(F.bit_or("lack").alias("lack"))


def _lack() -> Column:
    """What a message lacks of a topic."""
    unnamed = F.greatest(*(F.col(name).isNull() for name in IDENTITY))  # null is not the same as null
    undecided = _has(_Has.PUBLISHED | _Has.DISCARDED) & (unnamed | ~_has(_Has.DECIDED))
    uncancelled = _has(_Has.CANCELLED_KEPT) & (unnamed | ~_has(_Has.CANCELLED))
    return (
        _if(undecided | uncancelled, Lack.DECISIONS)
        .bitwiseOR(_if(_has(_Has.SCHEDULED) & _has(_Has.PUBLISHED) & ~_has(_Has.DELIVERED), Lack.DELIVERIES))
        .bitwiseOR(_if(_has(_Has.GONE) & ~_has(_Has.KEPT), Lack.DISCARDED))
        .bitwiseOR(_if(_has(_Has.TO_PUBLISH) & ~_has(_Has.THERE), Lack.MESSAGES))
    )


def _has(what: _Has) -> Column:
    """Whether it has one of these."""
    return F.col("has").bitwiseAND(F.lit(int(what))) != 0


def _if(condition: Column, lack: Lack) -> Column:
    return F.when(condition, F.lit(int(lack))).otherwise(F.lit(0))


def _having(rows: DataFrame, has: Column) -> DataFrame:
    return rows.select(*IDENTITY, "real_topic", has.alias("has"))


def _outstanding(spark: SparkSession, tables: Tables) -> DataFrame:
    """The rows of `unpublished` that are not noted as published."""
    rows = read_table(spark, tables, unpublished.TABLE)
    return published_notes.without_noted(rows, published_notes.read_notes(spark, tables, rows))


def _waiting(rows: DataFrame) -> DataFrame:
    return _as_message(rows, "real_topic", "unpublished_at")


def _in_topics(spark: SparkSession, tables: Tables, topics: Collection[str]) -> DataFrame:
    columns = [*_OF_MESSAGE, "published_at"]
    return _as_message(read_topics(spark, tables, dict.fromkeys(topics), columns), "topic", "published_at")


def _as_message(rows: DataFrame, topic: str, time: str) -> DataFrame:
    rows = rows.select(*_OF_MESSAGE, F.col(topic).alias("real_topic"), F.col(time).alias("decided_at"))
    names = [*IDENTITY, "real_topic", "decided_at", "batch_id"]
    return rows.withColumnsRenamed({f"half_{name}": name for name in KEY}).select(*names)
