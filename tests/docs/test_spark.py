"""Python of the pages that is given `spark` and `settings`, on one set of small tables."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest

from checkback.settings import Settings
from docs.blocks import ROOT, Block, blocks
from operate.fixtures import Lakehouse
from support.query_times import append, table
from support.stories import batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Of tables with a transaction that was asked and is pending, a discarded one, two topics, and a whole batch."""
    root = tmp_path_factory.mktemp("docs")
    lake = Lakehouse(root)
    lake.check(lake.half(11, "order-4711", check_immunity_s=0), 1, "NO_ANSWER", "connection refused")
    lake.decide(lake.half(12, "order-4712"), "DISCARD", "checkback")
    append(root, "batches", [batch(1, datetime.now(timezone.utc))[1]])
    for topic in ("orders", "payments"):
        table(root, f"topics/{topic}")
    payment = {"type": "object", "properties": {"amount": {"type": "integer"}, "account": {"type": "string"}}}
    topics = {"payments": {"body": "json", "schema": payment}}
    return Settings.model_validate({"storage": {"root": str(root)}, "topics": topics})


@pytest.mark.parametrize("block", [block for block in blocks("python") if block.needs_spark], ids=str)
def test_python(block: Block, spark: SparkSession, settings: Settings) -> None:
    code = compile(block.text, str(ROOT / block.page), "exec")
    exec(code, {"spark": spark, "settings": settings})  # noqa: S102 - the page's own code
