"""Group commit: messages that arrive within a few tens of milliseconds share a commit, and are answered after it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from checkback.errors import StorageError
from checkback.gateway.health import steady_ms
from checkback.gateway.problems import Problem
from checkback.messages.limits import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.journal.journal import Journal
    from checkback.gateway.journal.record import Record


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
#: Limits of one commit: a larger one would delay those queued behind it.
COMMIT_ROWS = 10_000
COMMIT_BYTES = 64 << 20
#: a flush that takes longer (s) is better waited for in another thread
_SHORT_S = 0.001
#: so long (s) may flushes that are not short hold up the loop, one after the other, until it leaves them to the thread
_HELD_UP_S = 0.05
#: then it does so for (s)
_LEFT_S = 2.0
#: bytes that the loop writes itself
_SMALL = 256 << 10
#: Limit of what is accepted and not yet committed. The process needs several times as much memory for it.
WAITING_BYTES = 256 << 20


class CommitTarget(Protocol[T_contra]):
    """Where a batch of messages is committed. ``write`` blocks and runs in its own thread."""

    def prepare(self, batch: Sequence[T_contra]) -> object:
        """The argument of ``write``; called on the event loop, after the previous commit has settled."""

    def write(self, prepared: Any) -> None:
        """Commit to the table. If it raises, nothing was committed, or ``failed`` ends the process."""

    def records(self, prepared: Any) -> Sequence[Record]:
        """What is written to the journal instead, where there is one."""

    def settle(self, batch: Sequence[T_contra], prepared: Any) -> None:
        """The commit succeeded."""

    def failed(self, batch: Sequence[T_contra], error: Exception) -> None:
        """The commit failed, or its outcome is unknown."""


class Intake(Protocol):
    """What limits how much is accepted, besides this process's memory."""

    def refusal(self, size: int) -> Problem | None:
        """Why ``size`` more bytes cannot be accepted now; None if they can."""


@dataclass
class _Ticket(Generic[T]):
    """The messages of one request."""

    messages: Sequence[T]
    rows: int
    size: int
    groups: Groups
    came: float
    done: asyncio.Future[None]


@dataclass
class _Waiting(Generic[T]):
    """What one token has accepted and not yet committed; ``tickets``: requests not yet in a commit."""

    tickets: deque[_Ticket[T]] = field(default_factory=deque)
    rows: int = 0
    size: int = 0


@dataclass
class Commit(Generic[T]):
    """Messages that are committed together: those of ``tickets``, and what the ``target`` has prepared."""

    target: CommitTarget[T]
    tickets: list[_Ticket[T]]
    batch: list[T]
    prepared: Any = None


