"""What `maintain` wins: a commit, and a look at the table, with thousands of small files and after."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.report import report, say, scaled
from checkback.gateway.appender import Appender, half_rows
from checkback.maintain.command import run
from checkback.messages.half import Half
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog

if TYPE_CHECKING:
    from checkback.maintain.report import TableReport

ROWS = 100
SMALL_FILES = 3000
LOOKS = 60
_BODY = bytes(range(256))


@dataclass(frozen=True)
class Times:
    """Seconds: of each commit, and to open the table and list its files."""

    commits: list[float]
    opens: list[float]


class SmallFiles:
    """A table `half` as the gateway leaves it: a file of ROWS half messages a commit."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._appender = Appender(root, "half", [0])
        self._appender.claim(1)
        self._next = 0

    def commit(self) -> float:
        """The seconds that a commit takes."""
        halves = [
            Half(-1, -1, f"t-{self._next + n}", "orders", "payments", 0, None, None, {"a": "b"}, _BODY, 1000, None)
            for n in range(ROWS)
        ]
        rows = half_rows(halves, 0, self._next, 2000)
        self._next += ROWS
        began = time.perf_counter()
        self._appender.append(rows)
        return time.perf_counter() - began

    def times(self, n: int) -> Times:
        """``n`` commits and ``n`` looks."""
        opens = []
        for _ in range(n):
            began = time.perf_counter()
            DeltaLog("half", f"{self._root}/half").data_files()
            opens.append(time.perf_counter() - began)
        return Times([self.commit() for _ in range(n)], opens)

    def maintain(self) -> TableReport:
        """A run of `maintain`."""
        settings = Settings.model_validate({"storage": {"root": self._root}})
        return next(done for done in run(settings, dry_run=False) if done.table == "half")


def bench(root: str) -> None:
    """A commit and a look at `half` with 3,000 small files, the run that makes them few, and the same after it."""
    small = SmallFiles(root)
    for number in range(1, scaled(SMALL_FILES, least=30) + 1):
        small.commit()
        if number % 500 == 0:
            say(f"maintain: {number} commits")
    _look(small, "before")
    done = small.maintain()
    report("maintain", done.seconds, "s", 1, files_before=done.files_before, files_after=done.files_after)
    _look(small, "after")


def _look(small: SmallFiles, when: str) -> None:
    looks = scaled(LOOKS, least=3)
    times = small.times(looks)
    for what, seconds in (("commit", times.commits), ("open", times.opens)):
        ms = [second * 1000 for second in seconds]
        report(f"maintain_{what}_{when}", statistics.median(ms), "ms", looks, worst_ms=round(max(ms)))
