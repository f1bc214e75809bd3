"""Time series of what happened, by minute or another interval, from the times in the tables: rows to plot.

``every`` is the interval; the column, its beginning, is called `minute` regardless. Intervals start at the epoch, UTC.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.errors import SettingsError
from checkback.inspect.pending_transactions import KEY, born, first_of_each
from checkback.inspect.plot_intervals import interval_for
from checkback.inspect.view import View, since_moment

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from checkback.settings import Settings

#: outcome of a failed attempt at an endpoint, after which another one was tried
FAILED_TRY = "FAILED_TRY"
MINUTE = timedelta(minutes=1)
#: times in the life of a half message
_LIFE = ("store_timestamp", "decided_at")
#: the time column of each table
_TIMES = {"half": "store_timestamp", "decisions": "decided_at", "check_answers": "answered_at"}


def decisions_by_minute(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
    every: timedelta = MINUTE,
) -> DataFrame:
    """Number of decisions per minute.

    Columns: minute TIMESTAMP (its beginning), producer_group, state (COMMIT, ROLLBACK, DISCARD; CANCEL of scheduled
    messages), decisions BIGINT. A
    minute without decisions has no row. Reads `decisions` once; with ``since`` only the files of that time.
    """
    view = View.of(spark, settings, as_of)
    rows = since_moment(view.read("decisions"), "decided_at", since)
    return (
        rows.groupBy(_minute("decided_at", every), "producer_group", "state")
        .agg(F.count("*").alias("decisions"))
        .orderBy("minute", "producer_group", "state")
    )


def check_outcomes(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
    every: timedelta = MINUTE,
) -> DataFrame:
    """Outcomes of the checks, by endpoint and minute.

    Columns: minute TIMESTAMP, producer_group, endpoint (null = the group had none), outcome (COMMIT, ROLLBACK, UNKNOWN,
    NO_ANSWER, SKIPPED; FAILED_TRY: not the outcome of a check, the next endpoint was tried), checks BIGINT,
    latency_p50_ms INT (null for a FAILED_TRY). Reads `check_answers` once; with ``since`` only the files of that time.
    """
    view = View.of(spark, settings, as_of)
    rows = since_moment(view.read("check_answers"), "answered_at", since)
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
        rows.select(_minute("answered_at", every), "producer_group", F.inline(tries))
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
    every: timedelta = MINUTE,
) -> DataFrame:
    """Time to decision, by group, topic and the minute of the decision.

    Columns: minute TIMESTAMP, producer_group, real_topic, decisions BIGINT; in seconds, DOUBLE: from_birth_p50_s,
    from_birth_p99_s, from_landing_p50_s, from_landing_p99_s (percentile_approx: exact for small groups). Joins
    `decisions` (with ``since``: its files of that time) with the times of `half`, which is read once.
    """
    view = View.of(spark, settings, as_of)
    decisions = view.read("decisions").where("state != 'CANCEL'")  # it follows the COMMIT
    decided = since_moment(decisions, "decided_at", since).select(*KEY, "producer_group", "real_topic", "decided_at")
    halves = (
        view.read("half")
        .groupBy(*KEY)
        .agg(F.min("store_timestamp").alias("landed"), F.min_by(born(), "store_timestamp").alias("born"))
    )
    took = {name: F.col("decided_at").cast("double") - F.col(name).cast("double") for name in ("born", "landed")}
    return (
        decided.join(halves, on=KEY, how="inner")
        .groupBy(_minute("decided_at", every), "producer_group", "real_topic")
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
    every: timedelta = MINUTE,
) -> DataFrame:
    """Number pending at the end of each minute, by group, from the group's first half message on.

    Columns: minute TIMESTAMP, producer_group, pending BIGINT. Every minute has a row, up to the last one with any event
    in the tables; times after ``as_of`` are capped at it. Computed from landing and decision times, not by time travel.
    Reads `half` and `decisions` once and shuffles their offsets; ``since`` only drops earlier minutes from the result.
    """
    view = View.of(spark, settings, as_of)
    halves = first_of_each(view.read("half").select(*KEY, "producer_group", "store_timestamp"))
    decided = view.read("decisions").groupBy(*KEY).agg(F.min("decided_at").alias("decided_at"))
    # A timestamp in the year 20000, which another writer may have appended, would generate billions of minutes.
    capped = {name: F.when(F.col(name) > view.now, view.now).otherwise(F.col(name)) for name in _LIFE}
    lives = halves.join(decided, on=KEY, how="left").withColumns(capped)
    steps = F.array(
        F.struct(_minute("store_timestamp", every), F.lit(1).alias("step")),
        # After the clock was set back, a decision must not precede its landing.
        F.struct(
            _minute(F.greatest("store_timestamp", "decided_at"), every),
            F.lit(-1).alias("step"),
        ),
    )
    # Undecided: no end.
    begun = F.when(F.col("decided_at").isNull(), F.slice(steps, 1, 1)).otherwise(steps)
    changes = lives.select("producer_group", F.inline(begun)).groupBy("producer_group", "minute")
    of_group = Window.partitionBy("producer_group").orderBy("minute")
    so_far = changes.agg(F.sum("step").alias("step")).select(
        "producer_group",
        "minute",
        F.sum("step").over(of_group).alias("pending"),
        F.lead("minute").over(of_group).alias("next"),
    )
    minute = F.expr(f"make_dt_interval(0, 0, 0, {every.total_seconds():f})")
    until = F.coalesce(F.col("next") - minute, F.greatest("minute", "last"))
    rows = so_far.crossJoin(F.broadcast(_last_minute(view, every))).select(
        F.explode(F.sequence("minute", until, minute)).alias("minute"), "producer_group", "pending"
    )
    return since_moment(rows, "minute", since).orderBy("minute", "producer_group")


def pick_every(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> timedelta:
    """An interval for plots of the whole time range: a second for tables of a minute, some minutes for those of a day.

    At most `plot_intervals.MOST` intervals. Reads one column each of half, decisions and check_answers.
    """
    view = View.of(spark, settings, as_of)
    found = (
        since_moment(_all_times(view), "at", since).agg(F.unix_micros(F.max("at")) - F.unix_micros(F.min("at"))).first()
    )
    return interval_for(timedelta(microseconds=(None if found is None else found[0]) or 0))


def _all_times(view: View) -> DataFrame:
    """One column, `at`."""
    found = [view.read(name).select(F.col(time).alias("at")) for name, time in _TIMES.items()]
    return reduce(DataFrame.unionAll, found)


def _last_minute(view: View, every: timedelta) -> DataFrame:
    """One row, `last`: the last interval with an event in the tables."""
    newest = _all_times(view).agg(F.least(F.max("at"), view.now).alias("at"))
    return newest.select(_minute("at", every).alias("last"))


def _minute(time: Column | str, every: timedelta) -> Column:
    """The beginning of the interval that contains a time. Raises SettingsError unless ``every`` is positive."""
    if every <= timedelta(0):
        raise SettingsError(f"{every} is not an interval", "every", "give a timedelta above zero")
    micros = F.unix_micros(time)
    return F.timestamp_micros(micros - F.pmod(micros, F.lit(every // timedelta(microseconds=1)))).alias("minute")
