"""Tables in an object store are as safe as in a folder; where there is a difference, it is none that loses a row."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable
from deltalake.schema import Field, PrimitiveType

import checkback
from checkback.errors import FencedError, SettingsError, StateError, StorageError
from checkback.settings import Settings, Storage, flatten
from checkback.storage.checkpoints.seen_commits import SeenCommits, replaced
from checkback.storage.files import filesystem, object_store, table_files
from checkback.storage.files.object_store import ObjectReader, ObjectWriter, canonical, options_of
from checkback.storage.files.table_files import commit_file, versions
from checkback.storage.log import commit_reader
from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_log import AlteredError, DeltaLog
from checkback.storage.log.log_tail import LogTail, TransactionVersions
from checkback.storage.parquet import parquet_reader
from checkback.storage.parquet.parquet_reader import read_rows, row_batches
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from support.fault_proxy import fault_proxy, requests_since
from support.s3_server import options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.storage.parquet.parquet_files import ParquetFile, TableRoot

pytestmark = pytest.mark.slow


def _rows(*queues: int) -> pa.Table:
    return pa.Table.from_pylist([{"queue_id": queue} for queue in queues], schema=arrow_schema("op"))


def _files(tables: Tables, *queues: int) -> list[ParquetFile]:
    with tables.table_root.writer() as writer:
        writer.write("op", _rows(*queues))
        return writer.close()


def _log(tables: Tables) -> DeltaLog:
    tables.create(None, "op")  # type: ignore[arg-type]  # no Spark is needed
    return DeltaLog("op", tables.location("op"), tables.sync)


def _queues(log: DeltaLog) -> list[int]:
    everything = pc.field("queue_id").is_valid()
    found = [read_rows(file.path, "op", ["queue_id"], everything) for file in log.data_files()]
    return sorted(queue for rows in found for queue in rows.column("queue_id").to_pylist())


# Both kinds of places


def test_commits_are_idempotent_and_fenced(tables: Tables) -> None:
    log, other = _log(tables), _log(tables)
    for _ in range(2):
        log.commit(_files(tables, 1), "app", 1)
    other.commit(_files(tables, 2))
    assert _queues(log) == [1, 2]
    assert log.has("app", 1)
    assert not log.has("app", 2)
    log.commit_after(_files(tables, 3), {"door": None}, {"door": 1})
    with pytest.raises(FencedError):
        other.commit_after(_files(tables, 4), {"door": None}, {"door": 1})
    assert _queues(other) == [1, 2, 3]


def test_files_are_replaced_once(tables: Tables) -> None:
    log = _log(tables)
    for queue in range(3):
        log.commit(_files(tables, queue))
    old = log.paths()
    new = _files(tables, 0, 1, 2)
    assert log.replace(old, new)
    assert not log.replace(old, _files(tables, 0, 1, 2))
    assert _queues(log) == [0, 1, 2]
    assert log.paths() == {file.path for file in new}


def test_log_is_read_from_its_checkpoint(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its commit files one by one, and the checksum that saves Spark a job is there."""
    monkeypatch.setattr("checkback.storage.log.delta_log._INTERVAL", 5)
    log = _log(tables)
    for version in range(1, 8):
        log.commit(_files(tables, version), "app", version)
    log.checkpoint()
    assert DeltaLog("op", tables.location("op"), tables.sync).versions(["app", "none"]) == {"app": 7, "none": None}
    commits = CommitReader.of(tables.location("op"))
    assert commits is not None
    assert (commits.newest, commits.after(5).rows, commits.anything_after(8)) == (7, 3, False)
    assert abs(commits.made_at(7) - next(iter(log.history(1).values()))) < 2000
    assert f"{7:020}.crc" in table_files.names(f"{tables.location('op')}/_delta_log")


