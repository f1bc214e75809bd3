"""Which files have changed since they were read, by the log of Spark's file source. Without Spark."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from checkback.landing import file_query
from checkback.landing.file_query import changed_since_read

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def noted(checkpoint: Path, name: str, **times: int) -> None:
    """A batch of the source's log."""
    folder = checkpoint / "sources" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    entries = [json.dumps({"path": f"file://{checkpoint}/{file}", "timestamp": time}) for file, time in times.items()]
    (folder / name).write_text("\n".join(["v1", *entries]))


def made(checkpoint: Path, name: str, ms: int) -> str:
    (checkpoint / name).write_text("x")
    os.utime(checkpoint / name, ns=(ms * 1_000_000, ms * 1_000_000))
    return f"{checkpoint}/{name}"


def test_newest_note_of_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert changed_since_read(str(tmp_path)) == []
    noted(tmp_path, "8", old=1)
    noted(tmp_path, "9.compact", old=1, a=5, b=5, gone=5)
    noted(tmp_path, ".9.compact.crc", a=9)
    noted(tmp_path, "10", a=6, c=7)
    a, b, old = made(tmp_path, "a", 6), made(tmp_path, "b", 6), made(tmp_path, "old", 2)
    c = made(tmp_path, "c", 8)
    assert changed_since_read(str(tmp_path)) == [c, b, old]
    assert a not in changed_since_read(str(tmp_path))
    monkeypatch.setattr(file_query, "_LAST", 2)
    assert changed_since_read(str(tmp_path)) == [c]
    assert changed_since_read("s3://bucket/checkpoint") == []


def test_other_name_and_rights_are_no_change(tmp_path: Path) -> None:
    """Nor is a time of change that was to come when it was read."""
    made(tmp_path, "a", 5)
    future = os.stat(made(tmp_path, "future", 1 << 42)).st_ctime_ns // 1_000_000
    noted(tmp_path, "0", a=5, future=future)
    (tmp_path / "a").chmod(0o600)
    (tmp_path / "a").rename(tmp_path / "b")
    (tmp_path / "b").rename(tmp_path / "a")
    assert changed_since_read(str(tmp_path)) == []
