"""A table's log: once for each (application, version), whoever else writes."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, Schema
from deltalake.schema import PrimitiveType

from checkback.errors import CheckbackError, FencedError, StorageError
from checkback.storage.files.object_store import options_of
from checkback.storage.log import delta_log
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.log.log_tail import LogTail
from checkback.storage.log.optimistic_transaction import OptimisticTransaction
from checkback.storage.parquet.parquet_files import FileWriter, ParquetFile
from checkback.storage.schemas import SCHEMAS, arrow_schema, properties_of
from support.features import with_features

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from checkback.storage.tables import Tables


def _file(root: Path, number: int = 0, name: str = "op") -> ParquetFile:
    with FileWriter(str(root)) as writer:
        writer.write(name, pa.Table.from_pylist([{"queue_id": number}], schema=arrow_schema(name)))
        (file,) = writer.close()
    return file


def _log(root: Path, name: str = "op") -> DeltaLog:
    DeltaLog.create(name, str(root / name))
    return DeltaLog(name, str(root / name))


def _queues(root: Path) -> list[int]:
    return sorted(DeltaTable(str(root / "op")).to_pyarrow_table().column("queue_id").to_pylist())


def test_nothing_is_written_into_an_older_copy_that_a_link_names_now(tmp_path: Path) -> None:
    """Behind the gap nobody could read it. delta-rs reads on where the link led to."""
    root, real, copy = tmp_path / "root", tmp_path / "real", tmp_path / "copy"
    real.mkdir()
    root.symlink_to(real)
    log = _log(root)
    log.commit([_file(root, 0)], "app", 0)
    shutil.copytree(real, copy)
    log.commit([_file(root, 1)], "app", 1)
    assert len(log.paths()) == 2
    root.unlink()
    root.symlink_to(copy)
    for _ in range(2):
        with pytest.raises(StorageError, match="restored"):
            log.commit([_file(root, 2)], "app", 2)
    assert _queues(root) == [0]
    root.unlink()
    root.symlink_to(real)
    log.commit([_file(root, 2)], "app", 2)
    assert _queues(root) == [0, 1, 2]


@pytest.mark.parametrize("name", [*SCHEMAS, "topics/a"])
def test_table_has_its_columns_and_properties(tmp_path: Path, name: str) -> None:
    """With the comments: they are the table's documentation. Made twice, it stays."""
    for _ in range(2):
        assert _log(tmp_path, name).appendable()
    table = DeltaTable(str(tmp_path / name))
    assert table.version() == 0
    assert [field.name for field in table.schema().fields] == arrow_schema(name).names
    assert all("comment" in field.metadata for field in table.schema().fields)
    assert table.metadata().configuration == properties_of(name)


def test_table_is_created_once_by_several_at_once(tables: Tables) -> None:
    """All have the same table: with a second one's id a group would count its dead letters anew."""
    count, rounds, together = 4, 10, threading.Barrier(4)

    def create(name: str) -> str:
        together.wait()
        return DeltaLog.created(name, tables.location(name), tables.sync).table_id()

    with ThreadPoolExecutor(count) as pool:
        for name in (f"topics/{number}" for number in range(rounds)):
            ids = set(pool.map(create, [name] * count))
            place = tables.location(name)
            table = DeltaTable(place, storage_options=options_of(place) or None)
            assert (ids, table.version()) == ({str(table.metadata().id)}, 0)


_NOTE = Field("note", PrimitiveType("string"))


def test_further_column_that_may_be_null_is_no_hindrance(tmp_path: Path) -> None:
    """A user's own: our files lack it, and its values are null."""
    log = _log(tmp_path)
    log.commit([_file(tmp_path, 1)], "app", 1)
    DeltaTable(str(tmp_path / "op")).alter.add_columns([_NOTE])
    log.commit_after([_file(tmp_path, 2)], {"app": 1}, {"app": 2})
    assert (log.appendable(), log.maintainable()) == (True, True)
    assert _log(tmp_path).appendable()
    assert _queues(tmp_path) == [1, 2]
    assert DeltaTable(str(tmp_path / "op")).to_pyarrow_table().column("note").null_count == 2


def _append(table: DeltaTable, file: ParquetFile, by_delta_rs: bool) -> None:
    place = table.table_uri.removeprefix("file://").rstrip("/")
    transaction = OptimisticTransaction(table, place)
    if by_delta_rs:
        transaction.append_by_delta_rs([file], {"app": 1})
    else:
        transaction.append(LogTail(place, int(table.version())), [file], {"app": 1})