def test_log_is_read_from_a_version_on(tables: Tables) -> None:
    """As it is by those who know the older ones: rows that are unread, and rows that were taken out."""
    log = _log(tables)
    for queue in range(1, 6):
        log.commit(_files(tables, queue))
    place = tables.location("op")
    for since in range(6):
        commits = CommitReader.of(place, since)
        assert commits is not None
        assert (commits.oldest, commits.newest) == (since, 5)
        assert commits.after(since).rows == 5 - max(since - 1, 0)
        assert sorted(versions(place, since)) == list(range(since, 6))
    assert CommitReader.of(place, 6) is None
    assert CommitReader.of(tables.location("half"), 3) is None
    seen, later = (SeenCommits(tables, query, "land anew") for query in ("reconcile", "check"))
    seen.keep(None, {"op": 0})
    assert replaced(None, tables, "reconcile") is None
    log.replace(log.paths(), _files(tables, 1, 2, 3, 4, 5))
    assert replaced(None, tables, "reconcile") is None  # the same rows in other files
    later.keep(None, {"op": 6})
    DeltaTable(place, storage_options=options_of(tables.root) or None).restore(1)
    for query, note in (("reconcile", seen), ("check", later)):
        assert "version 7 of the table op has taken rows out" in (replaced(None, tables, query) or "")
        with pytest.raises(StateError, match="version 7 of the table op has taken rows out"):
            note.keep(None, {"op": 7})


@pytest.mark.processes
def test_commits_that_a_batch_has_seen_are_read_once(s3: Tables, s3_port: int) -> None:
    """Those of all its tables: of the version that is noted, and of each one since."""
    for name in ("half", "op"):
        DeltaLog.create(name, s3.location(name), sync=False)
        for _ in range(3):
            s3.mark(cast("Any", None), name)
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate({"root": s3.root, "options": options(port)}))
        seen = SeenCommits(tables, "reconcile", "")
        seen.keep(None, {"half": 1, "op": 2})
        requests_since(port)
        seen.keep(None, {"half": 3, "op": 3})
        assert requests_since(port) == {"GET": 3 + 2, "PUT": 1}


