"""`transaction.count_undelivered: false` from end to end: a producer that is down costs its transactions nothing."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from check.servers import Server, always, reply, says, unused_url
from checkback.application.queries import reconcile
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from support.rows import rows_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

BORN = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)


def settings(root: Path, *urls: str) -> Settings:
    """One check, then the discard, but for checks that no endpoint received."""
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "transaction": {
                "timeout": "0s",
                "check_interval": "1ms",
                "check_max": 1,
                "max_age": "36500d",
                "count_undelivered": False,
            },
            "reconcile": {"partitions": 1},
            "producers": {"orders": {"endpoints": list(urls)}},
        }
    )


def _land(spark: SparkSession, root: Path) -> None:
    """All tables, with one half message."""
    tables = Tables(root=str(root), by_files=True)
    tables.create(spark, *SCHEMAS)
    schema = arrow_schema("half")
    half: tuple[Any, ...] = (0, 1, "tx-1", "orders", "payments", 0, None, None, [], b"42", BORN, BORN, None)
    row = dict(zip(schema.names, half, strict=False))  # the last columns are null
    tables.append_arrow(spark, pa.Table.from_pylist([row], schema), "half")


def test_producer_is_down_for_longer_than_all_its_checks_then_asked(spark: SparkSession, tmp_path: Path) -> None:
    """Two scheduled runs find nobody, with one check allowed; the third one finds the producer, and its answer counts.

    All three are the first check: its number is used until somebody has received it.
    """
    _land(spark, tmp_path)

    def rows(name: str, *columns: str) -> list[tuple[Any, ...]]:
        return sorted(rows_of(tmp_path, name, *columns))

    for run in (1, 2):
        reconcile(spark, settings(tmp_path, unused_url()), available_now=True)
        assert rows("check_requests", "check_times") == [(1,)] * run
        assert rows("op", "state") == []
        assert rows("check_answers", "check_times", "outcome", "delivered") == [(1, "NO_ANSWER", False)] * run
    assert rows("decisions", "state") == rows("rejected", "reason") == []

    with Server(always(reply(says("COMMIT")))) as server:
        reconcile(spark, settings(tmp_path, server.url), available_now=True)
    assert len(server.received) == 1
    assert rows("check_requests", "check_times") == [(1,)] * 3
    assert rows("decisions", "state", "source", "check_times") == [("COMMIT", "check", 1)]
    assert rows("topics/payments", "transaction_id") == [("tx-1",)]
    assert rows("rejected", "reason") == []


def test_producer_that_says_unknown_has_received_the_check(spark: SparkSession, tmp_path: Path) -> None:
    """That counts: the next run gives the message up, and nobody is asked again."""
    _land(spark, tmp_path)
    with Server(always(reply(says("UNKNOWN")))) as server:
        for _ in range(2):
            reconcile(spark, settings(tmp_path, server.url), available_now=True)
    assert len(server.received) == 1
    assert rows_of(tmp_path, "op", "state", "source", "remark") == [("COUNTED", "check", "check 1")]
    assert rows_of(tmp_path, "decisions", "state", "reason", "check_times") == [("DISCARD", "CHECK_MAX", 1)]
