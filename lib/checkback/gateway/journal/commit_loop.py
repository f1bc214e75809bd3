"""The loop of commits: when the next one begins, with what, and in which thread."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from checkback.errors import StorageError
from checkback.gateway.health import steady_ms
from checkback.gateway.journal.group_commit import COMMIT_ROWS
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkback.gateway.journal.group_commit import Commit, GroupCommit
    from checkback.gateway.journal.journal import Journal

#: a flush that takes longer (s) is better waited for in another thread
_SHORT_S = 0.001
#: so long (s) may flushes that are not short hold up the loop, one after the other, until it leaves them to the thread
_HELD_UP_S = 0.05
#: then it does so for (s)
_LEFT_S = 2.0
#: so long (s) a commit in the loop waits for the requests that came together with its first one last time
GATHERING_S = 0.002
#: a request is worth waiting for so many times as long as a commit takes: what it costs besides is not less
_WORTH = 3
#: so often a commit waits although as many as last time are there
_LOOK_EVERY = 32
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
        #: how long the last commit took
        self.last_s = 0.0

    def fits(self, size: int, now: float) -> bool:
        """Is a commit of so many bytes made in the loop?"""
        return size <= _SMALL and now >= self._left_until

    def took(self, seconds: float, now: float) -> None:
        """A commit in the loop took so long."""
        self.last_s = seconds
        self._held_up = self._held_up + seconds if seconds > _SHORT_S else 0.0
        if self._held_up > _HELD_UP_S:
            self._held_up, self._left_until = 0.0, now + _LEFT_S


class CommitSize:
    """Decides how many requests a commit in the loop waits for: as many as came together last time.

    Clients that wait for their answers send the next request soon after them, one by one: a commit that did not wait
    would have one request each. Now and then a commit finds out whether there are more clients than it waits for. It
    does not wait for one that takes longer than the commit it would save.
    """

    def __init__(self) -> None:
        self._last = 1
        self._commits = 0

    def wanted(self) -> int:
        """So many requests are waited for, but not for longer than GATHERING_S."""
        self._commits += 1
        return COMMIT_ROWS if self._commits % _LOOK_EVERY == 0 else self._last

    def found(self, before: int, requests: int, seconds: float, commit_s: float) -> None:
        """A commit that takes ``commit_s`` had so many ``before`` it waited; the last came after so many seconds."""
        worth = seconds <= (requests - before) * _WORTH * commit_s
        self._last = requests if worth else max(before, 1)


async def gather(queues: Sequence[GroupCommit[Any]], came: asyncio.Event, size: CommitSize, commit_s: float) -> None:
    """Wait for the requests that belong into the next commit. ``commit_s``: how long one takes."""
    wanted, before = size.wanted(), _requests(queues)
    if before >= wanted:
        return
    due, began, found, last = asyncio.Event(), time.monotonic(), before, 0.0

    def end() -> None:
        due.set()
        came.set()

    timer = asyncio.get_running_loop().call_later(GATHERING_S, end)
    while found < wanted and not due.is_set():
        came.clear()
        await came.wait()
        if (now := _requests(queues)) > found:
            found, last = now, time.monotonic() - began
    timer.cancel()
    size.found(before, found, last, commit_s)


def _requests(queues: Sequence[GroupCommit[Any]]) -> int:
    return sum(queue.requests for queue in queues)


async def drive(
    name: str,
    queues: Sequence[GroupCommit[Any]],
    write: Callable[[Sequence[Commit[Any]]], None],
    linger_s: float = 0.0,
    in_loop: InLoop | None = None,
) -> None:
    """Commit what is accepted until all queues are closed and empty. While one commit runs, the next gathers.

    ``write`` blocks, and runs in the thread ``name``, or in the loop's own where ``in_loop`` says so. ``linger_s``: how
    long the first message of a commit waits for others.
    """
    loop, came, size = asyncio.get_running_loop(), asyncio.Event(), CommitSize()
    for queue in queues:
        queue.came = came
    with closing_thread(name) as thread:
        while not all(queue.ended for queue in queues):
            came.clear()
            if all(queue.idle for queue in queues):
                await came.wait()
                continue
            for queue in queues:
                await queue.linger(linger_s)
            if in_loop is not None and in_loop.fits(0, time.monotonic()):
                await gather(queues, came, size, in_loop.last_s)
            begun = [(queue, commit) for queue in queues if (commit := queue.begin()) is not None]
            if not begun:
                continue
            commits = [commit for _, commit in begun]
            weight = sum(ticket.size for commit in commits for ticket in commit.tickets)
            began = time.monotonic()
            error: Exception | None = None
            try:
                if in_loop is not None and in_loop.fits(weight, began):
                    write(commits)
                    ended = time.monotonic()
                    in_loop.took(ended - began, ended)
                else:
                    await loop.run_in_executor(thread, write, commits)
            except Exception as failed:  # noqa: BLE001 - waiting requests must be answered
                error = failed
            for queue, commit in begun:
                queue.end(commit, error)


def to_table(commits: Sequence[Commit[Any]]) -> None:
    """For `drive`: commit to the tables."""
    for commit in commits:
        commit.target.write(commit.prepared)


@contextmanager
def closing_thread(name: str) -> Iterator[ThreadPoolExecutor]:
    """A thread of its own for blocking calls, which ends with the last one."""
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
    try:
        yield thread
    finally:
        thread.shutdown(wait=False)


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


def to_journal(journal: Journal) -> Callable[[Sequence[Commit[Any]]], None]:
    """For `drive`: append to the journal what the commits have, in one flush to disk."""

    def write(commits: Sequence[Commit[Any]]) -> None:
        journal.append([one for commit in commits for one in commit.target.records(commit.prepared)], steady_ms())

    return write
