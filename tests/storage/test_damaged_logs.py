"""Damaged files of a table's log: whatever they make a reader raise is a StorageError that names the table."""

from __future__ import annotations

import errno
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest

from checkback.errors import FencedError, StorageError
from checkback.settings import Storage
from checkback.storage.checkpoints.seen_commits import removals
from checkback.storage.crash_recovery import recover_tables, torn_query
from checkback.storage.failure_scope import is_damage, own_failure, reading
from checkback.storage.log.commit_reader import CommitReader, added_by
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_tail import LogTail
from checkback.storage.log.torn_commits import last_checkpoint
from checkback.storage.tables import Tables
from consumer.published import Published

if TYPE_CHECKING:
    from collections.abc import Callable

DEEP = "[" * 100_000
#: lines of a commit: JSON, but no actions as Delta writes them
LINES = [
    DEEP,
    "[1]",
    "5",
    '{"commitInfo": 5}',
    '{"commitInfo": {"timestamp": 1e999}}',
    '{"commitInfo": {"timestamp": "x", "checkback.actions": 1e999}}',
    '{"add": 5}',
    '{"add": {"path": 5, "stats": "[]"}}',
    '{"add": {"path": "a", "stats": "' + DEEP + '"}}',
    '{"txn": 5}',
    '{"txn": {"appId": {}, "version": 1e999}}',
    '{"remove": 5}',
    '{"metaData": 5}',
]


@pytest.fixture
def lake(tmp_path: Path) -> Published:
    return Published(Tables.of(Storage(root=str(tmp_path), sync=False)))


def log_of(lake: Published, topic: str) -> Path:
    return Path(lake.tables.location(f"topics/{topic}"), "_delta_log")


def rotten(file: Path) -> bytes:
    """The checkpoint with one bit of its footer flipped, in a name: that is no UTF-8 any more."""
    whole = file.read_bytes()
    for at in range(len(whole) - 8 - int.from_bytes(whole[-8:-4], "little"), len(whole) - 8):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x80]) + whole[at + 1 :])
        try:
            pq.read_metadata(file)
        except UnicodeDecodeError:
            return file.read_bytes()
        except Exception:  # noqa: BLE001, S112 - another kind of damage
            continue
    raise AssertionError("no bit of it does")


def refusal(read: Callable[[], object]) -> StorageError | None:
    """Why it does not read; None if it does."""
    try:
        read()
    except StorageError as error:
        return error
    return None


def test_a_checkpoint_with_a_flipped_bit_is_put_aside(lake: Published) -> None:
    lake.publish({"a": [lake.messages(1)], "b": [lake.messages(1)]})
    lake.tables.open_log("topics/a").checkpoint()
    (checkpoint,) = log_of(lake, "a").glob("*.checkpoint.parquet")
    checkpoint.write_bytes(rotten(checkpoint))
    with pytest.raises(StorageError, match=rf"topics/a.*{checkpoint.name}"):
        lake.tables.open_log("topics/a")
    assert [line.partition(":")[0] for line in recover_tables(lake.tables)] == ["topics/a"]
    assert lake.tables.open_log("topics/a").version() == 1


@pytest.mark.parametrize("text", ['{"version": 1e999}', DEEP, "[]", '{"version": null}', "\udce9"])
def test_a_damaged_pointer_to_the_checkpoint_is_none(lake: Published, text: str) -> None:
    lake.publish({"a": [lake.messages(1)]})
    (log_of(lake, "a") / "_last_checkpoint").write_bytes(text.encode(errors="surrogateescape"))
    assert last_checkpoint(lake.tables.location("topics/a")) == -1
    recover_tables(lake.tables)
    assert lake.tables.open_log("topics/a").version() == 1


@pytest.mark.parametrize("line", LINES)
def test_whatever_a_commit_holds_stops_no_recovery(lake: Published, line: str) -> None:
    lake.publish({"a": [lake.messages(1)], "b": [lake.messages(1)]})
    newest = log_of(lake, "a") / f"{1:020}.json"
    newest.write_text(f"{line}\n")
    recover_tables(lake.tables)
    assert torn_query(lake.tables, "reconcile") is None
    assert lake.tables.open_log("topics/b").version() == 1


@pytest.mark.parametrize("line", LINES)
def test_whatever_a_commit_holds_its_readers_say_whose_it_is(lake: Published, line: str) -> None:
    lake.publish({"a": [lake.messages(1)]})
    place = lake.tables.location("topics/a")
    tail = LogTail(place, 1)
    log = lake.tables.open_log("topics/a")
    (log_of(lake, "a") / f"{2:020}.json").write_text(f'{{"commitInfo": {{}}}}\n{line}\n')
    commits = CommitReader(place, 0, 2)

    def consume() -> object:
        return lake.tables.log("topics/a").data_files()

    readers: list[Callable[[], object]] = [
        tail.read,
        lambda: commits.made_at(2),
        lambda: commits.after(0),
        lambda: commits.only_appends(20),
        lambda: added_by(place, ["none"]),
        lambda: removals(lake.tables, "topics/a", [2]),
        lambda: log.versions(["app"]),
        log.data_files,
        lambda: log.history(3),
        lambda: DeltaLog("topics/a", place, sync=False).data_files(),
        consume,
    ]
    said = [why for why in map(refusal, readers) if why is not None]
    assert all("topics/a" in why.where and own_failure(why) for why in said)


def test_what_is_the_machines_is_no_damage() -> None:
    for error in (UnicodeDecodeError("utf-8", b"\xe9", 0, 1, ""), OverflowError(), RecursionError(), OSError("footer")):
        assert is_damage(error)
    for number in (errno.EMFILE, errno.EACCES, errno.EIO, errno.ENOENT):
        assert not is_damage(OSError(number, "why"))
    for other in (MemoryError(), KeyboardInterrupt(), FencedError("another")):
        assert not is_damage(other)
        with pytest.raises(type(other)), reading("place"):
            raise other
    with pytest.raises(StorageError, match=r"^place: cannot be read: .*Too many open files"), reading("place"):
        raise OSError(errno.EMFILE, "Too many open files")
    with suppress(FileNotFoundError), reading("place", but=(FileNotFoundError,)):
        raise FileNotFoundError


def test_the_fault_of_the_machine_is_no_topics(lake: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish({"a": [lake.messages(1)]})

    def full(*_: object) -> None:
        raise StorageError("torn commits cannot be moved aside: No space left on device", "topics/a")

    monkeypatch.setattr("checkback.storage.crash_recovery.recover_log", full)
    with pytest.raises(StorageError, match="No space"):
        recover_tables(lake.tables)