@pytest.mark.parametrize("by_delta_rs", [False, True])
def test_append_follows_a_column_that_came_between(tmp_path: Path, by_delta_rs: bool) -> None:
    """Somebody adds a column of his own, at the very version that this process tries to commit."""
    _log(tmp_path)
    table = DeltaTable(str(tmp_path / "op"))
    DeltaTable(str(tmp_path / "op")).alter.add_columns([_NOTE])
    _append(table, _file(tmp_path, 1), by_delta_rs)
    assert _queues(tmp_path) == [1]


@pytest.mark.parametrize("by_delta_rs", [False, True])
@pytest.mark.parametrize("change", [{"delta.enableChangeDataFeed": "true"}, {"delta.appendOnly": "false"}])
def test_append_does_not_follow_another_change_that_came_between(
    tmp_path: Path, change: dict[str, str], by_delta_rs: bool
) -> None:
    _log(tmp_path)
    table = DeltaTable(str(tmp_path / "op"))
    DeltaTable(str(tmp_path / "op")).alter.set_table_properties(change)
    with pytest.raises(StorageError, match="altered meanwhile"):
        _append(table, _file(tmp_path, 1), by_delta_rs)
    assert _queues(tmp_path) == []


def _altered(table: DeltaTable) -> None:
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})


def _retyped(table: DeltaTable) -> None:
    fields = [
        Field(field.name, PrimitiveType("long") if field.name == "queue_id" else field.type)
        for field in table.schema().fields
    ]
    DeltaTable.create(table.table_uri, Schema(fields), mode="overwrite")


def _dropped(table: DeltaTable) -> None:
    DeltaTable.create(table.table_uri, Schema(table.schema().fields[1:]), mode="overwrite")


def _required(table: DeltaTable) -> None:
    note = Field("note", PrimitiveType("string"), nullable=False)
    DeltaTable.create(table.table_uri, Schema([*table.schema().fields, note]), mode="overwrite")


def _with_rule(table: DeltaTable) -> None:
    note = Field("note", PrimitiveType("string"), metadata={"delta.invariants": "{}"})
    DeltaTable.create(table.table_uri, Schema([*table.schema().fields, note]), mode="overwrite")


def _partitioned(table: DeltaTable) -> None:
    DeltaTable.create(table.table_uri, table.schema(), mode="overwrite", partition_by=["queue_id"])


@pytest.mark.parametrize("alter", [_altered, _retyped, _dropped, _required, _with_rule, _partitioned])
def test_table_that_takes_no_files_any_more_is_named_at_the_next_commit(
    tmp_path: Path, alter: Callable[[DeltaTable], None]
) -> None:
    log = _log(tmp_path)
    alter(DeltaTable(str(tmp_path / "op")))
    with pytest.raises(AlteredError, match=r"op: somebody has clustered, partitioned or altered"):
        log.commit_after([_file(tmp_path, 2)], {}, {"app": 2})
    assert not log.appendable()
    assert log.versions(["app"]) == {"app": None}


@pytest.mark.parametrize("by_spark", [False, True])
def test_feature_that_was_turned_off_again_is_no_obstacle(tmp_path: Path, by_spark: bool) -> None:
    """Neither Spark nor delta-rs can take the change data feed back out of the protocol."""
    log, place = _log(tmp_path), tmp_path / "op"
    DeltaTable(place).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})  # writer version 4
    if by_spark:
        with_features(place, "appendOnly", "invariants", "changeDataFeed", "checkConstraints")
    with pytest.raises(AlteredError):
        log.commit([_file(tmp_path, 0)], "app", 1)
    DeltaTable(place).alter.set_table_properties({"delta.enableChangeDataFeed": "false"})
    assert log.commit([_file(tmp_path, 1)], "app", 1)
    assert _queues(tmp_path) == [1]
    DeltaTable(place).alter.add_constraint({"c": "queue_id > 0"})
    with pytest.raises(AlteredError):
        log.commit([_file(tmp_path, 2)], "app", 2)
    DeltaTable(place).alter.drop_constraint("c")
    assert log.commit([_file(tmp_path, 2)], "app", 2)
    assert _queues(tmp_path) == [1, 2]


def test_version_is_committed_once(tmp_path: Path) -> None:
    """A batch that comes again is skipped, with a fresh log too; the next is not."""
    log = _log(tmp_path)
    log.commit([_file(tmp_path, 1)], "app", 4)
    log.commit([_file(tmp_path, 2)], "app", 4)
    DeltaLog("op", str(tmp_path / "op")).commit([_file(tmp_path, 3)], "app", 3)
    log.commit([_file(tmp_path, 4)], "app", 5)
    log.commit([_file(tmp_path, 5)], "other", 4)
    assert _queues(tmp_path) == [1, 4, 5]
    assert log.has("app", 5)
    assert not log.has("app", 6)
    assert not log.has("nobody", 0)


