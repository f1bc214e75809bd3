"""What `maintain` wins: a commit, and a look at the table, with thousands of small files and after."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.deltalog import DeltaLog
from checkback.gateway.store import Appender, half_rows
from checkback.maintain.command import run
from checkback.messages import Half
from checkback.settings import Settings

if TYPE_CHECKING:
    from checkback.maintain.report import Done

ROWS = 100
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

    def maintain(self) -> Done:
        """A run of `maintain`."""
        settings = Settings.model_validate({"storage": {"root": self._root}})
        return next(done for done in run(settings, dry_run=False) if done.table == "half")
