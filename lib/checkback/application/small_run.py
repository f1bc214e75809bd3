"""A run of `reconcile` on a few transactions: after it the JVM and the Python workers have what every run needs."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.application.queries import reconcile
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.settings import Settings


def small_run(spark: SparkSession, settings: Settings) -> None:
    """Decide two half messages, of which one has an op, in the place of ``settings``, which is empty."""
    land(spark, Tables.of(settings.storage))
    reconcile(spark, settings, available_now=True)


def land(spark: SparkSession, tables: Tables) -> None:
    """Append them to new tables."""
    now = datetime.now(timezone.utc)
    name = {"queue_id": 0, "transaction_id": "t", "producer_group": "g", "born_timestamp": now, "store_timestamp": now}
    half = [{**name, "queue_offset": offset, "real_topic": "topic", "body": b"body"} for offset in range(2)]
    op = [{**name, "queue_offset": 0, "state": "COMMIT", "source": "producer"}]
    tables.create(spark, *SCHEMAS)
    for table, rows in (("half", half), ("op", op)):
        tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema(table)), table)
