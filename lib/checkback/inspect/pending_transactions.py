"""Pending half messages: since when, how often checked, when next, and why still pending."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Column
from pyspark.sql import functions as F

from checkback.inspect.view import View
from checkback.reconcile.check_counts import checks_so_far
from checkback.reconcile.event_columns import identity_columns
from checkback.storage.timestamps import MOST

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

KEY = ["queue_id", "queue_offset"]
_NAMES = ["transaction_id", "producer_group"]
#: columns of `pending` only with ``bodies``
CONTENT = ("tags", "keys", "properties", "body")

COLUMNS = (
    *KEY,
    "transaction_id",
    "producer_group",
    "real_topic",
    "born_timestamp",
    "age_s",
    "check_times",
    "last_outcome",
    "last_error",
    "last_endpoint",
    "last_answered_at",
    "next_check_at",
    "op_waiting",
    "why",
    "as_of",
)


def pending(
    spark: SparkSession, settings: Settings, as_of: datetime | str | None = None, *, bodies: bool = False
) -> DataFrame:
    """The pending half messages, oldest first, now or as of a point in time.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, born_timestamp, age_s DOUBLE
    (seconds since birth), check_times INT (checks that count; 0 = none yet), last_outcome, last_error, last_endpoint
    and last_answered_at (of the newest outcome of a check; null = none yet), next_check_at (after check_max checks:
    when it is discarded; up to transaction.check_jitter later), op_waiting (COMMIT or ROLLBACK: its own op has landed
    and will decide it in the next batch; else null), why (a sentence), as_of (TIMESTAMP). With ``bodies`` also tags,
    keys, properties and body.

    Reads each of half, decisions, op, check_requests and check_answers once, without bodies, and shuffles half and
    decisions. Raises SettingsError if ``as_of`` is not a time or too long ago, or if there are no tables.
    """
    view = View.of(spark, settings, as_of)
    halves = undecided(view, bodies)
    counted = settings.check.count_undelivered, settings.transaction.check_max
    checks = checks_so_far(view.read("check_requests"), view.read("op"), *counted)
    checks = checks.withColumnRenamed("offset", "queue_offset")
    group, transaction = identity_columns()
    interval_s = settings.transaction.check_interval.total_seconds()
    first_check = plus_seconds(born(), immunity_s(settings))
    again = plus_seconds(F.timestamp_millis("checked"), F.lit(interval_s))
    known = (
        halves.withColumns({"group": group, "transaction": transaction})
        .join(checks, on=[*KEY, "group", "transaction"], how="left")
        .join(_last_answers(view.read("check_answers")), on=[*KEY, *_NAMES], how="left")
        .join(_waiting_ops(view.read("op"), halves), on=KEY, how="left")
        .withColumns(
            {
                "as_of": view.now,
                "check_times": F.coalesce("check_times", F.lit(0)),
                "next_check_at": F.coalesce(again, first_check),
            }
        )
    )
    return known.select(
        *KEY,
        "transaction_id",
        "producer_group",
        "real_topic",
        "born_timestamp",
        (F.col("as_of").cast("double") - born().cast("double")).alias("age_s"),
        "check_times",
        F.col("last.outcome").alias("last_outcome"),
        F.col("last.error").alias("last_error"),
        F.col("last.endpoint").alias("last_endpoint"),
        F.col("last.answered_at").alias("last_answered_at"),
        "next_check_at",
        "op_waiting",
        _why(settings).alias("why"),
        "as_of",
        *(CONTENT if bodies else ()),
    ).orderBy(F.col("born_timestamp"), *KEY)


def undecided(view: View, bodies: bool = False) -> DataFrame:
    """The rows of `half` without a decision, one per offset."""
    left = view.read("half").join(view.read("decisions").select(*KEY), on=KEY, how="left_anti")
    return first_of_each(left, bodies)


def first_of_each(half: DataFrame, bodies: bool = False) -> DataFrame:
    """`half` with one row per offset: the first that landed, as in the segments. Bodies only on request."""
    left_out = (*KEY, *(() if bodies else CONTENT))
    columns = [name for name in half.columns if name not in left_out]
    first = F.min_by(F.struct(*columns), "store_timestamp").alias("first")
    return half.groupBy(*KEY).agg(first).select(*KEY, "first.*")


def born() -> Column:
    """The effective born_timestamp: one later than the store_timestamp counts as that (rule 4)."""
    return F.least("born_timestamp", "store_timestamp")


def immunity_s(settings: Settings) -> Column:
    """Immunity in seconds: the message's own, else transaction.timeout (rule 4)."""
    own = F.when(F.col("check_immunity_s") >= 0, F.col("check_immunity_s"))
    return F.coalesce(own.cast("double"), F.lit(settings.transaction.timeout.total_seconds()))


