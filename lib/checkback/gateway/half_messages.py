"""Half messages in the gateway: deduplicated, batched, assigned their offsets, committed, answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback.delay import too_late
from checkback.gateway.deduplication import CachedHalf, Verdict, fingerprint, judge_half, name_of
from checkback.gateway.group_commit import GroupCommit
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal_records import half_record
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.tables import half_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication import DeduplicationCache
    from checkback.gateway.group_commit import Intake
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal import Record
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.tables import Appender
    from checkback.messages import Half
    from checkback.settings import Gateway

#: Approximate memory overhead of a message besides its texts and body, and of each property.
_OVERHEAD, _PROPERTY = 1024, 256


@dataclass(eq=False)
class _Entry:
    """An in-flight half message; its offset is assigned when its commit begins."""

    half: Half
    name: str
    fingerprint: int
    done: asyncio.Future[None] | None = None
    queue_id: int = -1
    queue_offset: int = -1
    problem: Problem | None = None


@dataclass
class _New:
    """The messages of a request that are to be committed, and the memory they need in bytes."""

    entries: list[_Entry] = field(default_factory=list)
    size: int = 0


class HalfMessageWriter:
    """Writes half messages to the table. Each commit goes to one queue, round-robin.

    A file thus holds a single range of offsets, which makes data skipping effective.
    """

    def __init__(
        self,
        gateway: Gateway,
        tokens: BearerTokens,
        cache: DeduplicationCache,
        table: Appender,
        metrics: Metrics,
        health: HealthState,
        max_delay: timedelta,
        intake: Intake | None = None,
    ) -> None:
        """``max_delay``: delay.max; ``intake``: as in `GroupCommit`."""
        self._rejecting = gateway.reject_transactions
        self._max_delay = max_delay // timedelta(milliseconds=1)
        self._tokens = tokens
        self._cache = cache
        self._table = table
        self._metrics = metrics
        self._health = health
        self._on_the_way: dict[str, _Entry] = {}
        self._turn = 0
        self.commits: GroupCommit[_Entry] = GroupCommit(
            "half", self, gateway.gather.total_seconds(), gateway.max_waiting, intake
        )

    def take(self, messages: Sequence[Half | Problem], groups: Groups) -> Awaitable[list[Answer]]:
        """The answer to each message, once it is committed.

        The awaitable holds references only to the messages that are to be committed, which are counted.
        """
        fit = [self._fit(half, groups) for half in messages]
        new = _New()
        admitted = [half if isinstance(half, Problem) else self._admit(half, new, groups) for half in fit]
        if new.entries:
            done = self.commits.submit(new.entries, new.size, groups)
            for entry in new.entries:
                entry.done = done
        return _all_settled(admitted)

    def _fit(self, half: Half | Problem, groups: Groups) -> Half | Problem:
        if isinstance(half, Problem):
            return half
        problem = self._tokens.refused(half.producer_group, groups)
        if problem is None and self._rejecting:
            problem = Problem("transactions_rejected", "gateway.reject_transactions is on: only ops are taken")
        if problem is None and (half.delay_ms or half.deliver_at):
            reason = too_late(half.delay_ms, half.deliver_at, now_ms(), self._max_delay)
            problem = Problem("unfit", reason, {"field": reason.partition(":")[0]}) if reason else None
        return problem or half

    def _admit(self, half: Half, new: _New, groups: Groups) -> Answer | tuple[_Entry, int]:
        """The answer if known; else the in-flight message with this name, and the fingerprint of ``half``."""
        name, content = name_of(half.producer_group, half.transaction_id), fingerprint(half)
        known = self._cache.named(name)
        if known is not None:
            same = judge_half(known, content) is Verdict.REPEATED
            return _stored(half.transaction_id, known) if same else _other_content(known)
        entry = self._on_the_way.get(name)
        if entry is None:
            size = _size(half)
            refusal = self.commits.refusal(len(new.entries) + 1, new.size + size, groups)
            if refusal is not None:
                return refusal
            entry = self._on_the_way[name] = _Entry(half, name, content)
            new.entries.append(entry)
            new.size += size
        return entry, content

    def prepare(self, batch: Sequence[_Entry]) -> tuple[list[Half], int, int]:
        """Assign the offsets. Returns the messages, their queue and first offset."""
        queue_id = self._cache.queues[self._turn % len(self._cache.queues)]
        self._turn += 1
        first = self._cache.next_offset(queue_id)
        for queue_offset, entry in enumerate(batch, start=first):
            entry.queue_id, entry.queue_offset = queue_id, queue_offset
        return [entry.half for entry in batch], queue_id, first

    def write(self, prepared: tuple[list[Half], int, int]) -> None:
        """Commit to `half`."""
        halves, queue_id, first = prepared
        with self._metrics.commit_seconds("half"):
            self._table.append(half_rows(halves, queue_id, first, now_ms()))
        self._metrics.committed("half", len(halves))

    def record(self, prepared: tuple[list[Half], int, int]) -> Record:
        """See group_commit.CommitTarget."""
        return half_record(*prepared)

    def settle(self, batch: Sequence[_Entry], prepared: object) -> None:  # noqa: ARG002 - as CommitTarget has it
        """Add them to the cache."""
        stored = steady_ms()
        self._cache.landed(
            CachedHalf(
                entry.queue_id,
                entry.queue_offset,
                entry.name,
                entry.fingerprint,
                entry.half.real_topic,
                entry.half.born_timestamp,
                stored,
                "COMMIT" if entry.half.committed else None,
            )
            for entry in batch
        )
        for entry in batch:
            del self._on_the_way[entry.name]
        self._health.worked()
        self._metrics.last_offset(batch[-1].queue_id, batch[-1].queue_offset)

    def failed(self, batch: Sequence[_Entry], error: Exception) -> None:
        """Drop them: the next commit assigns their offsets to others."""
        problem = self._health.failed(error)
        for entry in batch:
            entry.problem = problem
            del self._on_the_way[entry.name]


def _size(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size


async def _all_settled(admitted: Sequence[Answer | tuple[_Entry, int]]) -> list[Answer]:
    return [await _settled(*one) if isinstance(one, tuple) else one for one in admitted]


async def _settled(entry: _Entry, content: int) -> Answer:
    """The answer to a message with this content, once the in-flight one is committed."""
    # Not shielded: waiters are only cancelled when the process exits without waiting for requests.
    if entry.done is not None:
        await entry.done
    if entry.problem is not None:
        return entry.problem
    return _stored(entry.half.transaction_id, entry) if entry.fingerprint == content else _other_content(entry)


def _stored(transaction_id: str, first: CachedHalf | _Entry) -> Answer:
    return {"transaction_id": transaction_id, "queue_id": first.queue_id, "queue_offset": first.queue_offset}


def _other_content(first: CachedHalf | _Entry) -> Problem:
    place = {"queue_id": first.queue_id, "queue_offset": first.queue_offset}
    return Problem("contradiction", "the group has sent this transaction_id with another content", place)
