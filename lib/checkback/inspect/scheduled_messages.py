"""Scheduled messages: committed, and published later."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.inspect.pending_transactions import KEY
from checkback.inspect.view import View

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings


def scheduled(spark: SparkSession, settings: Settings, as_of: datetime | str | None = None) -> DataFrame:
    """The scheduled messages, the next to be delivered first, now or as of a point in time.

    Columns: queue_id INT, queue_offset BIGINT, transaction_id, producer_group, real_topic, decided_at (of the COMMIT),
    source (whose COMMIT), deliver_at, due_in_s DOUBLE (negative: overdue by so much), as_of (TIMESTAMP).

    Reads decisions twice and deliveries once. Raises as `pending`.
    """
    view = View.of(spark, settings, as_of)
    decisions = view.read("decisions")
    ended = decisions.where("state = 'CANCEL'").select(*KEY).union(view.read("deliveries").select(*KEY))
    rows = decisions.where("state = 'COMMIT' AND deliver_at IS NOT NULL").join(ended, on=KEY, how="left_anti")
    due_in = F.col("deliver_at").cast("double") - view.now.cast("double")
    names = ["transaction_id", "producer_group", "real_topic", "decided_at", "source", "deliver_at"]
    found = rows.select(*KEY, *names, due_in.alias("due_in_s"), view.now.alias("as_of"))
    return found.orderBy("deliver_at", *KEY)
