"""Readers of other projects find in each table, by a filter of each column, what is there: statistics hide nothing."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.spark_schemas import schema_of
from support.examples import fewer

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TABLES = [*SCHEMAS, "topics/t", "consumer_groups/g"]
_VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): st.integers(-3, 3),
    pa.int64(): st.integers(-3, 3),
    pa.string(): st.sampled_from(["", "a", "b", "z" * 40, "z" * 41, "\U0010ffff" * 33]),
    pa.binary(): st.sampled_from([b"", b"a", b"\xff" * 40]),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "UTC"): st.sampled_from([datetime(2026, 1, 1, 0, 0, 0, us, timezone.utc) for us in (0, 1, 999)]),
}

#: what DuckDB is asked of a column, and of one of its values
_SQL = ("IS NULL", "IS NOT NULL", "= ?")


def _rows(name: str) -> st.SearchStrategy[pa.Table]:
    """Some rows of a table with values of which some repeat, often with nulls; maps and lists are null."""
    schema = arrow_schema(name)

    def of(nulls: bool) -> st.SearchStrategy[pa.Table]:
        some = {field.name: _VALUES.get(field.type, st.none()) for field in schema}
        columns = {column: values | st.none() if nulls else values for column, values in some.items()}
        rows = st.lists(st.fixed_dictionaries(columns), min_size=1, max_size=3)
        return rows.map(lambda found: pa.Table.from_pylist(found, schema))

    return st.booleans().flatmap(of)


def _append(root: str, name: str, rows: pa.Table) -> None:
    DeltaLog.create(name, f"{root}/{name}")
    with FileWriter(root) as writer:
        writer.write(name, rows)
        files = writer.close()
    DeltaLog(name, f"{root}/{name}").commit(files)


def _assert_found(place: str) -> None:
    """What each reader finds by each column's values, and by null, is what all rows have of it."""
    table = DeltaTable(place)
    dataset = table.to_pyarrow_dataset()
    rows = dataset.to_table()
    database = duckdb.connect()
    database.register("rows", dataset)
    for field in rows.schema:
        column, values = rows.column(field.name), pc.field(field.name)
        unique = pc.unique(column.drop_null() if field.type in _VALUES else pa.array([]))
        conditions = [values.is_null(), values.is_valid(), *(values == value for value in unique)]
        # Statistics that hide a row from these hide it from equality, too: one value tells whether a reader has them.
        for value in unique[:1]:
            conditions += [values.isin([value]), values <= value, values >= value]
        counts = [rows.filter(condition).num_rows for condition in conditions]
        assert [dataset.count_rows(filter=condition) for condition in conditions] == counts, field.name
        one = unique[:1].to_pylist()
        sql = [f'(SELECT count(*) FROM rows WHERE "{field.name}" {asked})' for asked in _SQL[: 2 + len(one)]]  # noqa: S608
        found = database.execute(f"SELECT {', '.join(sql)}", one)
        assert found.fetchall() == [tuple(counts[: len(sql)])], field.name
        if pa.types.is_string(field.type) and column.drop_null():
            text = column.drop_null()[0].as_py()
            by_name = table.to_pyarrow_table(columns=[field.name], filters=[(field.name, "=", text)])
            assert by_name.num_rows == rows.filter(values == text).num_rows, field.name


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
@settings(fewer(30), phases=[Phase.generate])
@given(data=st.data())
def test_each_row_is_found_by_each_column(
    tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject
) -> None:
    """In files with and without nulls, read from commits and from a checkpoint."""
    root = str(tmp_path_factory.mktemp("tables"))
    for rows in data.draw(st.lists(_rows(name), min_size=1, max_size=3)):
        _append(root, name, rows)
    _assert_found(f"{root}/{name}")
    DeltaLog(name, f"{root}/{name}").checkpoint()
    _assert_found(f"{root}/{name}")


def test_rows_beside_those_of_other_writers_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """Spark appends, delta-rs rewrites files, and each writes checkpoints."""
    root = str(tmp_path)
    for name in ("half", "rejected", "ticks", "consumer_groups/g"):
        place = f"{root}/{name}"
        first, second = _some(name, 1), _some(name, None)
        for rows in (first, second):
            _append(root, name, rows)
        for rows in (first, second):
            frame = spark.createDataFrame(rows.to_pylist(maps_as_pydicts="strict"), schema_of(name))
            frame.write.format("delta").mode("append").save(place)
        _assert_found(place)
        jvm: Any = spark._jvm
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, place)
        nothing = jvm.scala.Option.empty()
        log.checkpoint(log.update(False, nothing, nothing), None)
        _assert_found(place)
        DeltaTable(place).optimize.compact()
        _append(root, name, second)
        _assert_found(place)


def _some(name: str, value: int | None) -> pa.Table:
    """Three rows: the same value in each, null in each, or in one of them."""
    schema = arrow_schema(name)
    by_kind: dict[pa.DataType, Any] = {pa.string(): "a" * 40, pa.binary(): b"a", pa.bool_(): True}
    by_kind[pa.timestamp("us", "UTC")] = datetime(2026, 1, 1, 0, 0, 0, 1, timezone.utc)
    made = {field.name: by_kind.get(field.type, 1) if field.type in _VALUES else None for field in schema}
    nothing: dict[str, Any] = dict.fromkeys(schema.names)
    return pa.Table.from_pylist([made if value else nothing, made if value else nothing, made], schema)