def test_versions_beyond_a_cleaned_one_are_found(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by a gateway that has been idle for longer than the log's retention; until then it commits nothing."""
    clock = [0.0]
    monkeypatch.setattr("checkback.storage.log.delta_log.boot_time", lambda: clock[0])
    idle, busy = _log(tables), _log(tables)
    idle.commit(_files(tables, 1))
    for queue in range(2, 6):
        busy.commit(_files(tables, queue))
    busy.checkpoint()
    table_files.remove(*(f"{tables.location('op')}/_delta_log/{version:020}.json" for version in range(4)))
    clock[0] += 3600
    assert idle.version() == 5
    idle.commit(_files(tables, 6))
    assert _queues(busy) == [1, 2, 3, 4, 5, 6]


def _delta_rs(tables: Tables) -> DeltaTable:
    return DeltaTable(tables.location("op"), storage_options=options_of(tables.root) or None)


def test_appends_are_delta_rs_own(tables: Tables) -> None:
    """What is written here without delta-rs is for it as what it writes itself, from a checkpoint on, too."""
    log = _log(tables)
    for number in range(1, 25):  # a checkpoint every 20
        log.commit(_files(tables, number, number + 100), "app", number)
    log.commit_after([], {"app": 24}, {"app": 30, "b": 1})
    found = _delta_rs(tables)
    assert (found.version(), found.transaction_version("app"), found.transaction_version("b")) == (25, 30, 1)
    actions = pa.table(found.get_add_actions(flatten=True)).to_pylist()
    about = [
        (row["num_records"], row["min.queue_id"], row["max.queue_id"], row["null_count.queue_id"]) for row in actions
    ]
    assert sorted(about) == [(2, number, number + 100, 0) for number in range(1, 25)]
    assert {row["size_bytes"] for row in actions} == {table_files.size(file.path) for file in log.data_files()}
    found.create_checkpoint()
    assert DeltaLog("op", tables.location("op"), tables.sync).versions(["app", "b"]) == {"app": 30, "b": 1}


def test_appends_of_others_between_are_known(tables: Tables) -> None:
    """Those by delta-rs, a compaction, a change of properties; more of them than are read one by one."""
    log, other = _log(tables), _log(tables)
    for number in range(1, 4):
        log.commit(_files(tables, number), "mine", number)
        other.commit(_files(tables, number + 10), "other", number)
        assert log.versions(["mine", "other"]) == other.versions(["mine", "other"])
    assert other.replace(other.paths(), _files(tables, 1, 2, 3, 11, 12, 13))
    log.commit(_files(tables, 4), "mine", 4)
    for number in range(5, 50):
        other.commit(_files(tables, number), "other", number)
    log.commit(_files(tables, 50), "mine", 5)
    assert (log.versions(["mine", "other"]), log.version()) == ({"mine": 5, "other": 49}, _delta_rs(tables).version())
    _delta_rs(tables).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 days"})
    with pytest.raises(StorageError, match="nobody can tell"):
        log.versions(["nobody"])
    _delta_rs(tables).alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(AlteredError):
        log.commit(_files(tables, 51), "mine", 6)
    with pytest.raises(AlteredError):
        log.commit_after(_files(tables, 51), {"mine": 5}, {"mine": 6})
    assert _queues(other) == sorted([11, 12, 13, *range(1, 51)])


@pytest.mark.parametrize("newest", [0, 3, 5])
def test_nothing_is_written_into_a_table_that_was_made_anew(tables: Tables, newest: int) -> None:
    """By a process that knew the one before. Versions that the new one does not have yet would be a gap.

    Whatever it has, it may be of other columns, and lacks files that were written for the one before.
    """
    log = _log(tables)
    for number in range(3):
        log.commit(_files(tables, number))
    filesystem.delete(None, tables.location("op"))
    other = _log(tables)
    for number in range(newest):
        other.commit(_files(tables, number))
    for _ in range(2):
        with pytest.raises(StorageError, match="recreated"):
            log.commit(_files(tables, 4))
    assert sorted(versions(tables.location("op"))) == list(range(newest + 1))


def test_table_whose_files_were_copied_back_is_appended_to(tables: Tables) -> None:
    """Its newest commit is another file, and it is the same table: what it has committed is read anew."""
    log = _log(tables)
    for number in range(1, 4):
        log.commit(_files(tables, number), "app", number)
    place = commit_file(tables.location("op"), 3)
    content = table_files.read(place).replace(b'"version": 3', b'"version": 7')
    table_files.remove(place)
    table_files.write(place, content)
    assert log.versions(["app"]) == {"app": 7}
    log.commit(_files(tables, 8), "app", 8)
    assert _queues(log) == [1, 2, 3, 8]


def test_commit_into_the_place_of_one_that_was_cleaned_up_is_not_acknowledged(
    tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a process that was stopped between its look at the log and its commit for longer than the retention."""
    clock = [0.0]
    monkeypatch.setattr("checkback.storage.log.delta_log.boot_time", lambda: clock[0])
    stopped, busy = _log(tables), _log(tables)
    stopped.commit(_files(tables, 1), "app", 1)

    def stop(log: LogTail, *commit: Any) -> bool:
        monkeypatch.undo()
        monkeypatch.setattr("checkback.storage.log.delta_log.boot_time", lambda: clock[0])
        for number in range(2, 6):
            busy.commit(_files(tables, number))
        busy.checkpoint()
        table_files.remove(*(f"{tables.location('op')}/_delta_log/{version:020}.json" for version in range(4)))
        clock[0] += 30 * 86400
        return log.commit(*commit)

    monkeypatch.setattr(LogTail, "commit", stop)
    with pytest.raises(StorageError, match="was stopped while it committed"):
        stopped.commit(_files(tables, 6), "app", 2)
    assert stopped.versions(["app"]) == {"app": 1}
    stopped.commit(_files(tables, 6), "app", 2)
    assert _queues(busy) == [1, 2, 3, 4, 5, 6]


def test_rows_are_read_in_pieces(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    (file,) = _files(tables, *range(5000))
    path, wanted = f"{tables.location('op')}/{file.path}", pc.field("queue_id") >= 4000
    pieces = [piece.column("queue_id").to_pylist() for piece in row_batches(path, "op", ["queue_id"], wanted)]
    assert [queue for piece in pieces for queue in piece] == list(range(4000, 5000))
    monkeypatch.setattr(parquet_reader, "_PIECE_ROWS", 3000)
    every = [piece.num_rows for piece in row_batches(path, "op", ["queue_id"], pc.field("queue_id") >= 0)]
    assert every == [4096, 904]
    (source,) = table_files.sources([(path, file.size)])
    assert sum(piece.num_rows for piece in row_batches(path, "op", ["queue_id"], wanted, source)) == 1000
    assert table_files.size(path) == file.size


def test_file_of_a_task_that_fails_is_not_there(tables: Tables) -> None:
    def task() -> None:
        with tables.table_root.writer() as writer:
            writer.write("op", _rows(1))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        task()
    assert [name for name in table_files.names(tables.location("op")) if name != "_delta_log"] == []


def test_folders_of_checkpoints(tables: Tables) -> None:
    """Small files, and the mark of a rebuild, which is an empty folder."""
    mark, spark = tables.checkpoint("mark"), None
    filesystem.make(spark, mark)  # type: ignore[arg-type]
    filesystem.write(spark, f"{tables.checkpoint('q')}/rules/1", "one")
    assert filesystem.exists(spark, mark)
    assert filesystem.names(spark, f"{tables.checkpoint('q')}/rules") == ["1"]
    assert filesystem.text(spark, f"{tables.checkpoint('q')}/rules/1") == "one"
    assert filesystem.move(spark, tables.checkpoint("q"), tables.checkpoint("r"))  # type: ignore[arg-type]
    assert not filesystem.exists(spark, tables.checkpoint("q"))
    assert filesystem.text(spark, f"{tables.checkpoint('r')}/rules/1") == "one"
    for place in (mark, tables.checkpoint("r")):
        filesystem.delete(spark, place)
        assert not filesystem.exists(spark, place)


def test_folder_without_a_commit_is_no_table(tables: Tables) -> None:
    """As a creation that broke off leaves one. A log without its first version is one."""
    place = tables.location("op")
    filesystem.make(None, f"{place}/_delta_log")  # type: ignore[arg-type]
    assert not DeltaLog.exists(place)
    log = _log(tables)
    log.commit(_files(tables, 1))
    log.checkpoint()
    table_files.remove(f"{place}/_delta_log/{0:020}.json")
    assert DeltaLog.exists(place)


def test_topics_are_the_tables_that_are_there(tables: Tables) -> None:
    tables.create(None, "topics/a", "topics/B", "half")  # type: ignore[arg-type]
    table_files.write(f"{tables.root}/topics/note.txt", b"no table")
    assert tables.topics(None) == ["topics/B", "topics/a"]  # type: ignore[arg-type]


def _at_once(codes: Sequence[str]) -> None:
    """Run them, each in a process of its own: they go on together, from where each says that it is ready."""
    pipe = subprocess.PIPE
    with ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe))
            for code in codes
        ]
        for each in started:
            assert each.stdout is not None
            assert each.stdout.readline() == b"ready\n"
        for each in started:
            assert each.stdin is not None
            each.stdin.close()
        assert [each.wait(300) for each in started] == [0] * len(codes)


_APPEND = """
import sys
sys.path[:0] = {paths!r}
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.files.object_store import register
from storage.test_object_store import _rows
from checkback.storage.parquet.parquet_files import TableRoot

root = TableRoot({root!r}, {sync!r}, {options!r})
print("ready", flush=True)
sys.stdin.readline()
for number in range({times}):
    with root.writer() as writer:
        writer.write("op", _rows({first} + number))
        files = writer.close()
    if number == 0:
        log = DeltaLog("op", {root!r} + "/op", {sync!r})
    log.commit(files, "app-{first}", number)
"""


@pytest.mark.processes
def test_two_processes_lose_no_commit(tables: Tables) -> None:
    """Spark's commits lose some in an object store: two writers of a version are both told that theirs is it."""
    log, times = _log(tables), 200
    paths = [str(Path(__file__).parents[1]), str(Path(checkback.__file__).parents[1])]
    root: TableRoot = tables.table_root
    codes = [
        _APPEND.format(paths=paths, root=root.uri, sync=root.sync, options=dict(root.options), first=first, times=times)
        for first in (0, 1000)
    ]
    _at_once(codes)
    assert _queues(log) == [*range(times), *range(1000, 1000 + times)]


_CREATE = """
import sys
sys.path[:0] = {paths!r}
from checkback.settings import Storage
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables

tables = Tables.of(Storage.model_validate({storage!r}))
print("ready", flush=True)
sys.stdin.readline()
tables.create(None, *sorted(SCHEMAS), "topics/a")
for name in SCHEMAS:
    log = tables.log(name)
    log.commit_after([], {{}}, {{"{app}": 1}})
"""


@pytest.mark.processes
def test_first_starts_at_the_same_time_make_the_same_tables(tables: Tables) -> None:
    """Nobody fails for the other's table, and nobody's commit is in a table that is replaced."""
    paths = [str(Path(__file__).parents[1]), str(Path(checkback.__file__).parents[1])]
    storage = {"root": tables.root, "options": dict(tables.table_root.options), "checkpoints": tables.root}
    _at_once([_CREATE.format(paths=paths, storage=storage, app=app) for app in "abc"])
    for name in SCHEMAS:
        assert tables.log(name).versions("abc") == dict.fromkeys("abc", 1)
        assert tables.log(name).version() == 3


# Object stores only


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("s3a://bucket/a/b/", "s3://bucket/a/b"),
        ("S3://bucket//a/../b", "s3://bucket/b"),
        ("abfs://box@account.dfs.core.windows.net/a", "abfss://box@account.dfs.core.windows.net/a"),
        ("gs://bucket", "gs://bucket"),
        ("/data", None),
        ("hdfs://name/data", None),
        ("s3:/data", None),
    ],
)
def test_place_has_one_name(given: str, place: str | None) -> None:
    assert canonical(given) == place


