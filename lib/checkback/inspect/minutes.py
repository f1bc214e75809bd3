"""What went on minute by minute: rows to plot, by the tables' own times."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from checkback.inspect.moment import read_moment
from checkback.inspect.undecided import KEY, born, first_of_each
from checkback.inspect.view import View, moment_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.settings import Settings

#: outcome of an endpoint that was tried in vain before another one
FAILED_TRY = "FAILED_TRY"


def decisions_by_minute(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> DataFrame:
    """How many transactions were decided, by the minute.

    Columns: minute TIMESTAMP (its beginning), producer_group, state (COMMIT, ROLLBACK, DISCARD), decisions BIGINT.
    A minute without any has no row. It reads `decisions` once; with ``since`` only the files of that time.
    """
    view = View.of(spark, settings, as_of)
    rows = _since(view.read("decisions"), "decided_at", since)
    return (
        rows.groupBy(_minute("decided_at"), "producer_group", "state")
        .agg(F.count("*").alias("decisions"))
        .orderBy("minute", "producer_group", "state")
    )


def check_outcomes(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> DataFrame:
    """What came of the checks, by endpoint and minute.

    Columns: minute TIMESTAMP, producer_group, endpoint (null = the group had none), outcome (COMMIT, ROLLBACK, UNKNOWN,
    NO_ANSWER, SKIPPED; FAILED_TRY: not the outcome of a check, it went on to the next endpoint), checks BIGINT,
    latency_p50_ms INT (null for a FAILED_TRY). It reads `check_answers` once; with ``since`` only the files of that
    time.
    """
    view = View.of(spark, settings, as_of)
    rows = _since(view.read("check_answers"), "answered_at", since)
    last = F.struct("endpoint", "outcome", "latency_ms")
    before = F.transform(
        "failed_tries",
        lambda one: F.struct(
            one["endpoint"].alias("endpoint"), F.lit(FAILED_TRY).alias("outcome"), F.lit(None).cast("int")
        ),
    )
    shape = "array<struct<endpoint: string, outcome: string, latency_ms: int>>"
    tries = F.concat(F.array(last).cast(shape), F.coalesce(before.cast(shape), F.array().cast(shape)))
    return (
        rows.select(_minute("answered_at"), "producer_group", F.inline(tries))
        .groupBy("minute", "producer_group", "endpoint", "outcome")
        .agg(F.count("*").alias("checks"), F.percentile_approx("latency_ms", 0.5).alias("latency_p50_ms"))
        .orderBy("minute", "producer_group", "endpoint", "outcome")
    )


def decision_latency(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> DataFrame:
    """How long transactions took to be decided, by group, topic and the minute of the decision.

    Columns: minute TIMESTAMP, producer_group, real_topic, decisions BIGINT; in seconds, DOUBLE: from_birth_p50_s,
    from_birth_p99_s, from_landing_p50_s, from_landing_p99_s (percentile_approx: exact for small groups). It joins
    `decisions` (with ``since``: its files of that time) with the times of `half`, which is read once.
    """
    view = View.of(spark, settings, as_of)
    decided = _since(view.read("decisions"), "decided_at", since).select(
        *KEY, "producer_group", "real_topic", "decided_at"
    )
    halves = (
        view.read("half")
        .groupBy(*KEY)
        .agg(F.min("store_timestamp").alias("landed"), F.min_by(born(), "store_timestamp").alias("born"))
    )
    took = {name: F.col("decided_at").cast("double") - F.col(name).cast("double") for name in ("born", "landed")}
    return (
        decided.join(halves, on=KEY, how="inner")
        .groupBy(_minute("decided_at"), "producer_group", "real_topic")
        .agg(
            F.count("*").alias("decisions"),
            *(
                F.percentile_approx(took[column], share, 10_000).alias(f"from_{name}_{label}_s")
                for name, column in (("birth", "born"), ("landing", "landed"))
                for label, share in (("p50", 0.5), ("p99", 0.99))
            ),
        )
        .orderBy("minute", "producer_group", "real_topic")
    )


def pending_over_time(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> DataFrame:
    """How much was pending at the end of each minute, by group, from the group's first half message on.

    Columns: minute TIMESTAMP, producer_group, pending BIGINT. Every minute has a row, up to the last in which the
    tables tell of anything at all. By when half messages landed and were decided, not by time travel. It reads `half`
    and `decisions` once and shuffles their offsets; ``since`` leaves earlier minutes out of the result.
    """
    view = View.of(spark, settings, as_of)
    halves = first_of_each(view.read("half").select(*KEY, "producer_group", "store_timestamp"))
    decided = view.read("decisions").groupBy(*KEY).agg(F.min("decided_at").alias("decided_at"))
    lives = halves.join(decided, on=KEY, how="left")
    steps = F.array(
        F.struct(_minute("store_timestamp"), F.lit(1).alias("step")),
        # A clock that was put back must not end what has not begun.
        F.struct(
            F.date_trunc("minute", F.greatest("store_timestamp", "decided_at")).alias("minute"),
            F.lit(-1).alias("step"),
        ),
    )
    # An undecided one has no end.
    begun = F.when(F.col("decided_at").isNull(), F.slice(steps, 1, 1)).otherwise(steps)
    changes = lives.select("producer_group", F.inline(begun)).groupBy("producer_group", "minute")
    of_group = Window.partitionBy("producer_group").orderBy("minute")
    so_far = changes.agg(F.sum("step").alias("step")).select(
        "producer_group",
        "minute",
        F.sum("step").over(of_group).alias("pending"),
        F.lead("minute").over(of_group).alias("next"),
    )
    minute = F.expr("INTERVAL 1 MINUTE")
    until = F.coalesce(F.col("next") - minute, F.greatest("minute", "last"))
    rows = so_far.crossJoin(F.broadcast(_last_minute(view))).select(
        F.explode(F.sequence("minute", until, minute)).alias("minute"), "producer_group", "pending"
    )
    return _since(rows, "minute", since).orderBy("minute", "producer_group")


def _last_minute(view: View) -> DataFrame:
    """One row, `last`: the last minute that the tables tell of."""
    times = {"half": "store_timestamp", "decisions": "decided_at", "check_answers": "answered_at"}
    found = [view.read(name).select(F.max(time).alias("at")) for name, time in times.items()]
    newest = found[0].union(found[1]).union(found[2]).agg(F.max("at").alias("at"))
    return newest.select(F.date_trunc("minute", "at").alias("last"))


def _minute(time: str) -> Column:
    return F.date_trunc("minute", time).alias("minute")


def _since(rows: DataFrame, time: str, since: datetime | str | None) -> DataFrame:
    """Rows from a moment on. Raises SettingsError."""
    moment = read_moment(since)
    return rows if moment is None else rows.where(F.col(time) >= moment_column(moment))
