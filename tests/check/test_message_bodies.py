"""Half messages that go along with the checks, of many queues at once."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.check.query import with_messages
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)


def test_requests_of_thousands_of_queues_get_their_messages(spark: SparkSession, tmp_path: Path) -> None:
    """What skips files stays small, however many queues there are."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(spark, "half")
    same = {"queue_offset": 0, "transaction_id": "t", "producer_group": "orders", "real_topic": "a"}
    rows = [same | {"queue_id": queue, "born_timestamp": NOW} for queue in range(4000)]
    half = [row | {"real_queue_id": 0, "properties": [], "body": b"b", "store_timestamp": NOW} for row in rows]
    tables.append_arrow(spark, pa.Table.from_pylist(half[:-1], schema=arrow_schema("half")), "half")
    asked = [row | {"check_times": 1, "requested_at": NOW, "batch_id": 0} for row in rows]
    requests = pa.Table.from_pylist(asked, schema=arrow_schema("check_requests"))
    found = with_messages(spark, tables, requests, ["orders"], {2_000_000_000}).selectExpr("message.body").toArrow()
    assert found.num_rows == len(rows)
    assert found.column("body").null_count == 1
