"""How a query begins to read its tables: with their commits from version 0 on, or with a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.settings import Storage
from checkback.storage.checkpoints.checkpoint import StreamPosition
from checkback.storage.schemas import arrow_schema
from checkback.storage.starting_versions import MOST_COMMITS, first_read, with_commits
from checkback.storage.tables import Tables

_NO_SPARK: Any = None
_AT: dict[str, object] = {"sourceVersion": 1, "reservoirId": "t", "isStartingVersion": False}


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables.of(Storage(root=str(tmp_path)))
    tables.create(_NO_SPARK, "half", "op", "ticks")
    return tables


def _tick(tables: Tables, times: int = 1) -> None:
    for _ in range(times):
        tables.append_arrow(_NO_SPARK, pa.table({"tick_at": [None]}).cast(arrow_schema("ticks")), "ticks")


def _from_version_0(tables: Tables) -> set[str]:
    found = first_read(_NO_SPARK, tables, "reconcile")
    assert list(found) == ["half", "op", "ticks"]
    assert all(options in ({}, {"startingVersion": "0"}) for options in found.values())
    return {name for name, options in found.items() if options}


def _batch(tables: Tables, batch_id: int, *positions: dict[str, object] | None, done: bool) -> None:
    place = Path(tables.checkpoint("reconcile"))
    for folder in ("offsets", "commits"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "metadata").write_text('{"id":"q"}')
    ends = ["-" if position is None else json.dumps(position) for position in positions]
    (place / f"offsets/{batch_id}").write_text("\n".join(["v1", '{"batchTimestampMs":1}', *ends]))
    if done:
        (place / f"commits/{batch_id}").write_text("v1\n{}")


def test_log_that_is_short_and_of_appends_is_read_by_commits(tables: Tables) -> None:
    assert _from_version_0(tables) == {"half", "op", "ticks"}
    _tick(tables, MOST_COMMITS - 1 - tables.log("ticks").version())
    assert _from_version_0(tables) == {"half", "op", "ticks"}
    _tick(tables)
    assert _from_version_0(tables) == {"half", "op"}


def test_log_that_does_more_than_append_is_not(tables: Tables) -> None:
    """Files that were replaced may be gone, and a schema that was changed is not that of the first rows."""
    _tick(tables, 2)
    DeltaTable(tables.location("ticks")).optimize.compact()
    DeltaTable(tables.location("op")).alter.set_table_properties({"checkback.note": "x"}, raise_if_not_exists=False)
    assert _from_version_0(tables) == {"half"}


def test_log_without_its_beginning_is_not(tables: Tables) -> None:
    _tick(tables, 2)
    DeltaTable(tables.location("ticks")).create_checkpoint()
    Path(tables.location("ticks"), "_delta_log", f"{0:020}.json").unlink()
    assert _from_version_0(tables) == {"half", "op"}


def test_batch_is_replayed_the_way_it_was_begun(tables: Tables) -> None:
    snapshot = _AT | {"reservoirVersion": 2, "index": 0, "isStartingVersion": True}
    within, whole = _AT | {"reservoirVersion": 2, "index": 0}, _AT | {"reservoirVersion": 3, "index": -1}
    _batch(tables, 0, snapshot, within, None, done=False)
    assert _from_version_0(tables) == {"op", "ticks"}
    _tick(tables, MOST_COMMITS)
    _batch(tables, 0, snapshot, None, within, done=False)
    assert _from_version_0(tables) == {"op", "ticks"}  # those of its commits that the batch has not read count, too
    _batch(tables, 0, snapshot, None, whole, done=False)
    assert _from_version_0(tables) == {"op"}
    _batch(tables, 0, snapshot, None, within, done=True)
    _batch(tables, 1, whole, within, within, done=False)
    assert _from_version_0(tables) == {"half", "op"}  # `ticks` goes on from where batch 0 ended


@pytest.mark.parametrize(
    ("done", "newest", "plain", "begins"),
    [
        (None, None, True, True),
        (None, None, False, False),
        (None, StreamPosition("t", 3, 5, starting=True), True, False),
        (None, StreamPosition("t", 3, 5), True, True),
        (None, StreamPosition("t", 3, 5), False, True),
        (None, StreamPosition("t", 3), False, False),
        (StreamPosition("t", 2), StreamPosition("t", 3, 5), False, False),
        (StreamPosition("t", 3), StreamPosition("t", 3), True, True),
    ],
)
def test_what_decides(done: StreamPosition | None, newest: StreamPosition | None, plain: bool, begins: bool) -> None:
    assert with_commits(done, newest, plain) is begins
