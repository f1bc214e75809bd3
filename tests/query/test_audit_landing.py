"""Decided before it had landed: by the versions of `half`, and only where these do not tell by the clocks."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from checkback.query.answers import Answers
from checkback.settings import Settings
from checkback.storage.tables import Tables
from support import batch_order
from support.acted_in_order import out_of_order
from support.stories import DECIDED, Row, Transaction, batch, write

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

_SECOND, _HOUR = timedelta(seconds=1), timedelta(hours=1)


def _rows(offset: int, landed: datetime, **decided: Any) -> list[Row]:
    t = Transaction(0, offset)
    return [t.half(store_timestamp=landed), t.op("ROLLBACK"), t.decision("ROLLBACK", **decided)]


def _batch(number: int, time: datetime, to_version: int | None = None, to_index: int = -1, **more: Any) -> Row:
    ranges = {"from_version": 0, "from_index": -1, "to_version": to_version, "to_index": to_index}
    return batch(number, time, read_ranges=None if to_version is None else [("half", ranges)], **more)


def _settings(root: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(root)}})


def _found(root: Path) -> list[int]:
    return sorted(offset for name, _, offset in out_of_order(_settings(root)) if name == "decided_before_landing")


def _write(root: Path, *commits: list[Row]) -> None:
    """Each a version of `half`: the first is version 1."""
    for rows in commits:
        write(None, Tables.of(_settings(root).storage), rows)


@pytest.mark.parametrize(("to_version", "to_index", "unread"), [(1, 0, [1]), (2, -1, [1]), (2, 0, []), (1, -1, [0, 1])])
def test_versions_decide_not_clocks(tmp_path: Path, to_version: int, to_index: int, unread: list[int]) -> None:
    """The clock of the first one's writer is an hour ahead, that of the second's a second."""
    told = _batch(0, DECIDED, to_version, to_index, rolled_back=2)
    _write(tmp_path, [told, *_rows(0, DECIDED + _HOUR)], _rows(1, DECIDED + _SECOND))
    assert _found(tmp_path) == unread


def test_with_many_files_or_without_their_versions_clocks_decide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But only what is beyond all doubt."""
    told = _batch(0, DECIDED, 1, -1, rolled_back=3)
    _write(tmp_path, [told], _rows(0, DECIDED + _HOUR), _rows(1, DECIDED + _SECOND), _rows(2, DECIDED - _SECOND))
    assert _found(tmp_path) == [0, 1]
    with monkeypatch.context() as few:
        few.setattr(batch_order, "_FILES", 1)
        assert _found(tmp_path) == [0]
    DeltaTable(str(tmp_path / "half")).optimize.compact()
    assert _found(tmp_path) == [0]


def test_clock_that_was_set_back_decides_nothing(tmp_path: Path) -> None:
    """A batch before has told an earlier time; and of a batch without a row nothing is known."""
    _write(
        tmp_path,
        [
            *(_batch(0, DECIDED + _HOUR), _batch(1, DECIDED, rolled_back=1)),
            *_rows(0, DECIDED + _HOUR, batch_id=1),
            *_rows(1, DECIDED + 2 * _HOUR, batch_id=7),
        ],
    )
    assert _found(tmp_path) == []


def test_half_message_that_came_again_later_is_not_the_decided_one(tmp_path: Path) -> None:
    told = _batch(0, DECIDED, 1, 0, rolled_back=1)
    again = Transaction(0, 0).half(store_timestamp=DECIDED + _HOUR)
    _write(tmp_path, [told, *_rows(0, DECIDED - _SECOND)], [again])
    assert _found(tmp_path) == []


@pytest.mark.parametrize("late", ["half", "op"])
@pytest.mark.parametrize(("after", "set_back"), [(9, 0), (11, 0), (69, 60), (71, 60)])
def test_audit_judges_by_the_clocks_beyond_all_doubt(tmp_path: Path, late: str, after: int, set_back: int) -> None:
    """Ten minutes, and as far as a clock of batches was ever set back; in minutes."""
    then = DECIDED + timedelta(minutes=after)
    t = Transaction(0)
    rows = [t.half(), t.op("ROLLBACK"), t.decision("ROLLBACK", batch_id=1)]
    rows = [(name, row | {"store_timestamp": then}) if name == late else (name, row) for name, row in rows]
    before = _batch(0, DECIDED + timedelta(minutes=set_back))
    _write(tmp_path, [before, _batch(1, DECIDED, rolled_back=1), *rows])
    found = {row["finding"] for row in Answers(_settings(tmp_path)).findings().to_pylist()}
    expected = {"decided_before_landing" if late == "half" else "decided_before_op"}
    assert found == (expected if after - set_back > 10 else set())
