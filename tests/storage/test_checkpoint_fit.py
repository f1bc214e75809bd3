"""Each way in which a query's checkpoint and the tables do not belong together is told apart; the others fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from checkback.errors import StateError
from checkback.storage.checkpoints.checkpoint import StreamPosition
from checkback.storage.checkpoints.checkpoint_fit import Fit, TableLog, misfit
from checkback.storage.checkpoints.seen_commits import SeenCommits, replaced
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

LOG = TableLog("r", oldest=0, newest=9)
POSITION = StreamPosition("r", 8)
GOOD = Fit(begun=5, done=4, written=5, positions={"requests": POSITION}, logs={"requests": LOG})


def _at(**changes: Any) -> dict[str, Any]:
    return {"positions": {"requests": replace(POSITION, **changes)}}


def _log(**changes: Any) -> dict[str, Any]:
    return {"logs": {"requests": replace(LOG, **changes)}}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"written": None},  # its batches had nothing to write
        {"written": 2},
        {"begun": -1, "done": -1, "written": None, "positions": {}, "logs": {}},
        {"concluded": 4},
        {"concluded": 5},  # done again
        {"positions": {"requests": None}},
        _at(version=10),  # all of it is read
        _at(version=9, index=3),
        _log(oldest=8),
        {"starts": {"requests": replace(POSITION, version=7)}} | _log(oldest=7),
        {"time": 7, "planned": frozenset({7})},
        {"time": 7},
    ],
)
def test_what_belongs_together_fits(changes: dict[str, Any]) -> None:
    assert misfit(replace(GOOD, **changes)) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"written": 6}, "the checkpoint is older than the tables: it knows 5 as the last batch, they hold 6"),
        ({"begun": -1, "written": 0}, "the checkpoint is older than the tables"),
        ({"concluded": 3}, "the tables are older than the checkpoint: batch 4 is done, they end with 3"),
        ({"replaced": "the table half was restored"}, "the table half was restored"),
        ({"time": 7, "planned": frozenset({7, 6})}, "written by another batch 5 than the checkpoint has"),
        (_log(table="x"), "the table requests is another one"),
        (_at(version=11), "ends with version 9, the checkpoint goes on from 11"),
        (_at(version=10, index=0), "ends with version 9, the checkpoint goes on from 10"),
        (_at(version=10, starting=True), "ends with version 9, the checkpoint goes on from 10"),
        (_log(oldest=9), "the log of requests begins with version 9, the checkpoint goes on from 8"),
        (
            {"starts": {"requests": replace(POSITION, version=7)}} | _log(oldest=8),
            "the log of requests begins with version 8, the checkpoint goes on from 7",
        ),
    ],
)
def test_what_does_not_belong_together_is_told(changes: dict[str, Any], says: str) -> None:
    found = misfit(replace(GOOD, **changes))
    assert found is not None
    assert says in found.what


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Tables with `half` and `op` in two more versions than the first."""
    tables = Tables(root=str(tmp_path), by_files=True)
    for name in ("half", "op"):
        DeltaLog.create(name, tables.location(name))
        for version in (1, 2):
            _commit(tables, name, version).write_text(f"commit {version}")
    return tables


def _commit(tables: Tables, name: str, version: int) -> Path:
    return Path(tables.location(name)) / f"_delta_log/{version:020}.json"


