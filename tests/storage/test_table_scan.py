"""Rows read from the files of a table, or of all topics' tables in one scan, are those that Delta reads."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow as pa

from checkback.storage import table_scan
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.table_scan import read_table, read_topics
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

    import pytest
    from pyspark.sql import DataFrame, SparkSession


def _append(spark: SparkSession, tables: Tables, name: str, *offsets: int) -> None:
    rows = [{"half_queue_offset": offset, "body": b"b", "properties": [("k", "v")]} for offset in offsets]
    with FileWriter(tables.root) as writer:
        writer.write(name, pa.Table.from_pylist(rows, schema=arrow_schema(name)))
        tables.commit(spark, name, writer.close())


def _contents(rows: DataFrame) -> Counter[tuple[str, int]]:
    found = rows.where("properties['k'] = 'v'").select("topic", "half_queue_offset").collect()
    return Counter((row["topic"], row["half_queue_offset"]) for row in found)


def test_topics_are_read_as_their_tables_were(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one scan, with Spark's reader of Delta where only it knows the rows, and with it alone."""
    tables = Tables(root=str(tmp_path / "batch_id=7"), by_files=True)
    names = {topic: f"{TOPIC_PREFIX}{topic}" for topic in ("a", "b_", "C-1", "d|e%", "none", "gone", "many", "altered")}
    tables.create(spark, *names.values())
    for topic in ("a", "b_", "C-1", "d|e%", "gone", "altered"):
        _append(spark, tables, names[topic], 1, 2)
    for offset in range(3):
        _append(spark, tables, names["many"], offset)
    where = tables.in_sql(names["gone"])
    spark.sql(f"ALTER TABLE {where} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"DELETE FROM {where} WHERE half_queue_offset = 1")  # noqa: S608 - a quoted name
    spark.sql(f"ALTER TABLE {tables.in_sql(names['altered'])} ADD COLUMNS (more INT)")
    spark.sql(f"OPTIMIZE {tables.in_sql(names['a'])}")
    versions = {name: tables.log(name).version() for name in names.values()}
    _append(spark, tables, names["C-1"], 3)
    monkeypatch.setattr(table_scan, "_FEW_FILES", 2)
    rows = read_topics(spark, tables, versions)
    expected = [*((topic, offset) for topic in ("a", "b_", "C-1", "d|e%", "altered") for offset in (1, 2)), ("gone", 2)]
    assert _contents(rows) == Counter([*expected, *(("many", offset) for offset in range(3))])
    by_spark = read_topics(spark, Tables(root=tables.root), versions)
    assert _contents(by_spark) == _contents(rows)
    assert by_spark.dtypes == rows.dtypes
    assert read_topics(spark, tables, {}).dtypes == rows.dtypes
    assert "parquet" in str(rows.inputFiles()[0])
    assert _contents(read_topics(spark, tables, {names["many"]: 1})) == Counter([("many", 0)])


def test_table_is_read_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Of whichever columns, with and without rows, as it is now and was at a version; altered, by Delta."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(spark, "decisions")
    nothing = read_table(spark, tables, "decisions")
    for offset in range(2):
        rows = pa.Table.from_pylist([{"queue_offset": offset}], schema=arrow_schema("decisions"))
        tables.append_arrow(spark, rows, "decisions")
    found = read_table(spark, tables, "decisions")
    assert nothing.dtypes == found.dtypes == tables.read(spark, "decisions").dtypes
    assert nothing.collect() == []
    assert _offsets(found) == [0, 1]
    assert _offsets(read_table(spark, tables, "decisions", 1)) == [0]
    where = tables.in_sql("decisions")
    spark.sql(f"ALTER TABLE {where} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    spark.sql(f"ALTER TABLE {where} UNSET TBLPROPERTIES ('delta.appendOnly')")
    spark.sql(f"DELETE FROM {where} WHERE queue_offset = 0")  # noqa: S608 - a quoted name
    assert _offsets(read_table(spark, tables, "decisions")) == [1]


def _offsets(rows: DataFrame) -> list[int]:
    return sorted(row["queue_offset"] for row in rows.collect())
