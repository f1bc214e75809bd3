"""Columns that somebody adds to the tables, as docs/tables.md allows, whatever their names: nothing changes."""

from __future__ import annotations

import ast
import re
import time
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

import checkback
from application.test_rebuild import breaking
from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.errors import CheckbackError
from checkback.query.answers import Answers
from checkback.query.engines.spark_engine import SparkEngine
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from support.ended import assert_ended
from support.lines import land_lines
from support.query_times import append
from support.rows import records_of
from support.scripted import made

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: packages that read the tables with Spark
_PACKAGES = ("application", "check", "landing", "query", "reconcile", "storage")
_NAME = re.compile("_?[a-z][a-z0-9_]*")


def names_used_inside() -> set[str]:
    """Every text in these packages that may be the name of a column."""
    found: set[str] = set()
    for package in _PACKAGES:
        for file in (Path(checkback.__file__).parent / package).rglob("*.py"):
            nodes = ast.walk(ast.parse(file.read_text()))
            texts = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
            found.update(filter(_NAME.fullmatch, texts))
    return found


def add_columns(tables: Tables, name: str, columns: set[str]) -> None:
    fields = [Field(column, PrimitiveType("string")) for column in sorted(columns - {*arrow_schema(name).names})]
    DeltaTable(tables.location(name)).alter.add_columns(fields)


def test_columns_of_every_name_that_is_used_inside_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ops and half messages are rejected, a batch breaks off and a rebuild completes it: all ends as it must."""
    columns = names_used_inside()
    assert {"detail", "owner", "reason", "_n", "interrupted", "group_hash", "batch_time"} < columns
    random = Random(11)
    trace = made(random, 120, round(time.time() * 1000))
    for half in trace.halves.values():
        half["check_immunity"] = None
    trace.write_parts(tmp_path, random, 3)
    content: dict[str, Any] = {
        "storage": {"root": str(tmp_path / "data")},
        "transaction": {"timeout": "1h", "check_max": 1, "check_interval": "1ms"},
        "reconcile": {"partitions": 2, "segment_size": 64},
    }
    settings = Settings.model_validate(content)
    tables = Tables.of(settings.storage)

    def land_part(number: int) -> None:
        land_lines(settings.storage.root, *(tmp_path / kind / f"{number}.jsonl" for kind in ("half", "op")))

    def rejected() -> set[str]:
        return {row["source"] for row in records_of(tables.root, "rejected")}

    land_part(0)
    reconcile(spark, settings, available_now=True)
    before = len(records_of(tables.root, "rejected"))
    for name in (*SCHEMAS, *tables.topics(spark)):
        add_columns(tables, name, columns)
    land_part(1)
    repeated = records_of(tables.root, "half", *arrow_schema("half").names)[0]
    later = {"transaction_id": "another", "store_timestamp": datetime.now(timezone.utc)}
    append(Path(tables.root), "half", [repeated | later])
    reconcile(spark, settings, available_now=True)
    assert rejected() == {"half", "op"}
    assert len(records_of(tables.root, "rejected")) > before + 1

    land_part(2)
    with monkeypatch.context() as patch:
        breaking(patch, lambda name: name.startswith("topics/"))
        with pytest.raises(CheckbackError):
            reconcile(spark, settings, available_now=True)
    content["transaction"]["timeout"] = "0s"  # what nobody decides is given up
    settings = Settings.model_validate(content)
    rebuilt = rebuild(spark, settings, print)
    assert rebuilt is not None
    assert rebuilt.finished["decisions"]
    for _ in range(2):
        reconcile(spark, settings, available_now=True)
    assert_ended(spark, settings, trace)
    assert not Answers(settings).audit().broken
    for name in (*SCHEMAS, *tables.topics(spark)):
        filed = SparkEngine(spark, tables).read(name, file=True)
        assert filed.columns == [*(column for column in arrow_schema(name).names if column != "body"), "_file"]
        assert all(row["_file"].endswith(".parquet") for row in filed.limit(2).collect())
