"""Producer groups with pending transactions: how many, since when, and why."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from checkback.inspect.diagnosis import NOT_TRIED, Group, Reconcile, diagnose
from checkback.inspect.pending_transactions import pending
from checkback.inspect.progress import progress
from checkback.inspect.view import View, milliseconds

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.settings import Settings

_ANSWERS = ("COMMIT", "ROLLBACK", "UNKNOWN")
_DECIDES = ("COMMIT", "ROLLBACK")
COLUMNS = (
    "producer_group",
    "pending",
    "overdue",
    "op_waiting",
    "oldest_born",
    "oldest_age_s",
    "last_answer_at",
    "silent_since",
    "undecided_since",
    "outcomes",
    "decided_share",
    "unknown_share",
    "no_answer_share",
    "skipped_share",
    "last_error",
    "endpoints",
    "why",
    "as_of",
)


def stuck_groups(spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> DataFrame:
    """The producer groups with transactions pending beyond their immunity, the one with the oldest first.

    Columns: producer_group; pending, overdue (beyond their immunity), op_waiting (of those: their op has landed)
    BIGINT; oldest_born TIMESTAMP and oldest_age_s DOUBLE (of the overdue); last_answer_at (newest COMMIT, ROLLBACK or
    UNKNOWN), silent_since (first NO_ANSWER after that; null = it answers), undecided_since (first UNKNOWN after its
    last COMMIT or ROLLBACK); of its last check_interval of checking: outcomes BIGINT, and as fractions of 1
    decided_share, unknown_share, no_answer_share, skipped_share DOUBLE (null = none), endpoints ARRAY<STRING> (all that
    were tried); last_error (of the newest failed attempt); why (a sentence), as_of.

    One row per group. Costs as much as `pending`, plus a second scan of check_answers. Raises as `pending`.
    """
    return group_summary(spark, settings, as_of).where("overdue > 0").orderBy(F.col("oldest_born"), "producer_group")


def group_summary(spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> DataFrame:
    """As `stuck_groups`, including groups with nothing overdue."""
    view = View.of(spark, settings, as_of)
    found = progress(spark, view.tables.checkpoint("reconcile"), None if view.at is None else milliseconds(view.at))
    begun = None if found is None else found.begun
    reconcile = Reconcile(None if begun is None else begun.time, quiet_after(settings))
    endpoints = {name: len(producer.endpoints) for name, producer in settings.producers.items()}
    waiting = _waiting(pending(spark, settings, view.at))
    outcomes = _outcomes(view.read("check_answers"), settings.transaction.check_interval)
    known = waiting.join(outcomes, on="producer_group", how="left")

    def said(row: Any) -> str:
        facts: dict[str, Any] = row.asDict()
        now, group = facts.pop("now"), facts.pop("producer_group")
        return diagnose(Group(**facts, endpoints=endpoints.get(group, 0)), reconcile, now)

    # A lambda has no type hints, from which Spark would infer another kind of UDF.
    sentence = F.udf(lambda row: said(row), "string")  # noqa: PLW0108
    return known.withColumns(
        {
            "why": sentence(F.struct(*_facts())),
            "outcomes": F.coalesce("outcomes", F.lit(0).cast("bigint")),
            "endpoints": F.coalesce("endpoints", F.array().cast("array<string>")),
        }
    ).select(*COLUMNS)


def quiet_after(settings: Settings) -> timedelta:
    """How long something may be due without a batch before reconcile counts as stopped."""
    return 5 * settings.reconcile.trigger + timedelta(minutes=1)


def _waiting(rows: DataFrame) -> DataFrame:
    """Pending transactions by group."""
    # A half that was checked is beyond its immunity, even while its next check is not yet due.
    asked = (F.col("check_times") > 0) | F.col("last_outcome").isNotNull()
    overdue = asked | (F.col("next_check_at") <= F.col("as_of"))
    return rows.groupBy("producer_group").agg(
        F.count("*").alias("pending"),
        F.count_if(overdue).alias("overdue"),
        F.count_if(overdue & F.col("op_waiting").isNotNull()).alias("op_waiting"),
        F.min(F.when(overdue, F.col("born_timestamp"))).alias("oldest_born"),
        F.max(F.when(overdue, F.col("age_s"))).alias("oldest_age_s"),
        F.max(asked).alias("requested"),
        F.min(F.when(F.col("next_check_at") <= F.col("as_of"), F.col("next_check_at"))).alias("due_since"),
        F.max("as_of").alias("as_of"),
    )


def _outcomes(answers: DataFrame, check_interval: timedelta) -> DataFrame:
    """Outcomes of checks by group."""
    at, outcome = F.col("answered_at"), F.col("outcome")
    latest = answers.groupBy("producer_group").agg(
        F.max(F.when(outcome.isin(*_ANSWERS), at)).alias("last_answer_at"),
        F.max(F.when(outcome.isin(*_DECIDES), at)).alias("last_decided_at"),
        F.max(at).alias("newest_at"),
    )
    silent, skipped = outcome == "NO_ANSWER", outcome == "SKIPPED"
    recent = F.unix_micros(at) > F.unix_micros("newest_at") - check_interval // timedelta(microseconds=1)
    tried = F.concat(F.transform("failed_tries", lambda one: one["endpoint"]), F.array_compact(F.array("endpoint")))
    errors = F.concat(F.array("error"), F.transform("failed_tries", lambda one: one["error"]))
    error = F.get(F.filter(F.array_compact(errors), lambda text: ~text.startswith(NOT_TRIED)), F.lit(0))
    in_vain = F.when(silent & error.isNotNull(), at)
    found = answers.withColumn("failed_tries", F.coalesce("failed_tries", F.array().cast(_TRIES)))
    facts = found.join(F.broadcast(latest), on="producer_group", how="inner").groupBy("producer_group")
    counts = facts.agg(
        F.max("last_answer_at").alias("last_answer_at"),
        F.min(F.when(silent & _after("last_answer_at"), at)).alias("silent_since"),
        F.min(F.when((outcome == "UNKNOWN") & _after("last_decided_at"), at)).alias("undecided_since"),
        F.count_if(recent).alias("outcomes"),
        *(
            F.count_if(recent & of_kind).alias(name)
            for name, of_kind in (
                ("decided", outcome.isin(*_DECIDES)),
                ("unknown", outcome == "UNKNOWN"),
                ("no_answer", silent),
                ("skipped", skipped),
            )
        ),
        F.array_sort(F.array_distinct(F.flatten(F.collect_set(F.when(recent, tried))))).alias("endpoints"),
        F.max_by(error, in_vain).alias("last_error"),
        F.max_by(F.when(F.col("error").startswith(NOT_TRIED), F.col("error")), F.when(silent, at)).alias("held_back"),
        F.max_by("error", F.when(skipped, at)).alias("skipped_error"),
    )
    shares = ((F.col(name) / F.col("outcomes")).alias(f"{name}_share") for name in _KINDS)
    return counts.select("*", *shares).drop(*_KINDS)


_KINDS = ("decided", "unknown", "no_answer", "skipped")
_TRIES = "array<struct<endpoint: string, error: string>>"


def _after(name: str) -> Column:
    return F.col(name).isNull() | (F.col("answered_at") > F.col(name))


def _facts() -> list[Column]:
    """The fields of `Group`, with producer_group and now: integers, as Python's time zone does not affect them."""
    return [
        F.col("producer_group"),
        F.unix_millis("as_of").alias("now"),
        *(F.col(name) for name in ("overdue", "op_waiting", "requested", "held_back", "skipped_error")),
        F.coalesce("outcomes", F.lit(0)).alias("outcomes"),
        *(F.coalesce(f"{name}_share", F.lit(0.0)).alias(name) for name in _KINDS),
        (F.size("endpoints") > 0).alias("any_endpoint"),
        F.col("last_error").alias("error"),
        *(F.unix_millis(name).alias(name) for name in ("silent_since", "undecided_since", "due_since")),
    ]
