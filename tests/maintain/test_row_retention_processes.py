"""`checkback maintain` with retention as a process: killed at any moment, and two at once."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.query.answers import Answers
from checkback.storage.horizon import horizon
from checkback.storage.tables import Tables
from maintain.test_row_retention import _HISTORY, HORIZON, by_offset, lake, settings_of
from support.stories import ms

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

pytestmark = [pytest.mark.slow, pytest.mark.processes]

PATIENCE_S = 300


def maintaining(root: Path) -> subprocess.Popen[str]:
    """The history counts from the last batch, so it is the same horizon today."""
    settings = f"storage.root={root}", "retention.history=30d", "maintain.min_files=2"
    command = [sys.executable, "-m", "checkback", "maintain", *(word for one in settings for word in ("--set", one))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Lake:
    """Tables of some half messages, and what must be so of them all the time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        ends = lake(root, 0, 100)
        self._owed = {offset for offset, end in ends.items() if _is_owed(end)}
        self._before = {name: by_offset(root, name) for name in _HISTORY}
        self._waiting = self._asked()

    def _asked(self) -> list[list[Any]]:
        answers = Answers(settings_of(self.root))
        waiting = answers.pending().to_pylist(), answers.scheduled().to_pylist()
        return [sorted(row["queue_offset"] for row in rows) for rows in waiting]

    def check(self) -> None:
        """The audit is clean, nothing waits that did not, and what is owed has all its rows."""
        assert not Answers(settings_of(self.root)).audit().broken
        assert self._asked() == self._waiting
        for name, before in self._before.items():
            after = by_offset(self.root, name)
            for offset, rows in before.items():
                left = after.get(offset, [])
                assert left == rows if offset in self._owed else set(left) <= set(rows), (name, offset)

    def check_removed(self) -> None:
        """What has expired is gone, but for files with as much that is owed; `half` says the horizon."""
        assert len(by_offset(self.root, "half").keys() - self._owed) <= len(self._owed)
        assert by_offset(self.root, "half").keys() < self._before["half"].keys()
        assert horizon(None, Tables.of(settings_of(self.root).storage)) == ms(HORIZON)

    def commits(self) -> int:
        """How many commits all tables have."""
        return sum(1 for _ in self.root.glob("*/_delta_log/*.json"))


def _is_owed(end: datetime | None) -> bool:
    return end is None or end >= HORIZON


@pytest.fixture
def started() -> Iterator[ExitStack]:
    """Ends what a test has started."""
    with ExitStack() as stack:
        yield stack


def start(started: ExitStack, root: Path) -> subprocess.Popen[str]:
    process = started.enter_context(maintaining(root))
    started.callback(process.kill)
    return process


@pytest.mark.parametrize("commits", [1, 2, 3, 5, 8, 12])
def test_killed_at_any_moment_the_next_one_does_the_rest(tmp_path: Path, started: ExitStack, commits: int) -> None:
    """Kill -9 as soon as there are so many commits: it is in the next one, or about to begin it."""
    mine = Lake(tmp_path)
    before = mine.commits()
    killed = start(started, tmp_path)
    while mine.commits() < before + commits and killed.poll() is None:
        pass
    killed.kill()
    killed.communicate(timeout=PATIENCE_S)
    assert killed.returncode == -9
    mine.check()
    following = start(started, tmp_path)
    told = following.communicate(timeout=PATIENCE_S)
    assert following.returncode == 0, told
    mine.check()
    mine.check_removed()


def test_two_at_once_remove_what_one_would(tmp_path: Path, started: ExitStack) -> None:
    """One of them works; the other ends, or comes after it."""
    mine = Lake(tmp_path)
    both = [start(started, tmp_path) for _ in range(2)]
    told = [process.communicate(timeout=PATIENCE_S)[1] for process in both]
    codes = [process.returncode for process in both]
    assert 0 in codes, told
    for code, err in zip(codes, told, strict=True):
        assert code == 0 or "is already working on these tables" in err
    mine.check()
    mine.check_removed()
