"""Files in whatever Arrow types another writer uses: each reader finds the rows, in the table's own types."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from checkback.maintain.compaction import rewritten
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.parquet.parquet_reader import read_rows, row_batches
from checkback.storage.schemas import SCHEMAS, arrow_schema, in_schema
from maintain.fixtures import maintained, settings_of
from support.odd_rows import REPLACED, append_odd
from support.other_types import KINDS, rewrite

if TYPE_CHECKING:
    from pathlib import Path

#: two values of each type
_VALUES: dict[pa.DataType, tuple[Any, Any]] = {
    pa.int32(): (1, 2),
    pa.int64(): (1, 1 << 40),
    pa.string(): ("a", "z" * 40),
    pa.binary(): (b"", b"\xff" * 40),
    pa.bool_(): (False, True),
    pa.timestamp("us", "UTC"): (datetime(2026, 1, 1, tzinfo=timezone.utc), datetime(2026, 1, 2, tzinfo=timezone.utc)),
}


def _value(kind: pa.DataType, which: int) -> Any:
    if pa.types.is_map(kind):
        return [("key", _value(kind.item_type, which))]
    if pa.types.is_list(kind):
        return [_value(kind.value_type, which)]
    if pa.types.is_struct(kind):
        return {field.name: _value(field.type, which) for field in kind}
    return _VALUES[kind][which]


def _rows(name: str) -> pa.Table:
    """Three rows of different values, of which the last has a null in each column."""
    schema = arrow_schema(name)
    rows = [{field.name: _value(field.type, which) for field in schema} for which in (0, 1)]
    return pa.Table.from_pylist([*rows, {}], schema)


def _written(root: str, name: str, rows: pa.Table) -> str:
    DeltaLog.create(name, f"{root}/{name}")
    with FileWriter(root) as writer:
        writer.write(name, rows)
        files = writer.close()
    DeltaLog(name, f"{root}/{name}").commit(files)
    return f"{root}/{name}"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*SCHEMAS, "topics/t", "consumer_groups/g"])
def test_rows_are_found_by_each_column(tmp_path: Path, name: str, kind: str) -> None:
    """By equality and among several values of each type, in a file of two row groups, with all columns and with one."""
    rows = _rows(name)
    place = _written(str(tmp_path), name, rows)
    rewrite(place, kind)
    (file,) = DeltaLog(name, place).data_files()
    tries = [pc.scalar(True)]
    for field in {field.type: field for field in rows.schema}.values():
        if field.type in _VALUES:
            one, two = (pa.scalar(value, field.type) for value in _VALUES[field.type])
            column = pc.field(field.name)
            tries += [column >= two, column.isin(pa.array([one.as_py()], field.type)), column.is_null()]
    for wanted in tries:
        found = rows.filter(wanted)
        assert read_rows(file.path, name, None, wanted).equals(found), wanted
        some = rows.schema.names[:1]
        assert read_rows(file.path, name, some, wanted).equals(found.select(some)), wanted
        pieces = row_batches(file.path, name, rows.schema.names, wanted)
        assert pa.concat_tables([rows.schema.empty_table(), *pieces]).equals(found), wanted
    (compacted,) = rewritten(name, str(tmp_path), [file.path.rpartition("/")[2]])
    assert read_rows(f"{place}/{compacted.path}", name, None, pc.scalar(True)).equals(rows)


@pytest.mark.parametrize("kind", KINDS)
def test_maintain_gives_the_table_its_own_types_again(tmp_path: Path, kind: str) -> None:
    """How much memory the rows take is known, too."""
    for _ in range(2):
        place = _written(str(tmp_path), "rejected", _rows("rejected"))
    rewrite(place, kind)
    assert maintained(settings_of(tmp_path))["rejected"].rewritten == 2
    (file,) = DeltaLog("rejected", place).data_files()
    assert pq.read_schema(file.path).types == arrow_schema("rejected").types


@pytest.mark.parametrize("kind", ["view", "large", "dictionary"])
def test_text_that_is_not_utf8_is_replaced_in_other_types(tmp_path: Path, kind: str) -> None:
    place = _written(str(tmp_path), "rejected", _rows("rejected"))
    append_odd(str(tmp_path), "rejected", [{"source": "op", "raw": "bad", "reason": "bad"}])
    rewrite(place, kind)
    files = DeltaLog("rejected", place).data_files()
    found = pa.concat_tables(read_rows(file.path, "rejected", None, pc.field("source") == "op") for file in files)
    assert found.column("raw").to_pylist() == found.column("reason").to_pylist() == [REPLACED]


def test_times_between_microseconds_are_cut() -> None:
    times = pa.table({"tick_at": pa.array([1_999], pa.timestamp("ns", "UTC"))})
    assert in_schema(times, arrow_schema("ticks")).column(0).cast(pa.int64()).to_pylist() == [1]
