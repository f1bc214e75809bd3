"""The data files of a table that Spark writes, followed commit by commit in the driver."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.storage.log.snapshot_files import DataFile

pytestmark = pytest.mark.spark

NAME, SCHEMA, _KEY, _ALL = "topics/orders", "jvm_files_test", "half_queue_offset", 1 << 20


@pytest.fixture(params=["catalog", "folder"])
def tables(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> Iterator[Tables]:
    """With one row."""
    if request.param == "catalog":
        spark.sql(f"CREATE SCHEMA spark_catalog.{SCHEMA}")
    found = (
        Tables(root=str(tmp_path / "a folder"))
        if request.param == "folder"
        else Tables(catalog="spark_catalog", schema=SCHEMA, checkpoints=str(tmp_path))
    )
    try:
        found.create(spark, NAME)
        _append(spark, found, 1)
        yield found
    finally:
        spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{SCHEMA} CASCADE")


def _append(spark: SparkSession, tables: Tables, *offsets: int) -> None:
    rows = [{"properties": [], "half_queue_id": 3, _KEY: offset} for offset in offsets]
    tables.append_arrow(spark, pa.Table.from_pylist(rows, arrow_schema(NAME)), NAME, "a", offsets[0])


def _offsets(spark: SparkSession, tables: Tables, least: int = 0) -> list[int] | None:
    """Of the files whose statistics have an offset of ``least`` or more."""

    def chosen(file: DataFile) -> bool:
        assert file.spans["half_queue_id"] == (3, 3)
        assert set(map(type, sum(file.spans.values(), ()))) == {int}
        return bool(file.spans[_KEY][1] >= least)

    files = tables.contents(spark, NAME, chosen, _ALL)
    if files is None:
        return None
    return sorted(row for file in files for row in pq.read_table(pa.BufferReader(file))[_KEY].to_pylist())


def _jobs(spark: SparkSession) -> int:
    context: Any = spark.sparkContext
    return int(context._jsc.sc().dagScheduler().numTotalJobs())


def test_files_are_known_after_one_job(spark: SparkSession, tables: Tables) -> None:
    """Those of later commits are read from the log; files that are not wanted, or too large, are not read."""
    assert _offsets(spark, tables) == [1]
    before = _jobs(spark)
    for offset in range(2, 9):
        _append(spark, tables, offset, 100 + offset)
        assert (_offsets(spark, tables, least=101) or [])[-1:] == [100 + offset]
    assert len(_offsets(spark, tables) or ()) == 15
    assert tables.contents(spark, NAME, lambda _: True, 1000) is None
    assert _jobs(spark) == before


def test_files_that_commits_remove(spark: SparkSession, tables: Tables) -> None:
    """Deleted and restored rows, a compaction, many commits at once, a table made anew."""
    other = Tables(**{key: vars(tables)[key] for key in ("root", "catalog", "schema")})  # follows nothing
    table = tables.in_sql(NAME)
    steps = [
        f"DELETE FROM {table} WHERE {_KEY} = 1",  # noqa: S608 - quoted
        f"OPTIMIZE {table}",
        f"RESTORE TABLE {table} TO VERSION AS OF 2",
        f"CREATE OR REPLACE TABLE {table} USING delta AS TABLE {table} LIMIT 1",
    ]
    for number, step in enumerate(steps):
        _append(spark, other, 10 + number, 20 + number)
        assert _offsets(spark, tables) == _of_spark(spark, tables)
        spark.sql(step)
        assert _offsets(spark, tables) == _of_spark(spark, tables)
    for offset in range(100, 125):
        _append(spark, other, offset)
    assert _offsets(spark, tables) == _of_spark(spark, tables)


def _of_spark(spark: SparkSession, tables: Tables) -> list[int]:
    return sorted(row[0] for row in tables.read(spark, NAME).select(_KEY).collect())


def test_commit_that_the_driver_cannot_read(spark: SparkSession, tables: Tables) -> None:
    """As where the log was cleaned up, or the catalog has it: Spark is asked for the files again."""
    assert _offsets(spark, tables) == [1]
    for offset in (2, 3):
        _append(spark, tables, offset)
    place = spark.sql(f"DESCRIBE DETAIL {tables.in_sql(NAME)}").select("location").collect()[0][0]
    jvm: Any = spark._jvm
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place).checkpoint()
    for version in (0, 1, 2):
        (Path(unquote(urlparse(place).path)) / f"_delta_log/{version:020}.json").unlink()
    assert _offsets(spark, tables) == [1, 2, 3]


def test_rows_that_only_spark_can_tell(spark: SparkSession, tables: Tables) -> None:
    """Files with deletion vectors have rows that the table has not."""
    assert _offsets(spark, tables) == [1]
    spark.sql(f"ALTER TABLE {tables.in_sql(NAME)} SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    assert _offsets(spark, tables) is None