class GroupCommit(Generic[T]):
    """Batches the messages of requests and commits them, one commit at a time. Belongs to one event loop.

    Fair across tokens, which are identified by their producer groups: one token gets at most half of the capacity, and
    commits take requests round-robin, so that a busy token does not starve the others.
    """

    def __init__(self, target: CommitTarget[T], max_waiting: int, intake: Intake | None = None) -> None:
        self.target = target
        self._intake = intake
        self._max_waiting = max_waiting
        self._share = min(max_waiting, max(max_waiting // 2, BATCH_MAX))
        self._of: dict[Groups, _Waiting[T]] = {}
        #: set when messages came, or at `close`; `drive` sets its own
        self.came = asyncio.Event()
        self._closed = False
        self._hurry = asyncio.Event()
        #: messages accepted and not yet committed, and their bytes
        self.waiting = 0
        self.waiting_bytes = 0

    def refusal(self, more: int, size: int, groups: Groups) -> Problem | None:
        """Why ``more`` messages of ``size`` bytes cannot be accepted now; None if they can.

        ``groups``: of the token; None = no tokens are configured.
        """
        if self._closed:
            return Problem("stopping", "the gateway takes nothing more; send it again")
        if self.waiting + more > self._max_waiting or self.waiting_bytes + size > WAITING_BYTES:
            return Problem("queue_full", f"{self.waiting} messages wait to be committed; send it again")
        mine = self._of.get(groups) if groups is not None else None
        if mine is not None and (mine.rows + more > self._share or mine.size + size > WAITING_BYTES // 2):
            return Problem("queue_full", f"{mine.rows} messages of this token wait to be committed; send it again")
        return None if self._intake is None else self._intake.refusal(self.waiting_bytes + size)

    def submit(self, messages: Sequence[T], size: int, groups: Groups, rows: int | None = None) -> asyncio.Future[None]:
        """Accept messages; the future is done when the target has settled or failed them.

        ``rows``: their number, if some of ``messages`` are several.
        """
        loop = asyncio.get_running_loop()
        count = len(messages) if rows is None else rows
        ticket = _Ticket(messages, count, size, groups, loop.time(), loop.create_future())
        mine = self._of.setdefault(groups, _Waiting())
        mine.tickets.append(ticket)
        mine.rows += count
        mine.size += size
        self.waiting += count
        self.waiting_bytes += size
        self.came.set()
        return ticket.done

    async def linger(self, seconds: float) -> None:
        """Wait for further messages, until the first has waited so long. They also come during a commit."""
        oldest = self._oldest()
        pause = 0.0 if oldest is None else oldest + seconds - asyncio.get_running_loop().time()
        if pause > 0 and self.waiting < COMMIT_ROWS:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), pause)

    @property
    def idle(self) -> bool:
        """Is everything accepted committed or being committed?"""
        return self._oldest() is None

    @property
    def ended(self) -> bool:
        """Closed, and `idle`?"""
        return self._closed and self.idle

    def hurry(self) -> None:
        """Stop batching: commit pending messages at once."""
        self._hurry.set()

    def close(self) -> None:
        """Accept nothing more, and commit what is pending."""
        self._closed = True
        self.hurry()
        self.came.set()

    def _oldest(self) -> float | None:
        """When the oldest request not yet in a commit arrived."""
        return min((one.tickets[0].came for one in self._of.values() if one.tickets), default=None)

    def _taken(self) -> list[_Ticket[T]]:
        taken: list[_Ticket[T]] = []
        left = deque(one.tickets for one in self._of.values() if one.tickets)
        rows = size = 0
        while left and (not taken or (rows < COMMIT_ROWS and size < COMMIT_BYTES)):
            tickets = left.popleft()
            ticket = tickets.popleft()
            taken.append(ticket)
            rows += ticket.rows
            size += ticket.size
            if tickets:
                left.append(tickets)
        return taken

    def begin(self) -> Commit[T] | None:
        """The next commit, prepared; None if there is nothing to commit. `end` it before the next one."""
        tickets = self._taken()
        if not tickets:
            return None
        commit = Commit(self.target, tickets, [message for ticket in tickets for message in ticket.messages])
        try:
            commit.prepared = self.target.prepare(commit.batch)
        except Exception as error:  # noqa: BLE001 - waiting requests must be answered
            self.end(commit, error)
            return None
        return commit

    def end(self, commit: Commit[T], error: Exception | None = None) -> None:
        """Settle a commit, or let it fail, and answer its requests."""
        if error is None:
            self.target.settle(commit.batch, commit.prepared)
        else:
            self.target.failed(commit.batch, error)
        for ticket in commit.tickets:
            self.waiting -= ticket.rows
            self.waiting_bytes -= ticket.size
            mine = self._of[ticket.groups]
            mine.rows -= ticket.rows
            mine.size -= ticket.size
            if not mine.rows:
                del self._of[ticket.groups]
            if not ticket.done.done():
                ticket.done.set_result(None)


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
    loop, came = asyncio.get_running_loop(), asyncio.Event()
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
            begun = [(queue, commit) for queue in queues if (commit := queue.begin()) is not None]
            if not begun:
                continue
            commits = [commit for _, commit in begun]
            size = sum(ticket.size for commit in commits for ticket in commit.tickets)
            began = time.monotonic()
            error: Exception | None = None
            try:
                if in_loop is not None and in_loop.fits(size, began):
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


_log = logging.getLogger("checkback.gateway")


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