def test_second_writer_of_an_application_is_refused(tmp_path: Path) -> None:
    """It has not seen the first one's commit, and would write the batch again."""
    first, second = _log(tmp_path), _log(tmp_path)
    mine, other = _file(tmp_path, 1), _file(tmp_path, 2)

    def meanwhile(*_: object) -> bool:
        first.commit([mine], "app", 0)
        return False

    second.has = meanwhile  # type: ignore[assignment,method-assign]  # between look-up and commit
    with pytest.raises(CheckbackError, match="another process writes the same batches"):
        second.commit([other], "app", 0)
    assert _queues(tmp_path) == [1]


def test_commit_after_the_versions_it_wrote_itself(tmp_path: Path) -> None:
    """Several applications in one commit, with files or without."""
    log = _log(tmp_path)
    log.commit_after([], {"a": None, "b": None}, {"a": 7, "b": 9})
    log.commit_after([_file(tmp_path, 1)], {"a": 7, "b": 9}, {"a": 8, "b": 10})
    assert DeltaLog("op", str(tmp_path / "op")).versions(["a", "b", "c"]) == {"a": 8, "b": 10, "c": None}
    assert _queues(tmp_path) == [1]


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize("app", ["a", "b"])
def test_version_that_somebody_wrote_between_fails_the_commit(tmp_path: Path, seen: bool, app: str) -> None:
    """Of any of its applications, whether the commit has seen it or meets it; also an empty one, a claim."""
    log, other = _log(tmp_path), _log(tmp_path)
    log.commit_after([], {"a": None, "b": None}, {"a": 1, "b": 1})
    mine = _file(tmp_path, 1)
    if seen:
        other.commit_after([], {app: 1}, {app: 5})
    else:
        look_up = log._versions

        def meanwhile(apps: Iterable[str]) -> dict[str, int | None]:
            found = look_up(apps)
            other.commit_after([], {app: 1}, {app: 5})
            return found

        log._versions = meanwhile  # type: ignore[method-assign]  # between look-up and commit
    with pytest.raises(FencedError, match="another process"):
        log.commit_after([mine], {"a": 1, "b": 1}, {"a": 2, "b": 2})
    assert _queues(tmp_path) == []
    assert other.versions([app]) == {app: 5}


def test_log_is_read_from_its_checkpoints(tmp_path: Path) -> None:
    """After many commits the log is short again, and nothing is forgotten."""
    log = _log(tmp_path)
    for version in range(45):
        log.commit([_file(tmp_path, version)], "app", version)
    assert (tmp_path / "op" / "_delta_log" / "_last_checkpoint").exists()
    assert _queues(tmp_path) == list(range(45))
    assert DeltaLog("op", str(tmp_path / "op")).has("app", 44)


def _append_many(root: str, writer: int) -> None:
    log = DeltaLog("op", f"{root}/op")
    for number in range(20):
        log.commit([_file(Path(root), 100 * writer + number)], f"app-{writer}", number)


@pytest.mark.processes
def test_writers_of_several_processes_lose_nothing(tmp_path: Path) -> None:
    """As `land` and `reconcile` write `op`, each in a process of its own."""
    _log(tmp_path)
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_many, args=(str(tmp_path), writer)) for writer in range(3)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    assert _queues(tmp_path) == sorted(100 * writer + number for writer in range(3) for number in range(20))


@pytest.mark.parametrize("between", ["replace", "append"])
def test_files_are_replaced_by_one_of_two_that_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: str
) -> None:
    """Another commit comes between the look at the log and ours.

    After an append ours is tried anew and holds; after another's replacement of the same files it must not.
    """
    log, other = _log(tmp_path), _log(tmp_path)
    for number in (1, 2):
        log.commit([_file(tmp_path, number)])
    old = log.paths()

    def merged() -> ParquetFile:
        rows = pa.Table.from_pylist([{"queue_id": 1}, {"queue_id": 2}], schema=arrow_schema("op"))
        with FileWriter(str(tmp_path)) as writer:
            writer.write("op", rows)
            (file,) = writer.close()
        return file

    attempt = OptimisticTransaction._commit_next
    attempts: list[bool] = []

    def overtaken(self: OptimisticTransaction, *actions: Any) -> bool:
        ours = self.table is log._table
        if ours and not attempts:
            if between == "append":
                other.commit([_file(tmp_path, 3)])
            else:
                assert other.replace(old, [merged()])
        done = attempt(self, *actions)
        if ours:
            attempts.append(done)
        return done

    monkeypatch.setattr(OptimisticTransaction, "_commit_next", overtaken)
    replaced = log.replace(old, [merged()])
    assert (replaced, attempts) == ((True, [False, True]) if between == "append" else (False, [False]))
    assert _queues(tmp_path) == ([1, 2, 3] if between == "append" else [1, 2])


