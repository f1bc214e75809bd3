"""Another writer's half messages and ops, with text that is not UTF-8: they end, and hold up nothing beside them."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.query.answers import Answers, records
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from reconcile.messages import T0
from reconcile.messages import half as half_row
from support.odd_rows import REPLACED, append_odd

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

ODD: list[dict[str, Any]] = [
    {"transaction_id": "bad"},
    {"producer_group": "bad"},
    {"real_topic": "bad"},
    {"tags": "bad", "keys": "bad", "properties": [("bad", "bad")]},
]


def test_text_that_is_not_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """Committed by ops of the same bytes, or given up; the same after a rebuild, and for questions on Spark."""
    rules = {"timeout": "0s", "check_max": 1, "check_interval": "1ms"}
    content = {"storage": {"root": str(tmp_path)}, "transaction": rules, "reconcile": {"partitions": 2}}
    settings = Settings.model_validate(content)
    tables = Tables.of(settings.storage)
    tables.create(spark, *SCHEMAS)
    good: dict[str, Any] = {"producer_group": "orders", "state": "COMMIT", "source": "producer", "store_timestamp": T0}
    tables.append_arrow(spark, pa.Table.from_pylist([half_row(0)], arrow_schema("half")), "half")
    odd = [half_row(1 + number) | columns for number, columns in enumerate(ODD)]
    append_odd(str(tmp_path), "half", odd)
    append_odd(str(tmp_path), "half", [row | {"queue_offset": 100 + row["queue_offset"]} for row in odd])
    ops = [
        good
        | {"queue_id": 0, "queue_offset": row["queue_offset"]}
        | {name: row[name] for name in ("transaction_id", "producer_group")}
        for row in [half_row(0), *odd]
    ]
    append_odd(str(tmp_path), "op", ops)
    for _ in range(2):
        reconcile(spark, settings, available_now=True)
    shutil.rmtree(f"{tables.checkpoint('reconcile')}")
    assert rebuild(spark, settings, print) is not None
    reconcile(spark, settings, available_now=True)
    for engine in (None, spark):
        with Answers(settings, engine) as answers:
            found = {row["queue_offset"]: row for row in records(answers.decided(since="36500d ago"))}
            assert {offset: row["state"] for offset, row in found.items()} == dict.fromkeys(range(5), "COMMIT") | (
                dict.fromkeys(range(101, 105), "DISCARD")
            )
            assert found[1]["transaction_id"] == REPLACED
            assert records(answers.pending()) == []
            assert [row for row in records(answers.findings()) if row["level"] == "broken"] == []
