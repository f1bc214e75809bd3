"""Tables of the release before get the columns that this one adds: once, by whoever writes first, losing nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, Schema, write_deltalake

from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import Position
from checkback.storage.files.object_store import options_of
from checkback.storage.log.commit_reader import read_actions
from checkback.storage.log.compatibility import declared_schema
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.torn_commits import is_torn
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import ADDED, arrow_schema, properties_of

if TYPE_CHECKING:
    from checkback.storage.tables import Tables


def table_of_the_release_before(tables: Tables, name: str) -> DeltaTable:
    """The table with two rows."""
    fields = [field for field in declared_schema(name).fields if field.name not in ADDED[name]]
    place, options = tables.location(name), options_of(tables.location(name)) or None
    DeltaTable.create(place, Schema(fields), configuration=properties_of(name), storage_options=options)
    kept = [field.name for field in fields]
    rows: dict[str, Any] = {"queue_id": [1, 2]} if "queue_id" in kept else {"batch_id": [1, 2]}
    schema = pa.schema([arrow_schema(name).field(column) for column in kept])
    table = pa.table({column: rows.get(column, [None, None]) for column in kept}, schema)
    write_deltalake(place, table, mode="append", storage_options=options)
    return DeltaTable(place, storage_options=options)


@pytest.mark.parametrize("name", ADDED)
def test_columns_are_added_once(tables: Tables, name: str) -> None:
    """By several at once; the table keeps its id, its rows and its properties, and takes this release's files."""
    before = table_of_the_release_before(tables, name)
    assert not DeltaLog(name, tables.location(name), tables.sync).appendable()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: DeltaLog.create(name, tables.location(name), tables.sync), range(4)))
    after = DeltaTable(tables.location(name), storage_options=options_of(tables.location(name)) or None)
    old, new = before.schema().fields, after.schema().fields
    assert new[: len(old)] == old
    assert {field.name for field in new[len(old) :]} == ADDED[name]
    assert all(field.nullable and field.metadata["comment"] for field in new[len(old) :])
    assert (after.metadata().id, after.metadata().configuration) == (before.metadata().id, properties_of(name))
    assert after.version() == before.version() + 1
    log = DeltaLog(name, tables.location(name), tables.sync)
    assert log.appendable()
    key = "queue_id" if "queue_id" in arrow_schema(name).names else "batch_id"
    with tables.table_root.writer() as writer:
        writer.write(name, pa.Table.from_pylist([{key: 3}], arrow_schema(name)))
        log.commit(writer.close(), "app", 1)
    rows = [
        read_rows(file.path, name, [key, *sorted(ADDED[name])], pc.field(key).is_valid()) for file in log.data_files()
    ]
    assert sorted(row[key] for part in rows for row in part.to_pylist()) == [1, 2, 3]


def test_a_group_s_table_of_the_release_before(tables: Tables) -> None:
    """It gets the column, and what its rows say is kept."""
    name, row = "consumer_groups/g", {"kind": "QUEUE", "topic": "pay", "queue_id": 3, "dead_letters": 0, "counter": 1}
    before = [field for field in declared_schema(name).fields if field.name != "consumed_times"]
    place, options = tables.location(name), options_of(tables.location(name)) or None
    DeltaTable.create(place, Schema(before), configuration=properties_of(name), storage_options=options)
    columns = pa.schema([arrow_schema(name).field(field.name) for field in before])
    rows = pa.Table.from_pylist([row | {"consumed": [("a", 7)]}], columns)
    write_deltalake(place, rows, mode="append", storage_options=options)
    group = GroupTable(tables, "g")
    [position] = [each.position for each in group.state.queues.values()]
    assert (position.consumed, position.times) == ({"a": 7}, {})
    queue, dated = MessageQueue("pay", 3), QueueState(Position({"a": 7}, times={"a": 5}))
    group.update(lambda state: state.with_queues({queue: dated}))
    assert GroupTable(tables, "g").state.queues[queue].position.times == {"a": 5}
    assert "consumed_times" in {field.name for field in DeltaTable(place, storage_options=options).schema().fields}


def test_added_columns_torn_by_a_power_cut_are_known_as_torn(tmp_path: Path) -> None:
    """The commit says how many actions it has: half of it is not taken for all."""
    from checkback.settings import Storage
    from checkback.storage.tables import Tables

    tables = Tables.of(Storage.model_validate({"root": str(tmp_path)}))
    version = table_of_the_release_before(tables, "half").version() + 1
    DeltaLog.create("half", tables.location("half"))
    assert len(list(read_actions(tables.location("half"), version, "metaData"))) == 1
    file = Path(tables.location("half")) / "_delta_log" / f"{version:020}.json"
    assert not is_torn(str(file), version)
    file.write_text(file.read_text().splitlines(keepends=True)[0])
    assert is_torn(str(file), version)