def test_commit_that_was_seen_is_known_again(tables: Tables) -> None:
    """Another one under its version is told, a cleaned up one is not; a table that ends before it is."""
    assert replaced(None, tables, "reconcile") is None
    SeenCommits(tables, "reconcile", "").keep(None, {"half": 1})
    assert replaced(None, tables, "reconcile") is None
    _commit(tables, "half", 1).write_text("another")
    assert "the table half was restored" in (replaced(None, tables, "reconcile") or "")
    _commit(tables, "half", 1).unlink()
    assert replaced(None, tables, "reconcile") is None
    _commit(tables, "half", 2).unlink()
    assert "the table half was restored" in (replaced(None, tables, "reconcile") or "")


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("seen", [{"half": 1, "op": 1}, {"half": 2, "op": 1}, {"op": 2}])
def test_table_that_is_put_back_beneath_a_query_ends_it(tables: Tables, seen: dict[str, int], anew: bool) -> None:
    """Whatever the next batch reads, by a new process or not; the note stays, so that the next start is refused."""
    query = SeenCommits(tables, "reconcile", "put it back")
    query.keep(None, {"half": 1, "op": 1})
    note = Path(query.place, "seen").read_text()
    _commit(tables, "half", 1).write_text("another")
    again = SeenCommits(tables, "reconcile", "put it back") if anew else query
    with pytest.raises(StateError, match=r"the table half was restored .*; put it back"):
        again.keep(None, seen)
    assert Path(query.place, "seen").read_text() == note
    assert replaced(None, tables, "reconcile") is not None


def test_table_and_checkpoint_that_are_put_back_together_beneath_a_query_end_it(tables: Tables) -> None:
    query = SeenCommits(tables, "reconcile", "")
    query.keep(None, {"half": 1})
    note = Path(query.place, "seen").read_text()
    query.keep(None, {"half": 2})
    Path(query.place, "seen").write_text(note)
    _commit(tables, "half", 2).write_text("another")
    with pytest.raises(StateError, match="the table half was restored"):
        query.keep(None, {"half": 2})


def test_version_that_a_batch_has_read_and_that_is_gone_ends_it(tables: Tables) -> None:
    """Put back between the batch's reading and its note. What is noted of another table stays noted."""
    query = SeenCommits(tables, "reconcile", "")
    query.keep(None, {"half": 1})
    query.keep(None, {"op": 1})
    _commit(tables, "half", 1).write_text("another")
    assert replaced(None, tables, "reconcile") is not None
    _commit(tables, "half", 1).write_text("commit 1")
    with pytest.raises(StateError, match="the table half was restored"):
        query.keep(None, {"half": 3})


@pytest.mark.parametrize("restored", [False, True])
def test_rows_that_a_restore_takes_away_are_missed(tmp_path: Path, restored: bool) -> None:
    """delta-rs restores an append-only table, forward in versions. Compaction takes no rows away."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(cast("Any", None), "op")
    for offset in range(3):
        rows = pa.Table.from_pylist([{"queue_id": 1, "queue_offset": offset}], arrow_schema("op"))
        tables.append_arrow(cast("Any", None), rows, "op")
    query, running = (SeenCommits(tables, "land-op", "land anew") for _ in range(2))
    query.keep(None, {"op": 3})
    running.keep(None, {"op": 3})
    table = DeltaTable(tables.location("op"))
    if restored:
        table.restore(2)
    else:
        table.optimize.compact()
    assert table.version() == 4
    if restored:
        assert "version 4 of the table op has taken rows out" in (replaced(None, tables, "land-op") or "")
        with pytest.raises(StateError, match=r"version 4 of the table op has taken rows out of it .*; land anew"):
            running.keep(None, {"op": 4})
    else:
        assert replaced(None, tables, "land-op") is None
        running.keep(None, {"op": 4})


def test_rows_that_may_be_deleted_are_not_missed(tmp_path: Path) -> None:
    """Of `check_answers`; another table in its place is."""
    tables = Tables(root=str(tmp_path), by_files=True)
    tables.create(cast("Any", None), "check_answers")
    for offset in range(2):
        rows = pa.Table.from_pylist([{"queue_id": 1, "queue_offset": offset}], arrow_schema("check_answers"))
        tables.append_arrow(cast("Any", None), rows, "check_answers")
    running = SeenCommits(tables, "check", "start again")
    running.keep(None, {"check_answers": 2})
    table = DeltaTable(tables.location("check_answers"))
    table.delete("queue_offset = 0")
    running.keep_newest(None, "check_answers")
    table.restore(1)
    running.keep_newest(None, "check_answers")
    assert replaced(None, tables, "check") is None
    _commit(tables, "check_answers", 4).write_text("another")
    assert "the table check_answers was restored" in (replaced(None, tables, "check") or "")
