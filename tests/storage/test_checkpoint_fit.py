"""Each way in which a query's checkpoint and the tables do not belong together is told apart; the others fit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checkback.storage.checkpoint import StreamPosition
from checkback.storage.checkpoint_fit import Fit, TableLog, misfit
from checkback.storage.delta_log import DeltaLog
from checkback.storage.seen_commits import SeenCommits, replaced
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

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
        ({"replaced": "half"}, "the table half was put back"),
        (_log(table="x"), "the table requests is another one"),
        (_at(version=11), "ends with version 9, the checkpoint goes on from 11"),
        (_at(version=10, index=0), "ends with version 9, the checkpoint goes on from 10"),
        (_at(version=10, starting=True), "ends with version 9, the checkpoint goes on from 10"),
        (_log(oldest=9), "the log of requests begins with version 9, the checkpoint goes on from 8"),
    ],
)
def test_what_does_not_belong_together_is_told(changes: dict[str, Any], says: str) -> None:
    found = misfit(replace(GOOD, **changes))
    assert found is not None
    assert says in found.what


def test_commit_that_was_seen_is_known_again(tmp_path: Path) -> None:
    """Another one under its version is told, a cleaned up one is not; a table that ends before it is."""
    tables = Tables(root=str(tmp_path), by_files=True)
    DeltaLog.create("half", tables.location("half"))
    log = tmp_path / "half/_delta_log"
    for version in (1, 2):
        (log / f"{version:020}.json").write_text(f"commit {version}")
    assert replaced(None, tables, "reconcile") is None
    SeenCommits(tables, "reconcile").keep(None, {"half": 1})
    assert replaced(None, tables, "reconcile") is None
    (log / f"{1:020}.json").write_text("another")
    assert replaced(None, tables, "reconcile") == "half"
    (log / f"{1:020}.json").unlink()
    assert replaced(None, tables, "reconcile") is None
    (log / f"{2:020}.json").unlink()
    assert replaced(None, tables, "reconcile") == "half"