@pytest.mark.parametrize("path", ["a b", "a%20b", "a#b", "a?b", "ü", "a+b", "*"])
def test_path_that_engines_write_differently_is_refused(path: str) -> None:
    with pytest.raises(SettingsError, match="use letters, digits"):
        Tables.of(Storage.model_validate({"root": f"s3a://bucket/{path}/x"}))


def test_writers_that_lose_commits_are_refused() -> None:
    with pytest.raises(ValueError, match="may silently overwrite the other"):
        Settings.model_validate({"storage": {"root": "s3a://bucket/a", "writer": "spark"}})


def test_altered_table_is_not_written_by_spark(s3: Tables) -> None:
    _log(s3)
    table = DeltaTable(s3.location("op"), storage_options=object_store.options_of(s3.root))
    table.alter.add_columns([Field("note", PrimitiveType("string"), nullable=True)])
    s3.commit(None, "op", _files(s3, 1), "app", 1)  # type: ignore[arg-type]  # a further column is no hindrance
    table.alter.set_table_properties({"delta.enableChangeDataFeed": "true"})
    with pytest.raises(AlteredError, match="could overwrite another process's"):
        s3.refuse_spark("op")


def test_secrets_are_not_shown(s3: Tables, s3_port: int) -> None:
    settings = Settings.model_validate({"storage": {"root": s3.root, "options": options(s3_port)}})
    shown = f"{s3!r} {s3.table_root!r} {settings!r} {settings.model_dump_json()} {flatten(settings)}"
    assert "aws_secret_access_key" in shown
    assert "test'" not in shown.replace("'****'", "")
    assert str(s3_port) not in shown


