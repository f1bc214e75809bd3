"""Tables in local folders whose commits were made when a test says so."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.storage.log.commit_reader import CommitReader
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from pathlib import Path


def table(root: Path, name: str) -> str:
    """An empty table; its folder."""
    place = str(root / name)
    DeltaLog.create(name, place)
    return place


def append(root: Path, name: str, rows: list[dict[str, Any]]) -> int:
    """Append rows; the version."""
    place = table(root, name)
    with FileWriter(str(root)) as writer:
        writer.write(name, pa.Table.from_pylist(rows, arrow_schema(name)))
        files = writer.close()
    DeltaLog(name, place).commit(files)
    commits = CommitReader.of(str(root / name))
    assert commits is not None
    return commits.newest


def landed(root: Path, name: str, rows: int, offset: int = 0) -> int:
    """Append so many rows that are nothing but offsets; the version."""
    return append(root, name, [{"queue_id": 0, "queue_offset": offset + number} for number in range(rows)])


def made_at(place: str, version: int, ms: int) -> None:
    """Let a version have been made at a time: by its commit, and by its file."""
    file = os.path.join(place, "_delta_log", f"{version:020d}.json")
    with open(file, encoding="utf-8") as lines:
        actions = [json.loads(line) for line in lines]
    for action in actions:
        if "commitInfo" in action:
            action["commitInfo"]["timestamp"] = ms
    with open(file, "w", encoding="utf-8") as out:
        out.writelines(json.dumps(action) + "\n" for action in actions)
    os.utime(file, (ms / 1000, ms / 1000))
