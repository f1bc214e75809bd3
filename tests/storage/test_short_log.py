"""A short log is read as delta-rs reads it, or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.short_log import read_short_log
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

NAME = "topics/a"
OFFSET = "half_queue_offset"


def _append(root: Path, *offsets: int | None, app: str | None = None, version: int = 0) -> DeltaLog:
    log = DeltaLog.created(NAME, f"{root}/{NAME}", sync=False)
    with FileWriter(str(root), sync=False) as writer:
        writer.write(NAME, pa.Table.from_pylist([{OFFSET: offset} for offset in offsets], arrow_schema(NAME)))
        log.commit(writer.close(), app, version)
    return log


def _place(root: Path) -> str:
    """A table with an append, one of an application, and files that were replaced."""
    _append(root, 1, 2)
    _append(root, None, 7, app="retention", version=4711)
    place = f"{root}/{NAME}"
    DeltaTable(place).delete(f"{OFFSET} = 2")
    DeltaTable(place).update(updates={"tags": "'x'"}, predicate=f"{OFFSET} = 1")
    return place


@pytest.mark.parametrize("checkpoint", [False, True])
def test_it_is_what_delta_rs_reads(tmp_path: Path, checkpoint: bool) -> None:
    """The files, what their statistics say of the offset, columns, versions of applications."""
    place = _place(tmp_path)
    if checkpoint:
        DeltaTable(place).create_checkpoint()
    found, table = read_short_log(place), DeltaTable(place)
    assert found is not None
    assert found.version == table.version() == 4
    mine = found.actions(OFFSET)
    theirs = pa.table(table.get_add_actions(flatten=True)).select(mine.schema.names)
    assert mine.sort_by("path").to_pylist() == theirs.sort_by("path").to_pylist()
    assert mine.num_rows == 2
    assert found.columns == {field.name for field in table.schema().fields}
    assert found.versions == {"retention": 4711} == {"retention": table.transaction_version("retention")}


_Commit: TypeAlias = list[dict[str, Any]]


def _changed(version: int, change: Callable[[_Commit], object]) -> Callable[[str], None]:
    def apply(place: str) -> None:
        file = Path(place, "_delta_log", f"{version:020}.json")
        commit = [json.loads(line) for line in file.read_text().splitlines()]
        change(commit)
        file.write_text("".join(json.dumps(action) + "\n" for action in commit))

    return apply


def _metadata(commit: _Commit) -> dict[str, Any]:
    found: dict[str, Any] = next(action["metaData"] for action in commit if "metaData" in action)
    return found


def _added(commit: _Commit) -> dict[str, Any]:
    found: dict[str, Any] = next(action["add"] for action in commit if "add" in action)
    return found


def _protocol(commit: _Commit) -> dict[str, Any]:
    found: dict[str, Any] = next(action["protocol"] for action in commit if "protocol" in action)
    return found


def _log(place: str, version: int) -> Path:
    return Path(place, "_delta_log", f"{version:020}.json")


@pytest.mark.parametrize(
    "change",
    {
        "a checkpoint of a version that is not there": lambda place: _log(place, 4).rename(
            _log(place, 4).with_suffix(".checkpoint.parquet")
        ),
        "a file of a later protocol": lambda place: _log(place, 4).with_suffix(".compacted.json").touch(),
        "a commit is missing": lambda place: _log(place, 2).unlink(),
        "the first is missing": lambda place: _log(place, 0).unlink(),
        "a commit is empty": lambda place: _log(place, 4).write_text(""),
        "a commit ends in an action": lambda place: _log(place, 4).write_text(_log(place, 4).read_text()[:-9]),
        "a commit lacks an action": _changed(1, lambda commit: commit.pop()),
        "no protocol": _changed(0, lambda commit: commit.remove(next(each for each in commit if "protocol" in each))),
        "another reader": _changed(0, lambda commit: _protocol(commit).update(minReaderVersion=3)),
        "partitions": _changed(0, lambda commit: _metadata(commit).update(partitionColumns=["tags"])),
        "another format": _changed(0, lambda commit: _metadata(commit)["configuration"].clear()),
        "transactions are forgotten": _changed(
            0, lambda commit: _metadata(commit)["configuration"].update({"delta.setTransactionRetentionDuration": "1d"})
        ),
        "a deletion vector": _changed(1, lambda commit: _added(commit).update(deletionVector={"cardinality": 1})),
        "an encoded path": _changed(1, lambda commit: _added(commit).update(path="a%20b.parquet")),
        "a file elsewhere": _changed(1, lambda commit: _added(commit).update(path="/elsewhere/a.parquet")),
        "an action of a later protocol": _changed(1, lambda commit: commit[0].update(domainMetadata={})),
    }.items(),
    ids=lambda change: change[0],
)
def test_what_is_out_of_the_ordinary_is_left_to_delta_rs(
    tmp_path: Path, change: tuple[str, Callable[[str], object]]
) -> None:
    """Nothing is judged here: delta-rs reads it, or it is told what is damaged."""
    place = _place(tmp_path)
    assert read_short_log(place) is not None
    change[1](place)
    assert read_short_log(place) is None


def test_no_table_is_no_log(tmp_path: Path) -> None:
    """Nor is a folder without commits."""
    assert read_short_log(f"{tmp_path}/none") is None
    (tmp_path / "empty" / "_delta_log").mkdir(parents=True)
    assert read_short_log(f"{tmp_path}/empty") is None


def test_a_file_without_statistics_is_kept(tmp_path: Path) -> None:
    """Its values are not known: it is never skipped."""
    place = f"{tmp_path}/{NAME}"
    _append(tmp_path, 1)
    _changed(1, lambda commit: _added(commit).pop("stats"))(place)
    found = read_short_log(place)
    assert found is not None
    assert found.actions(OFFSET).column(f"min.{OFFSET}").to_pylist() == [None]