def test_unknown_option_is_named(s3_port: int) -> None:
    wrong: dict[str, Any] = {"root": "s3://lake/wrong", "options": {**options(s3_port), "aws_regoin": "x"}}
    with pytest.raises(SettingsError, match="aws_regoin"):
        Tables.of(Storage.model_validate(wrong))


@pytest.mark.processes
def test_append_is_three_requests(s3: Tables, s3_port: int) -> None:
    """One that looks for the newest version, side by side one for the next, and the conditional PUT; beside the file's.

    None of them lists.
    """
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate({"root": f"{s3.root}/counted", "options": options(port)}))
        tables.create(None, "discarded")  # type: ignore[arg-type]
        log = tables.log("discarded")
        log.commit_after([], {"app": None}, {"app": 0})
        for number in range(3):
            with tables.table_root.writer() as writer:
                writer.write("discarded", pa.Table.from_pylist([{"queue_id": 1}], schema=arrow_schema("discarded")))
                files = writer.close()
            requests_since(port)
            log.commit_after(files, {"app": number}, {"app": number + 1})
            assert requests_since(port) == {"HEAD": 1, "GET": 1, "PUT": 1}


def test_log_is_listed_from_its_last_checkpoint(s3: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a whole: one of ten thousand versions takes twenty requests, one after the other."""
    log = _log(s3)
    log.commit_after([], {}, {"app": 1, "other": 1})
    log.checkpoint()
    log.commit_after([], {"app": 1}, {"app": 2})
    with monkeypatch.context() as patched:
        patched.setattr(table_files, "names", None)
        assert TransactionVersions(s3.location("op")).at(log.version()) == {"app": 2, "other": 1}
    assert TransactionVersions(s3.location("op")).at(1) == {"app": 1, "other": 1}  # older than the checkpoint


@pytest.mark.processes
def test_log_that_a_writer_makes_sure_of_is_opened_once(s3: Tables, s3_port: int) -> None:
    s3.create(cast("Any", None), "half")
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate({"root": s3.root, "options": options(port)}))
        requests_since(port)
        DeltaLog.created("half", tables.location("half"), sync=False)
        assert requests_since(port)["LIST"] == 1


@pytest.mark.processes
def test_version_that_added_a_file_is_found_by_the_files_time(
    s3: Tables, s3_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If its time is not that of the commit, as when a clock was set back, all commits are read."""
    log, paths = _log(s3), [""]
    for queue in range(30):
        (file,) = _files(s3, queue)
        log.commit([file])
        paths.append(file.path)
    log.refresh()
    monkeypatch.setattr(commit_reader, "_NEAR", 2)
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate({"root": s3.root, "options": options(port)}))
        place, written = tables.location("op"), log.files.written(log.seen_version, paths)
        assert written.keys() == set(paths[1:])
        for version in (1, 17, 30):
            for time, most in ((written[paths[version]], 15), (0, 50), (2**50, 50)):
                requests_since(port)
                found = commit_reader.added_by(place, [paths[version]], {paths[version]: time})
                assert (found[paths[version]].version, found[paths[version]].exact) == (version, True)
                assert sum(requests_since(port).values()) <= most
        assert {file: one.version for file, one in commit_reader.added_by(place, paths[1:]).items()} == {
            file: version for version, file in enumerate(paths) if version
        }


def test_object_is_there_when_it_is_closed(s3: Tables) -> None:
    path = f"{s3.root}/object"
    with pytest.raises(FileNotFoundError):
        table_files.read(path)
    writer = ObjectWriter(path)
    writer.write(b"ab")
    assert not table_files.exists(path)
    writer.close()
    assert (table_files.read(path), writer.tell()) == (b"ab", 2)


def test_object_is_read_in_ranges(s3: Tables) -> None:
    path, content = f"{s3.root}/object", bytes(range(200))
    table_files.write(path, content)
    reader = ObjectReader(path, len(content))
    steps: Sequence[tuple[int, int, int]] = [(10, 0, 5), (5, 1, 1), (-3, 2, 10), (500, 0, 4)]
    for offset, whence, size in steps:
        start = reader.seek(offset, whence)
        assert reader.read(size) == content[start : start + size]
    reader.seek(0)
    assert reader.read() == content
