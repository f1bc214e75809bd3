"""Who is pending: half messages without a decision, since when, how often checked, and when next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from checkback.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

_KEY = ["queue_id", "queue_offset"]

COLUMNS = (
    *_KEY,
    "transaction_id",
    "producer_group",
    "real_topic",
    "born_timestamp",
    "age_s",
    "check_times",
    "last_outcome",
    "last_error",
    "last_answered_at",
    "next_check_at",
)


def pending(spark: SparkSession, settings: Settings) -> DataFrame:
    """The pending half messages, oldest first.

    Columns: queue_id, queue_offset, transaction_id, producer_group, real_topic, born_timestamp, age_s DOUBLE
    (seconds since birth), check_times INT (0 = not checked yet), last_outcome and last_error (of the newest answer to a
    check; null = none yet), last_answered_at, next_check_at (with check_max checks done: when it is discarded).
    """
    tables = Tables.of(settings.storage)
    read = {name: tables.read(spark, name) for name in ("half", "decisions", "check_requests", "check_answers")}
    undecided = first_of_each(read["half"]).join(read["decisions"], on=_KEY, how="left_anti")
    checks = (
        read["check_requests"]
        .groupBy(*_KEY)
        .agg(F.max("check_times").alias("check_times"), F.max("requested_at").alias("requested_at"))
    )
    answers = (
        read["check_answers"]
        .groupBy(*_KEY)
        .agg(
            F.max_by(F.struct("outcome", "error", "answered_at"), F.struct("check_times", "answered_at")).alias("last")
        )
    )
    interval_s = settings.transaction.check_interval.total_seconds()
    first_check = _plus_seconds(born(), immunity_s(settings))
    return (
        undecided.join(checks, on=_KEY, how="left")
        .join(answers, on=_KEY, how="left")
        .select(
            *_KEY,
            "transaction_id",
            "producer_group",
            "real_topic",
            "born_timestamp",
            (F.current_timestamp().cast("double") - born().cast("double")).alias("age_s"),
            F.coalesce("check_times", F.lit(0)).alias("check_times"),
            F.col("last.outcome").alias("last_outcome"),
            F.col("last.error").alias("last_error"),
            F.col("last.answered_at").alias("last_answered_at"),
            F.coalesce(_plus_seconds(F.col("requested_at"), F.lit(interval_s)), first_check).alias("next_check_at"),
        )
        .orderBy(F.col("born_timestamp"), *_KEY)
    )


def first_of_each(half: DataFrame) -> DataFrame:
    """`half` with one row an offset: the first that landed, as the segments take them. Without bodies."""
    columns = [name for name in half.columns if name not in (*_KEY, "body", "properties")]
    first = F.min_by(F.struct(*columns), "store_timestamp").alias("first")
    return half.groupBy(*_KEY).agg(first).select(*_KEY, "first.*")


def born() -> Column:
    """The birth that counts: one in the future counts as the landing (rule 4)."""
    return F.least("born_timestamp", "store_timestamp")


def immunity_s(settings: Settings) -> Column:
    """Seconds without checks: the message's own, else transaction.timeout (rule 4)."""
    own = F.when(F.col("check_immunity_s") >= 0, F.col("check_immunity_s"))
    return F.coalesce(own.cast("double"), F.lit(settings.transaction.timeout.total_seconds()))


def _plus_seconds(time: Column, seconds: Column) -> Column:
    return F.timestamp_micros((F.unix_micros(time) + (seconds * 1_000_000).cast("bigint")).cast("bigint"))
