"""Outages of producer groups in notebooks: since when, until when, and the damage they did (`outage_questions`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from checkback.query.frames import outages
from checkback.query.outage_questions import damage_question
from checkback.query.plot_intervals import in_words, interval_for
from checkback.query.versions.as_of import parse_as_of
from checkback.query.versions.view import View, moment_column
from checkback.storage.timestamps import time_of_us
from checkback.storage.valid_texts import NOT_TRIED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

#: margin shown before and after an outage, as a fraction of its length; and at least
_MARGIN, _LEAST_MARGIN = 0.5, timedelta(seconds=20)


@dataclass(frozen=True)
class Outage:
    """An outage. ``over`` None = it goes on; ``last``: its last failed check; ``told``: three sentences about it."""

    group: str
    outcome: str
    began: datetime
    over: datetime | None
    last: datetime
    told: str

    def __str__(self) -> str:
        return self.told

    @property
    def happened(self) -> bool:
        """Whether there was an outage."""
        return bool(self.group)

    @property
    def lasted(self) -> timedelta:
        """From the first failed check to the next answer, or to the last failed check."""
        return (self.over or self.last) - self.began

    @property
    def since(self) -> datetime:
        """Its beginning, with a margin."""
        return self.began - max(_MARGIN * self.lasted, _LEAST_MARGIN)

    @property
    def until(self) -> datetime:
        """Its end, with a margin."""
        return self.began + self.lasted + max(_MARGIN * self.lasted, _LEAST_MARGIN)

    @property
    def every(self) -> timedelta:
        """An interval for plots."""
        return interval_for(self.until - self.since)

    def around(self, rows: DataFrame, time: str = "minute") -> DataFrame:
        """The rows from ``since`` to ``until``."""
        at = F.col(time)
        return rows.where(at.between(moment_column(self.since - self.every), moment_column(self.until)))


def worst_outage(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
    group: str | None = None,
) -> Outage:
    """The worst of `outages`, of one group or of all; one with ``happened`` false if there was none.

    That is the one with the most discarded, then still pending, then all transactions checked without success.
    """
    harm = (F.desc(name) for name in ("discarded", "still_pending", "transactions", "checks"))
    found = outages(spark, settings, as_of, since=since, group=group).orderBy(*harm, "began_at", "producer_group")
    times = {name: f"{name}_at" for name in ("began", "last_vain", "over")}
    row = found.select("*", *(F.unix_micros(column).alias(name) for name, column in times.items())).first()
    if row is None:
        now = parse_as_of(as_of) or datetime.now(timezone.utc)
        return Outage("", "", now, now, now, "No outage: no group's checks were in vain twice in a row.")
    began, last = time_of_us(row["began"]), time_of_us(row["last_vain"])
    over = None if row["over"] is None else time_of_us(row["over"])
    lines = [
        _what(row["producer_group"], row["outcome"], began, over, row["said"]),
        _asked(row.asDict()),
        _harm(row.asDict()),
    ]
    return Outage(row["producer_group"], row["outcome"], began, over, last, "\n".join(lines))


def damage(spark: SparkSession, settings: Settings, outage: Outage, as_of: datetime | str | None = None) -> DataFrame:
    """The transactions with failed checks in an outage: the discarded, the pending, then the slowest first.

    Columns: queue_id, queue_offset, transaction_id, producer_group, checks (failed) BIGINT, state (null = pending),
    reason, source, decided_at, delay_s DOUBLE (from the first failed check to the decision). Reads as `outages`.
    """
    question = damage_question(outage.group, outage.began, outage.last)
    frame: DataFrame = View.of(spark, settings, as_of).ask(question)
    return frame


def what_endpoints_said(
    spark: SparkSession,
    settings: Settings,
    as_of: datetime | str | None = None,
    *,
    since: datetime | str | None = None,
) -> DataFrame:
    """The result of each attempt of a check, by endpoint and text, the most frequent first.

    Columns: producer_group, endpoint, said (the outcome, or the error of a failed attempt), tries BIGINT, first_at,
    last_at. Attempts that an open circuit breaker prevented are left out. Reads check_answers once.
    """
    view = View.of(spark, settings, as_of)
    rows = view.read("check_answers").where(F.col("outcome") != "SKIPPED")
    moment = view.since(since)
    rows = rows if moment is None else rows.where(F.col("answered_at") >= moment_column(moment))
    last = F.array(F.struct("endpoint", F.coalesce("error", "outcome").alias("said")))
    shape = "array<struct<endpoint: string, said: string>>"
    tries = F.concat(last.cast(shape), F.coalesce(F.col("failed_tries").cast(shape), F.array().cast(shape)))
    found: DataFrame = (
        rows.select("answered_at", "producer_group", F.inline(tries))
        .where(~F.col("said").startswith(NOT_TRIED))
        .groupBy("producer_group", "endpoint", "said")
        .agg(F.count("*").alias("tries"), F.min("answered_at").alias("first_at"), F.max("answered_at").alias("last_at"))
        .orderBy(F.desc("tries"), "producer_group", "endpoint", "said")
    )
    return found


def _what(group: str, outcome: str, began: datetime, over: datetime | None, said: str | None) -> str:
    did = "answered nothing but UNKNOWN" if outcome == "UNKNOWN" else "did not answer"
    until = f"until {over:%H:%M:%S} ({in_words((over - began).total_seconds())})" if over else "and still does"
    if over is None and outcome != "UNKNOWN":
        until = "and still does not"
    return f"{group} {did} from {began:%Y-%m-%d %H:%M:%S} UTC {until}" + (f": {said}." if said else ".")


def _asked(row: dict[str, Any]) -> str:
    about, where = _number(row["transactions"], "transaction"), ", ".join(row["endpoints"]) or "no endpoint"
    return f"It was asked {_number(row['checks'], 'time')} in vain about {about}, at {where}."


def _harm(row: dict[str, int | float]) -> str:
    decided = f"{row['decided']:,} were committed or rolled back later"
    if row["decided"]:
        decided += (
            f", half of them within {in_words(row['delay_p50_s'])}, the last after {in_words(row['delay_max_s'])}"
        )
    return f"Of these {row['discarded']:,} were discarded, {row['still_pending']:,} are still pending, {decided}."


def _number(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
