"""Group commit: messages that arrive within a few tens of milliseconds share a commit, and are answered after it."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from checkback.gateway.batch_decoder import BATCH_MAX
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.authentication import Groups

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

    def write(self, prepared: object) -> None:
        """Commit. If it raises, nothing was committed, or ``failed`` ends the process."""

    def settle(self, batch: Sequence[T_contra], prepared: object) -> None:
        """The commit succeeded."""

    def failed(self, batch: Sequence[T_contra], error: Exception) -> None:
        """The commit failed, or its outcome is unknown."""


@dataclass
class _Ticket(Generic[T]):
    """The messages of one request."""

    messages: Sequence[T]
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


class GroupCommit(Generic[T]):
    """Batches the messages of requests and commits them, one commit at a time. Belongs to one event loop.

    Fair across tokens, which are identified by their producer groups: one token gets at most half of the capacity, and
    commits take requests round-robin, so that a busy token does not starve the others.
    """

    def __init__(self, name: str, book: CommitTarget[T], gather_s: float, max_waiting: int) -> None:
        self._book = book
        self._max_waiting = max_waiting
        self._share = min(max_waiting, max(max_waiting // 2, BATCH_MAX))
        self._gather_s = gather_s
        self._of: dict[Groups, _Waiting[T]] = {}
        self._came = asyncio.Event()
        self._closed = False
        self._hurry = asyncio.Event()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"commit-{name}")
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
        return None

    def submit(self, messages: Sequence[T], size: int, groups: Groups) -> asyncio.Future[None]:
        """Accept messages; the future is done when the target has settled or failed them."""
        loop = asyncio.get_running_loop()
        ticket = _Ticket(messages, size, groups, loop.time(), loop.create_future())
        mine = self._of.setdefault(groups, _Waiting())
        mine.tickets.append(ticket)
        mine.rows += len(messages)
        mine.size += size
        self.waiting += len(messages)
        self.waiting_bytes += size
        self._came.set()
        return ticket.done

    async def run(self) -> None:
        """Commit until ``close``, then commit what was accepted before it."""
        loop = asyncio.get_running_loop()
        try:
            while (came := self._oldest()) is not None or not self._closed:
                if came is None:
                    self._came.clear()
                    await self._came.wait()
                    continue
                # Messages that arrived during the last commit have already waited.
                pause = came + self._gather_s - loop.time()
                if pause > 0 and self.waiting < COMMIT_ROWS and not self._hurry.is_set():
                    with suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._hurry.wait(), pause)
                await self._commit(self._taken())
        finally:
            self._thread.shutdown(wait=False)

    def hurry(self) -> None:
        """Stop batching: commit pending messages at once."""
        self._hurry.set()

    def close(self) -> None:
        """Accept nothing more, and commit what is pending."""
        self._closed = True
        self.hurry()
        self._came.set()

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
            rows += len(ticket.messages)
            size += ticket.size
            if tickets:
                left.append(tickets)
        return taken

    async def _commit(self, tickets: list[_Ticket[T]]) -> None:
        batch = [message for ticket in tickets for message in ticket.messages]
        try:
            prepared = self._book.prepare(batch)
            await asyncio.get_running_loop().run_in_executor(self._thread, self._book.write, prepared)
        except Exception as error:  # noqa: BLE001 - waiting requests must be answered
            self._book.failed(batch, error)
        else:
            self._book.settle(batch, prepared)
        self.waiting -= len(batch)
        self.waiting_bytes -= sum(ticket.size for ticket in tickets)
        for ticket in tickets:
            mine = self._of[ticket.groups]
            mine.rows -= len(ticket.messages)
            mine.size -= ticket.size
            if not mine.rows:
                del self._of[ticket.groups]
            if not ticket.done.done():
                ticket.done.set_result(None)
