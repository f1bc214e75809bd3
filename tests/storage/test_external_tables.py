"""Tables in folders and object stores that a catalog has, too: by path for Checkback, by name for everybody else."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.application.queries import reconcile
from checkback.errors import StorageError
from checkback.settings import Settings
from checkback.storage.catalog_names import table_name
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from operate.fixtures import Lakehouse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SCHEMA = "spark_catalog.registered"


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    spark.sql(f"CREATE SCHEMA {SCHEMA}")
    try:
        yield SCHEMA
    finally:
        spark.sql(f"DROP SCHEMA {SCHEMA} CASCADE")


def _rows(spark: SparkSession, name: str) -> list[str]:
    return [row[0] for row in spark.table(f"{SCHEMA}.{table_name(name)}").select("transaction_id").collect()]


def test_tables_are_in_the_catalog_and_committed_by_path(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    """Those that were there before, and those of topics that a batch creates; dropped from the catalog, they stay."""
    lake = Lakehouse(tmp_path)
    settings = Settings.model_validate(
        {"storage": {"root": str(tmp_path), "register": schema}, "reconcile": {"partitions": 2}}
    )
    tables = Tables.of(settings.storage)
    assert tables.by_files
    DeltaLog.create("topics/older", f"{tmp_path}/topics/older")
    DeltaLog.create("topics/damaged", f"{tmp_path}/topics/damaged")
    (tmp_path / f"topics/damaged/_delta_log/{0:020}.json").write_text("{")
    (tmp_path / f"topics/damaged/_delta_log/{0:020}.crc").write_text("{}")  # it was on the disk once
    for offset, topic in enumerate(("orders", "Orders")):
        place = lake.half(offset, f"tx-{offset}", real_topic=topic)
        lake.op(place, transaction_id=f"tx-{offset}")
    for _ in range(2):
        reconcile(spark, settings, available_now=True)
    assert _rows(spark, "topics/orders") == ["tx-0"]
    assert _rows(spark, "topics/Orders") == ["tx-1"]
    assert sorted(_rows(spark, "half")) == ["tx-0", "tx-1"]
    there = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect() if not row["isTemporary"]}
    assert there == {table_name(name) for name in (*SCHEMAS, "topics/older", "topics/orders", "topics/Orders")}
    detail = spark.sql(f"DESCRIBE DETAIL {schema}.decisions").collect()[0]
    assert detail["location"].removeprefix("file:") == f"{tmp_path}/decisions"
    versions = {name: tables.log(name).version() for name in SCHEMAS}
    spark.sql(f"DROP TABLE {schema}.decisions")
    tables.create(spark, *SCHEMAS)
    assert {name: tables.log(name).version() for name in SCHEMAS} == versions, "to register commits nothing"
    assert spark.table(f"{schema}.decisions").count() == 2


def test_schema_of_another_root_is_refused(spark: SparkSession, tmp_path: Path, schema: str) -> None:
    """Who reads by name would go on reading those."""
    places = [tmp_path / name for name in ("a", "b")]
    first, second = (Tables(root=str(place), by_files=True, register=schema) for place in places)
    first.create(spark, "half", "op")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    Tables(root=f"{tmp_path}/link", by_files=True, register=schema).create(spark, "half", "op", "ticks")
    with pytest.raises(StorageError) as caught:
        second.create(spark, "half", "op")
    told = f"{schema}.half: is the table in file:{tmp_path}/a/half, not {tmp_path}/b/half; DROP the tables of"
    assert str(caught.value).startswith(told)
    for name in ("half", "op", "ticks"):
        spark.sql(f"DROP TABLE {schema}.{name}")
    second.create(spark, "half", "op")
    (tmp_path / "b").rename(tmp_path / "moved")
    with pytest.raises(StorageError, match=f"^{schema}.half: .*; DROP the tables of this schema"):
        Tables(root=f"{tmp_path}/moved", by_files=True, register=schema).create(spark, "half", "op")


def test_tables_in_an_object_store(spark: SparkSession, s3_storage: dict[str, Any], schema: str) -> None:
    storage = Settings.model_validate({"storage": {**s3_storage, "register": schema}}).storage
    tables = Tables.of(storage)
    for _ in range(2):
        tables.create(spark, "half", "ticks")
    row = pa.Table.from_pylist([{"transaction_id": "tx"}], arrow_schema("half"))
    tables.append_arrow(spark, row, "half")
    assert _rows(spark, "half") == ["tx"]


def test_catalog_that_refuses_stops_the_start_but_no_topic(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = Tables(root=str(tmp_path), by_files=True, register="spark_catalog.no_such")
    with pytest.raises(StorageError, match=r"cannot be registered.*make the schema first"):
        tables.create(spark, "half")
    with caplog.at_level(logging.WARNING):
        tables.create(spark, "topics/orders")
    assert "no_such.topic_orders" in caplog.text
    assert os.path.isdir(f"{tmp_path}/topics/orders/_delta_log")
