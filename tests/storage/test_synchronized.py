"""One process's log of a table, used by two threads: `reconcile` commits to what the check query reads."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_NAME = "check_requests"
_COMMITS = 20


@pytest.fixture(autouse=True)
def _frequent_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def log(tmp_path: Path) -> DeltaLog:
    return DeltaLog.created(_NAME, str(tmp_path / _NAME), sync=False)


def _beside(look: Callable[[], object], work: Callable[[], object]) -> None:
    """Do ``work`` while another thread looks again and again; raises what either raises."""
    ended, failed = threading.Event(), []

    def look_on() -> None:
        try:
            while not ended.is_set():
                look()
        except BaseException as error:  # noqa: BLE001 - told by the thread that asked
            failed.append(error)

    thread = threading.Thread(target=look_on)
    thread.start()
    try:
        work()
    finally:
        ended.set()
        thread.join()
    if failed:
        raise failed[0]


@pytest.mark.parametrize("look", [DeltaLog.version, DeltaLog.data_files, DeltaLog.refresh, DeltaLog.applications])
def test_commits_are_made_while_another_thread_reads(
    tmp_path: Path, log: DeltaLog, look: Callable[[DeltaLog], object]
) -> None:
    """Both followed the same new commit, and the log ended a version further than there was one."""

    def commit() -> None:
        for number in range(_COMMITS):
            log.commit_after([], {"app": number or None}, {"app": number + 1})
            assert log.version() == number + 1

    _beside(lambda: look(log), commit)
    assert DeltaTable(str(tmp_path / _NAME)).version() == _COMMITS


def test_both_threads_commit(tmp_path: Path, log: DeltaLog) -> None:
    theirs = iter(range(10_000))

    def commit() -> None:
        for number in range(_COMMITS):
            log.commit_after([], {}, {"ours": number})

    _beside(lambda: log.commit_after([], {}, {"theirs": next(theirs)}), commit)
    assert DeltaTable(str(tmp_path / _NAME)).version() == _COMMITS + next(theirs)


def test_files_of_a_version_are_its_own(tmp_path: Path, log: DeltaLog) -> None:
    """The table was read on to a newer version between the look for its version and that for its files."""

    def append() -> None:
        for number in range(1, _COMMITS + 1):
            with FileWriter(str(tmp_path)) as writer:
                row = {"queue_id": 0, "queue_offset": number}
                writer.write(_NAME, pa.Table.from_pylist([row], schema=arrow_schema(_NAME)))
                log.commit(writer.close())

    def look() -> None:
        version = log.refresh()
        found = log.files.parquet(version)
        assert found is not None
        assert len(found) == version

    _beside(look, append)
