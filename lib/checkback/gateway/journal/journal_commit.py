"""Commits half messages and ops to the journal: what both have at a time, in one flush to disk."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

from checkback.errors import StorageError
from checkback.gateway.health import steady_ms
from checkback.gateway.journal.group_commit import closing_thread
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.gateway.journal.group_commit import Commit, GroupCommit
    from checkback.gateway.journal.journal import Journal

#: a flush that takes longer (s) is better waited for in another thread
_SHORT_S = 0.001
#: so long (s) may flushes that are not short hold up the loop, one after the other, until it leaves them to the thread
_HELD_UP_S = 0.05
#: then it does so for (s)
_LEFT_S = 2.0
#: bytes that the loop writes itself
_SMALL = 256 << 10
_log = logging.getLogger("checkback.gateway")


class InLoop:
    """Decides which commits the loop's own thread makes: small ones, while the disk is fast.

    To wake another thread, and be woken by it, takes longer than a flush of such a disk, and as long again for each
    statement if both threads contend for the GIL. No I/O, no clock: times are monotonic, in seconds.
    """

    def __init__(self) -> None:
        self._held_up = 0.0
        self._left_until = 0.0

    def fits(self, size: int, now: float) -> bool:
        """Is a commit of so many bytes made in the loop?"""
        return size <= _SMALL and now >= self._left_until

    def took(self, seconds: float, now: float) -> None:
        """A commit in the loop took so long."""
        self._held_up = self._held_up + seconds if seconds > _SHORT_S else 0.0
        if self._held_up > _HELD_UP_S:
            self._held_up, self._left_until = 0.0, now + _LEFT_S


class JournalIntake:
    """Refuses messages while the journal is full, or its disk has no room left for what it has in the tables, too."""

    def __init__(self, journal: Journal, hurry: Callable[[], None]) -> None:
        """``hurry`` is called while the journal is at least half full."""
        self._journal = journal
        self._hurry = hurry
        self._shortage: str | None = None
        self._taking = True
        self.look()

    def look(self) -> Problem | None:
        """Look at the disk, now and then; why nothing is taken. The log says when that begins, and when it ends."""
        self._shortage = self._journal.shortage()
        refusal = self.refusal(0)
        if refusal is not None and self._taking:
            why = self._shortage or f"{self._journal.rows} messages in it wait for the tables"
            fix = "make room there: until then every message is refused (503 journal_full)"
            _log.warning("the journal takes no messages: %s", StorageError(why, self._journal.path, fix))
        elif refusal is None and not self._taking:
            _log.warning("the journal takes messages again: %s", self._journal.path)
        self._taking = refusal is None
        return refusal

    def refusal(self, size: int) -> Problem | None:
        """See group_commit.Intake."""
        if self._journal.half_full:
            self._hurry()
        if self._shortage is not None:
            return Problem("journal_full", f"the journal takes no messages: {self._shortage}; send it again")
        if not self._journal.full(size):
            return None
        detail = f"{self._journal.rows} messages in the journal wait to be committed to the tables; send it again"
        return Problem("journal_full", detail)


async def commit_to_journal(journal: Journal, queues: Sequence[GroupCommit[Any]]) -> None:
    """Commit what is accepted until all queues are closed and empty. While one flush runs, the next gathers.

    Small ones are committed in the loop's own thread, see `InLoop`.
    """
    loop = asyncio.get_running_loop()
    came = asyncio.Event()
    in_loop = InLoop()
    for queue in queues:
        queue.came = came
    with closing_thread("journal") as thread:
        while not all(queue.ended for queue in queues):
            came.clear()
            commits = [(queue, commit) for queue in queues if (commit := queue.begin()) is not None]
            if not commits:
                await came.wait()
                continue
            began = time.monotonic()
            size = sum(ticket.size for _, commit in commits for ticket in commit.tickets)
            try:
                if in_loop.fits(size, began):
                    _write(journal, commits)
                    ended = time.monotonic()
                    in_loop.took(ended - began, ended)
                else:
                    await loop.run_in_executor(thread, _write, journal, commits)
            except Exception as error:  # noqa: BLE001 - waiting requests must be answered
                for queue, commit in commits:
                    queue.end(commit, error)
            else:
                for queue, commit in commits:
                    queue.end(commit)


def _write(journal: Journal, commits: Sequence[tuple[GroupCommit[Any], Commit[Any]]]) -> None:
    journal.append([one for queue, commit in commits for one in queue.target.records(commit.prepared)], steady_ms())