def plus_seconds(time: Column, seconds: Column) -> Column:
    """A time plus seconds, capped at the greatest time that Python can represent."""
    micros = F.unix_micros(time)
    micros = F.when(micros > MOST, MOST).otherwise(micros)
    return F.timestamp_micros((micros + (seconds * 1_000_000).cast("bigint")).cast("bigint"))


def _last_answers(answers: DataFrame) -> DataFrame:
    """The newest outcome by half message. By time: the number of a check that did not count is reused."""
    last = F.struct("outcome", "error", "endpoint", "answered_at")
    return answers.groupBy(*KEY, *_NAMES).agg(F.max_by(last, F.struct("answered_at", "check_times")).alias("last"))


def _waiting_ops(op: DataFrame, halves: DataFrame) -> DataFrame:
    """By offset the state of the op that will decide a pending half message: the first (rule 1) of its own (rule 2)."""
    ops = op.where(F.col("state").isin("COMMIT", "ROLLBACK")).select(
        "queue_id",
        F.col("half_offset").alias("queue_offset"),
        F.col("producer_group").alias("op_group"),
        F.col("transaction_id").alias("op_id"),
        "state",
        F.struct("store_timestamp", "born_timestamp", F.col("state") != "ROLLBACK").alias("turn"),
    )
    own = (F.col("op_group") == F.col("producer_group")) & (
        F.col("op_id").isNull() | (F.col("op_id") == F.col("transaction_id"))
    )
    found = ops.join(halves.select(*KEY, "transaction_id", "producer_group"), on=KEY, how="inner").where(own)
    return found.groupBy(*KEY).agg(F.min_by("state", "turn").alias("op_waiting"))


def _why(settings: Settings) -> Column:
    """Why it is not decided yet. Equivalent to checkback.inspect.diagnosis, which describes a group."""
    outcome, error = F.col("last.outcome"), F.col("last.error")
    due = F.col("next_check_at") <= F.col("as_of")
    set_groups = sorted(name for name, producer in settings.producers.items() if producer.endpoints)
    return (
        F.when(F.col("op_waiting").isNotNull(), F.concat("op_waiting", F.lit(" has landed: the next batch decides")))
        .when(outcome == "UNKNOWN", F.lit("answered UNKNOWN"))
        .when((outcome == "NO_ANSWER") & F.col("last.endpoint").isNull(), F.lit("no endpoint is set for the group"))
        .when(outcome == "NO_ANSWER", F.concat(F.lit("no endpoint answers: "), error))
        .when(outcome == "SKIPPED", F.concat(F.lit("check skipped: "), error))
        .when(outcome.isNotNull(), F.concat(F.lit("answered "), outcome, F.lit(": its op is not there yet")))
        .when(F.col("check_times") > 0, F.lit("asked, no outcome yet"))
        .when(~due, F.lit("young: the first check is not due yet"))
        .when(~F.col("producer_group").isin(set_groups), F.lit("no endpoint is set for the group in these settings"))
        .otherwise(F.lit("its first check is due"))
    )
