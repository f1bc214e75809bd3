"""What is flushed, and when. That it is enough is shown by tests/power, on what a power cut leaves."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pyarrow as pa
import pytest

from checkback.gateway.appender import Appender, OutcomeUnknownError, half_rows
from checkback.messages.half import Half
from checkback.storage.files import fsync
from checkback.storage.files.fsync import LogFlush, QueryFlush, UnflushedError
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

HALF = Half(-1, -1, "t", "orders", "payments", 0, None, None, {}, b"body", 1000, None)


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of what is flushed, in order; a folder's with a slash."""
    names: list[str] = []

    def note(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        names.append(os.path.basename(path) + "/" * os.path.isdir(path))

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "fdatasync", note)
    return names


def _commit(root: Path, version: int, fsync: bool = True) -> DeltaLog:
    DeltaLog.create("ticks", str(root / "ticks"), fsync)
    log = DeltaLog("ticks", str(root / "ticks"), fsync)
    with FileWriter(str(root), sync=fsync) as writer:
        writer.write("ticks", pa.table({"tick_at": [None]}).cast(arrow_schema("ticks")))
        files = writer.close()
    log.commit(files, "app", version)
    return log


def _json(version: int) -> str:
    return f"{version:020}.json"


def test_rows_are_flushed_before_their_commit_and_folders_after_what_is_in_them(
    tmp_path: Path, flushed: list[str]
) -> None:
    _commit(tmp_path, 1)
    steps = iter(flushed[next(at for at, name in enumerate(flushed) if name.startswith("part-")) :])
    for name in ("ticks/", _json(1), "_delta_log/"):
        assert name in steps, "in this order"
    assert {f"{tmp_path.name}/", _json(0)} <= set(flushed), "it may be the first that this machine has of them"


def test_what_others_left_unflushed_is_flushed_with_the_first_commit_and_by_who_relies_on_it(
    tmp_path: Path, flushed: list[str]
) -> None:
    """A writer may have died between its commit and the flush: then its commit is found, and not made again."""
    for version in (1, 2, 3):
        _commit(tmp_path, version, fsync=False)
    assert not flushed
    assert DeltaLog("ticks", str(tmp_path / "ticks")).has("app", 3)
    assert {_json(version) for version in (1, 2, 3)} <= set(flushed)
    flushed.clear()
    log = _commit(tmp_path, 4)
    assert {_json(version) for version in (1, 2, 3, 4)} <= set(flushed)
    flushed.clear()
    assert log.has("app", 4)
    assert not flushed, "it is known to be"


def test_query_flushes_what_is_new_and_its_sources_first(tmp_path: Path, flushed: list[str]) -> None:
    _commit(tmp_path, 1, fsync=False)
    place = tmp_path / "_checkpoints/check"
    (place / "offsets").mkdir(parents=True)
    (place / "offsets/0").write_text("v1")
    flush = QueryFlush(str(place), [str(tmp_path / "ticks"), str(tmp_path / "none")])
    flush()
    assert flushed.index(_json(1)) < flushed.index("0")
    assert {"offsets/", "check/", "_checkpoints/"} <= set(flushed)
    flushed.clear()
    flush()
    assert [name for name in flushed if not name.endswith("/")] == []
    (place / "new").write_text("v1")
    os.replace(place / "new", place / "offsets/0")  # done again
    (place / "state/0/1").mkdir(parents=True)
    (place / "state/0/1/1.changelog").write_text("")
    flush()
    assert {"0", "1.changelog", "1/", "0/", "state/", "check/"} <= set(flushed)
    QueryFlush(None)()


def test_commit_that_cannot_be_flushed_ends_the_gateway(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the table and may be gone tomorrow: it is neither acknowledged nor made again."""
    appender = Appender(str(tmp_path), "half", [0])
    appender.claim(1)

    def broken(self: LogFlush, version: int | None = None) -> None:
        raise fsync.unflushed(OSError(errno.EIO, os.strerror(errno.EIO)), "half")

    monkeypatch.setattr(LogFlush, "to", broken)
    with pytest.raises(OutcomeUnknownError, match="cannot be flushed to the disk: Input/output error"):
        appender.append(half_rows([HALF], 0, 0, 2000))
    with pytest.raises(UnflushedError):
        DeltaLog("half", str(tmp_path / "half")).flush()