def test_files_of_a_table_with_their_ranges(tmp_path: Path) -> None:
    """What is skipped by."""
    log = _log(tmp_path)
    log.commit([_file(tmp_path, 7)])
    (file,) = log.data_files()
    assert file.spans["queue_id"] == (7, 7)
    assert "queue_offset" not in file.spans  # it is null
    assert pq.read_table(file.path).num_rows == 1
    assert log.readable()


def test_files_that_cannot_hold_a_row_are_left_out(tmp_path: Path) -> None:
    """By the ranges of their columns; one that says nothing of a column may hold any."""
    log = _log(tmp_path)
    for number in (1, 5, 9):
        log.commit([_file(tmp_path, number)])

    def found(least: int, most: int) -> list[int]:
        return sorted(file.spans["queue_id"][0] for file in log.data_files({"queue_id": (least, most)}))

    assert (found(0, 4), found(5, 5), found(2, 9), found(10, 20)) == ([1], [5], [5, 9], [])
    assert len(log.data_files({"queue_offset": (0, 0)})) == 3


@pytest.mark.parametrize("scheme", ["", "file:"])
def test_a_shallow_clone_is_refused(tmp_path: Path, scheme: str) -> None:
    """Whose files are those of another table; Delta writes their absolute paths."""
    log = _log(tmp_path)
    log.commit([_file(tmp_path, 1)])
    commit = tmp_path / "op/_delta_log/00000000000000000001.json"
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"]["path"] = f"{scheme}{tmp_path}/op/{line['add']['path']}"
    commit.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(StorageError, match=r"it is a shallow clone.*; copy the table's folder, or clone it deep"):
        DeltaLog("op", str(tmp_path / "op")).data_files()


def test_another_process_between_two_commits_is_noticed(tmp_path: Path) -> None:
    """Whatever a log has seen before."""
    mine, other = _log(tmp_path), _log(tmp_path)
    mine.commit([_file(tmp_path, 1)], "app", 1)
    other.commit([_file(tmp_path, 2)], "app", 2)
    mine.commit([_file(tmp_path, 4)], "app", 2)  # there already
    mine.commit([_file(tmp_path, 5)], "app", 3)
    other.data_files()
    other.commit([_file(tmp_path, 6)], "app", 3)
    assert _queues(tmp_path) == [1, 2, 5]


def test_listing_that_lacks_the_newest_version_is_made_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = f"{tmp_path}/half"
    DeltaLog.create("half", place)
    reader, writer = DeltaLog("half", place), DeltaLog("half", place)
    writer.commit_after([], {}, {"a": 1})
    monkeypatch.setattr(delta_log, "update", lambda *_: None)
    assert reader.refresh() == 1
    assert reader.paths() == set()


def test_missing_or_broken_table_is_one_line(tmp_path: Path) -> None:
    """What, where, what to do."""
    with pytest.raises(StorageError, match="there is no such table"):
        DeltaLog("op", str(tmp_path / "op"))
    log = _log(tmp_path)
    log.commit([_file(tmp_path)])
    (tmp_path / "op" / "_delta_log" / "00000000000000000001.json").write_text("{broken")
    with pytest.raises(StorageError, match="version 1 of the table's log is empty or cut off"):
        DeltaLog("op", str(tmp_path / "op")).data_files()


def test_cause_of_a_failing_write_is_told_in_one_line(tmp_path: Path) -> None:
    """Not only that it was the file system: a file stands where a folder should be."""
    (tmp_path / "op").write_text("in the way")
    for attempt in (lambda: DeltaLog.exists(str(tmp_path / "op")), lambda: DeltaLog.create("op", str(tmp_path / "op"))):
        with pytest.raises(StorageError, match=r"op: .*(Not a directory|File exists)") as caught:
            attempt()
        assert "\x1b" not in str(caught.value)


def test_who_may_not_write_any_more_makes_no_further_attempt(tmp_path: Path) -> None:
    """Another process takes over while the first attempt is on its way: the second would commit its rows once more."""
    other, attempts = _log(tmp_path), 0

    def confirm() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1:
            raise FencedError("another process has taken over")
        other.commit([_file(tmp_path, 2)], "other", 1)

    log = DeltaLog("op", str(tmp_path / "op"), confirm=confirm)
    with pytest.raises(FencedError):
        log.commit([_file(tmp_path, 1)], "app", 1)
    assert _queues(tmp_path) == [2]
