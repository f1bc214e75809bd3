"""Data of `checkback status`: facts about reconcile and its checkpoint, and from the tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.inspect.progress import Progress, progress
from checkback.storage.commit_reader import CommitReader, Unread
from checkback.storage.lock import lock_is_held
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

    from checkback.inspect.unpublished_messages import Topic
    from checkback.settings import Settings
    from checkback.storage.checkpoint import Batch

#: sources of the query, in order
SOURCES = ("half", "op")
RECENT = timedelta(minutes=5)
#: columns of `group_summary` that status shows
GROUP = (
    "producer_group",
    "pending",
    "overdue",
    "op_waiting",
    "oldest_age_s",
    "silent_since_ms",
    "undecided_since_ms",
    "outcomes",
    "no_answer_share",
    "unknown_share",
    "last_error",
    "endpoints",
    "why",
)


@dataclass(frozen=True)
class Engine:
    """What is known without Spark, if tables and checkpoint are local. Times are ms.

    ``owner``: the running reconcile; empty = none, None = unknown. ``lag``: by source what no completed batch has read.
    """

    owner: str | None = None
    progress: Progress | None = None
    lag: Mapping[str, Unread] = field(default_factory=dict)


@dataclass(frozen=True)
class TableFacts:
    """Facts from the tables. ``decisions``: (state, in the last minute, in the last RECENT).

    ``scheduled``: messages that wait for their deliver_at, and the next of these times (ms).
    ``groups``: rows with the columns GROUP. ``checks``: (group, endpoint, outcome, number) in the last RECENT.
    ``unpublished``: messages waiting for their topic's table.
    """

    groups: tuple[Mapping[str, Any], ...] = ()
    decisions: tuple[tuple[str, int, int], ...] = ()
    discarded_today: int = 0
    scheduled: tuple[int, int | None] = (0, None)
    checks: tuple[tuple[str, str | None, str, int], ...] = ()
    unpublished: tuple[Topic, ...] = ()


@dataclass(frozen=True)
class ConsumerFacts:
    """A consumer group: its members, messages that it has not consumed, the age of the oldest (s), retries, dead."""

    group: str
    members: int
    lag_messages: int
    lag_s: float
    retries: int
    dead_letters: int


@dataclass(frozen=True)
class Status:
    """The status at ``now`` (ms). ``facts`` None = not read yet; ``consumers`` None = only Spark can read them."""

    now: int
    timeout: timedelta
    reserved: timedelta
    engine: Engine
    facts: TableFacts | None = None
    consumers: tuple[ConsumerFacts, ...] | None = None


def read_status(settings: Settings, now: datetime, spark: SparkSession | None = None) -> Status:
    """The status without what requires Spark; with ``spark``, all of it. Raises SettingsError, StorageError."""
    tables = Tables.of(settings.storage)
    engine = _engine(tables, spark)
    facts = None if spark is None else _facts(spark, settings, tables, now)
    transaction = settings.transaction
    return Status(round(now.timestamp() * 1000), transaction.timeout, transaction.reserved, engine, facts)


def _engine(tables: Tables, spark: SparkSession | None) -> Engine:
    found = progress(spark, tables.checkpoint("reconcile"))
    if found is None:
        return Engine(lock_is_held(tables))
    lag = {}
    for source, name in enumerate(SOURCES):
        unread = _unread(tables, name, source, found.done, spark)
        if unread is not None:
            lag[name] = unread
    return Engine(lock_is_held(tables), found, lag)


def _unread(tables: Tables, name: str, source: int, done: Batch | None, spark: SparkSession | None) -> Unread | None:
    """What the last completed batch has not read of a source. From the table's log, without reading rows."""
    positions = () if done is None else done.positions
    position = positions[source] if source < len(positions) else None
    version, index = (0, -1) if position is None else (position.unread, -1 if position.starting else position.index)
    if tables.by_files:
        # From the version before on: it is there, also when nothing is unread.
        commits = CommitReader.of(tables.location(name), max(0, version - 1))
        return None if commits is None else commits.after(version, index)
    if spark is None or not tables.exists(spark, name):
        return None
    place = tables.location(name) if tables.catalog else f"delta.`{tables.location(name)}`"
    found = (
        spark.sql(f"DESCRIBE HISTORY {place}")
        .where(f"version >= {version} AND operation IN ('WRITE', 'STREAMING UPDATE')")
        .selectExpr(
            "coalesce(sum(cast(operationMetrics['numOutputRows'] AS bigint)), 0) AS rows",
            "unix_millis(min(timestamp)) AS since",
        )
        .first()
    )
    return None if found is None else Unread(found["rows"], found["since"] if found["rows"] else None)


def _facts(spark: SparkSession, settings: Settings, tables: Tables, now: datetime) -> TableFacts:
    """Four queries: one row per group, per state, of what is scheduled, and per endpoint and outcome."""
    from pyspark.sql import functions as F

    from checkback.inspect.groups import group_summary
    from checkback.inspect.scheduled_messages import scheduled
    from checkback.inspect.timeline import check_outcomes
    from checkback.inspect.unpublished_messages import topics
    from checkback.inspect.view import View, moment_column

    now = now.astimezone(timezone.utc)
    summary = group_summary(spark, settings).withColumns(
        {f"{name}_ms": F.unix_millis(name) for name in ("silent_since", "undecided_since")}
    )
    groups = summary.orderBy(F.col("oldest_age_s").desc_nulls_last(), "producer_group").select(*GROUP).collect()
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    decided: list[tuple[str, int, int, int]] = []
    if tables.exists(spark, "decisions"):
        ages = {name: F.col("decided_at") >= moment_column(now - age) for name, age in _AGES.items()}
        rows = tables.read(spark, "decisions").where(F.col("decided_at") >= moment_column(min(midnight, now - RECENT)))
        counts = rows.groupBy("state").agg(
            *(F.count_if(of).alias(name) for name, of in ages.items()),
            F.count_if(F.col("decided_at") >= moment_column(midnight)).alias("today"),
        )
        decided = [(row["state"], row["minute"], row["recent"], row["today"]) for row in counts.collect()]
    outcomes = check_outcomes(spark, settings, since=now - RECENT).groupBy("producer_group", "endpoint", "outcome")
    checks = outcomes.agg(F.sum("checks").alias("checks")).orderBy("producer_group", "endpoint", "outcome").collect()
    return TableFacts(
        groups=tuple(row.asDict() for row in groups),
        decisions=tuple(sorted((state, minute, recent) for state, minute, recent, _ in decided)),
        discarded_today=sum(today for state, _, _, today in decided if state == "DISCARD"),
        scheduled=_scheduled(scheduled(spark, settings)),
        checks=tuple((row["producer_group"], row["endpoint"], row["outcome"], row["checks"]) for row in checks),
        unpublished=tuple(topics(View(spark, tables))),
    )


def _scheduled(rows: DataFrame) -> tuple[int, int | None]:
    from pyspark.sql import functions as F

    found = rows.agg(F.count("*").alias("messages"), F.unix_millis(F.min("deliver_at")).alias("next")).first()
    return (0, None) if found is None else (found["messages"], found["next"])


_AGES = {"minute": timedelta(minutes=1), "recent": RECENT}
