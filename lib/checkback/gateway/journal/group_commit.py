"""Group commit: messages that arrive within a few tens of milliseconds share a commit, and are answered after it."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from checkback.gateway.problems import Problem
from checkback.messages.limits import BATCH_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.journal.record import Record


T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)
#: Limits of one commit: a larger one would delay those queued behind it.
COMMIT_ROWS = 10_000
COMMIT_BYTES = 64 << 20
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

    @property
    def requests(self) -> int:
        """How many are accepted and not yet in a commit."""
        return sum(len(one.tickets) for one in self._of.values())

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
