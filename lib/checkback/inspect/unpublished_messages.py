"""Committed messages that wait for their topic's table: which, since when, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as F

from checkback.inspect.view import View
from checkback.reconcile.published_notes import read_notes, without_noted
from checkback.reconcile.topic_tables import IDENTITY, own_failure, without
from checkback.storage.dataframes import union
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

TABLE = "unpublished"


class Topic(NamedTuple):
    """A topic (None = the messages have none), number of messages waiting, since when (ms), and the newest's reason."""

    topic: str | None
    messages: int
    since: int
    reason: str


def unpublished(spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> DataFrame:
    """The committed messages that their topic's table does not have yet, the oldest first, now or in the past.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, reason, unpublished_at
    TIMESTAMP (time of the batch that decided it), batch_id. Reads only identity columns of the tables of the topics
    concerned. Raises as `pending`.
    """
    return outstanding(View.of(spark, settings, as_of)).orderBy("unpublished_at", "queue_id", "queue_offset")


def topics(view: View) -> list[Topic]:
    """Unpublished messages by topic, the longest waiting first."""
    if not view.version(TABLE):  # never written
        return []
    found = outstanding(view).groupBy("real_topic")
    rows = found.agg(
        F.count("*").alias("messages"),
        F.min(F.unix_millis("unpublished_at")).alias("since"),
        F.max_by("reason", F.struct("unpublished_at", "reason")).alias("reason"),
    )
    return [
        Topic(row["real_topic"], row["messages"], row["since"], row["reason"])
        for row in rows.orderBy("since", "real_topic").collect()
    ]


def outstanding(view: View) -> DataFrame:
    """As `unpublished`, unordered. A topic table that cannot be read counts as empty.

    Without a point in time, messages also count as published if their table has been moved away since.
    """
    rows = view.read(TABLE)
    if view.at is None and view.version(TABLE):
        rows = without_noted(rows, read_notes(view.spark, view.tables, rows))
    rows = rows.dropDuplicates([*IDENTITY, "real_topic"])
    names = [row["real_topic"] for row in rows.select("real_topic").distinct().collect()]
    parts = []
    for topic in names:
        mine = rows.where(F.col("real_topic").eqNullSafe(F.lit(topic)))
        there = None if topic is None else _published(view, TOPIC_PREFIX + topic)
        parts.append(mine if there is None else without(mine, there))
    left = union([rows.limit(0), *parts])
    named = left.drop("queue_id").withColumnsRenamed({"half_queue_id": "queue_id", "half_queue_offset": "queue_offset"})
    columns = ("transaction_id", "producer_group", "real_topic", "reason", "unpublished_at", "batch_id")
    return named.select("queue_id", "queue_offset", *columns)


def _published(view: View, name: str) -> DataFrame | None:
    """The topic's rows; None if there is no table, or it cannot be read."""
    try:
        if view.version(name) is None:
            return None
        rows = view.read(name).select(*IDENTITY)
        rows.limit(1).collect()  # a damaged log is detected only here
    except Exception as error:  # noqa: BLE001 - re-raised unless it is the table's own failure
        own_failure(error)
        return None
    return rows
