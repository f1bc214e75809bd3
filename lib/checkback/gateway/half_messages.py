"""Half messages in the gateway: deduplicated, batched, assigned their offsets, committed, answered."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from itertools import accumulate
from sys import intern
from typing import TYPE_CHECKING, NamedTuple

from checkback.gateway.appender import half_rows
from checkback.gateway.deduplication.remembered_half import RememberedHalf, fingerprint, name_of
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal.group_commit import GroupCommit
from checkback.gateway.journal.record import half_record
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.received_ops import contradiction
from checkback.messages.delay import too_late

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterator, Sequence

    from checkback.gateway.appender import Appender
    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal.group_commit import Intake
    from checkback.gateway.journal.record import Record
    from checkback.gateway.metrics import Metrics
    from checkback.messages.half import Half
    from checkback.settings import Gateway

#: states in which the message is never published
_IN_VAIN = ("ROLLBACK", "DISCARD", "CANCEL")
#: memory of messages that are one record of the journal: other threads do not run while one is decoded
_RECORD = 8 << 20
#: Approximate memory overhead of a message besides its texts and body, and of each property.
_OVERHEAD, _PROPERTY = 1024, 256


@dataclass(eq=False)
class ReceivedHalves:
    """In-flight half messages of one request; their offsets are assigned, consecutively, when their commit begins.

    ``names``, ``fingerprints``: of each; ``size``: approximate memory in bytes; ``done``: when they are committed, or
    failed with ``problem``.
    """

    queue_id: int
    halves: list[Half]
    names: list[str]
    fingerprints: list[int]
    size: int = 0
    done: asyncio.Future[None] | None = field(default=None, init=False)
    queue_offset: int = field(default=-1, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.halves)

    def keep(self, count: int) -> None:
        """Drop all but the first ``count``."""
        for column in (self.halves, self.names, self.fingerprints):
            del column[count:]

    @cached_property
    def rows(self) -> dict[str, int]:
        """By name, the number of the half message here."""
        return {name: row for row, name in enumerate(self.names)}

    def remembered(self, stored: int) -> list[RememberedHalf]:
        """As the cache has them once they have landed; ``stored``: steady ms."""
        offsets = range(self.queue_offset, self.queue_offset + len(self))
        every = zip(offsets, self.names, self.fingerprints, self.halves, strict=True)
        return [
            RememberedHalf(
                # each message has its own text of the topic
                *(self.queue_id, offset, name, content, intern(half.real_topic), half.born_timestamp, stored),
                "COMMIT" if half.committed else None,
            )
            for offset, name, content, half in every
        ]


class _InFlight(NamedTuple):
    """The half message of a block that a message is, or repeats; ``content``: fingerprint of the message."""

    block: ReceivedHalves
    row: int
    content: int


class _StoredHalves(NamedTuple):
    """Of a commit, what is for one queue: ``halves`` of the blocks, at the queue's offsets from ``first`` on."""

    halves: list[Half]
    blocks: Sequence[ReceivedHalves]
    queue_id: int
    first: int


class HalfMessageWriter:
    """Writes half messages to the table: those of the same queue of their topic to the same half queue.

    A batch of `reconcile` is in the order of half queue and offset: in two half queues they would not keep theirs.
    A file holds a single range of offsets, which makes data skipping effective.
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
        self.commits: GroupCommit[ReceivedHalves] = GroupCommit(self, gateway.max_waiting, intake)

    def take(self, messages: Sequence[Half | Problem], groups: Groups) -> Awaitable[list[Answer]]:
        """The answer to each message, once it is committed.

        The awaitable holds references only to the messages that are to be committed, which are counted.
        """
        queues = self._cache.queues
        if len(queues) == 1 and messages:
            return self._take(messages, groups, queues[0])
        parts: dict[int, list[int]] = {}
        for number, half in enumerate(messages):
            at = 0 if isinstance(half, Problem) else half.real_queue_id % len(queues)
            parts.setdefault(at, []).append(number)
        return _in_order(
            [(part, self._take([messages[n] for n in part], groups, queues[at])) for at, part in sorted(parts.items())]
        )

    def _take(self, messages: Sequence[Half | Problem], groups: Groups, queue_id: int) -> Awaitable[list[Answer]]:
        fit = [self._fit(half, groups) for half in messages]
        block = self._whole_block([half for half in fit if not isinstance(half, Problem)], len(fit), groups, queue_id)
        return _all_settled(self._decided(fit, groups, queue_id)) if block is None else _all_stored(block)

    def _whole_block(self, halves: list[Half], count: int, groups: Groups, queue_id: int) -> ReceivedHalves | None:
        """The messages, submitted together, if all ``count`` of the request are new and there is room; else None."""
        size = sum(map(_size, halves))
        if len(halves) < count or self.commits.refusal(count, size, groups) is not None:
            return None
        names = [name_of(half.producer_group, half.transaction_id) for half in halves]
        block = ReceivedHalves(queue_id, halves, names, list(map(fingerprint, halves)), size)
        return block if self._submit(block, groups) else None

    def _decided(self, messages: Sequence[Half | Problem], groups: Groups, queue_id: int) -> list[Answer | _InFlight]:
        """The answer to each message, or the in-flight one that it is or repeats. Those that are new are submitted."""
        block = ReceivedHalves(queue_id, [], [], [])
        rows: dict[str, int] = {}
        decided = [one if isinstance(one, Problem) else self._decide(one, block, rows) for one in messages]
        refusal = self._cut(block, groups)
        if block.halves and not self._submit(block, groups):
            raise AssertionError("names that are new were not")
        if refusal is None:
            return decided
        kept = len(block)
        return [
            refusal if isinstance(one, _InFlight) and one.block is block and one.row >= kept else one for one in decided
        ]

    def _decide(self, half: Half, block: ReceivedHalves, rows: dict[str, int]) -> Answer | _InFlight:
        """Add a new message to the block. ``rows``: of the block, by name."""
        name, content = name_of(half.producer_group, half.transaction_id), fingerprint(half)
        if name in rows:
            return _InFlight(block, rows[name], content)
        known = self._cache.named(name)
        if known is not None:
            place = known.queue_id, known.queue_offset
            if known.fingerprint and known.fingerprint != content:
                return _other_content(*place)
            if known.state in _IN_VAIN:
                return contradiction(known.state, known.reason, known.decided_at)
            return _stored(half.transaction_id, *place)
        in_flight: ReceivedHalves | None = self._cache.in_flight(name)
        if in_flight is not None:
            return _InFlight(in_flight, in_flight.rows[name], content)
        rows[name] = len(block)
        block.halves.append(half)
        block.names.append(name)
        block.fingerprints.append(content)
        return _InFlight(block, rows[name], content)

    def _cut(self, block: ReceivedHalves, groups: Groups) -> Problem | None:
        """Drop the messages for which there is no room now; why."""
        sizes = list(accumulate(map(_size, block.halves), initial=0))

        def refusal(count: int) -> Problem | None:
            return self.commits.refusal(count, sizes[count], groups) if count else None

        refused = refusal(len(block))
        if refused is not None:
            block.keep(bisect_left(range(1, len(block)), 1, key=lambda count: refusal(count) is not None))
        block.size = sizes[len(block)]
        return refused

    def _submit(self, block: ReceivedHalves, groups: Groups) -> bool:
        """False, and nothing is submitted, if not all of the names are new."""
        if not self._cache.reserve(block.names, block):
            return False
        block.done = self.commits.submit([block], block.size, groups, len(block))
        return True

    def _fit(self, half: Half | Problem, groups: Groups) -> Half | Problem:
        if isinstance(half, Problem):
            return half
        problem = self._refused(half.producer_group, groups)
        if problem is None and (half.delay_ms or half.deliver_at):
            problem = self._too_late(half.delay_ms, half.deliver_at)
        return problem or half

    def _refused(self, group: str, groups: Groups) -> Problem | None:
        problem = self._tokens.refused(group, groups)
        if problem is None and self._rejecting:
            return Problem("transactions_rejected", "gateway.reject_transactions is on: only ops are taken")
        return problem

    def _too_late(self, delay_ms: int | None, deliver_at: int | None) -> Problem | None:
        reason = too_late(delay_ms, deliver_at, now_ms(), self._max_delay)
        return Problem("unfit", reason, {"field": reason.partition(":")[0]}) if reason else None

    def prepare(self, batch: Sequence[ReceivedHalves]) -> list[_StoredHalves]:
        """Assign the offsets."""
        of_queues: dict[int, list[ReceivedHalves]] = {}
        for block in batch:
            of_queues.setdefault(block.queue_id, []).append(block)
        return [self._assigned(queue_id, blocks) for queue_id, blocks in of_queues.items()]

    def _assigned(self, queue_id: int, blocks: Sequence[ReceivedHalves]) -> _StoredHalves:
        offset = first = self._cache.next_offset(queue_id)
        for block in blocks:
            block.queue_offset = offset
            offset += len(block)
        return _StoredHalves([half for block in blocks for half in block.halves], blocks, queue_id, first)

    def write(self, prepared: Sequence[_StoredHalves]) -> None:
        """Commit to `half`, a file for each queue."""
        stored = now_ms()
        files = [half_rows(one.halves, one.queue_id, one.first, stored) for one in prepared]
        with self._metrics.commit("half", sum(map(len, files))):
            self._table.append(*files)

    def records(self, prepared: Sequence[_StoredHalves]) -> list[Record]:
        """See group_commit.CommitTarget."""
        return [record for one in prepared for record in _records(one)]

    def settle(self, batch: Sequence[ReceivedHalves], prepared: Sequence[_StoredHalves]) -> None:
        """Add them to the cache."""
        stored = steady_ms()
        self._cache.stored([half for block in batch for half in block.remembered(stored)])
        self._health.worked()
        for one in prepared:
            self._metrics.last_offset(one.queue_id, one.first + len(one.halves) - 1)

    def failed(self, batch: Sequence[ReceivedHalves], error: Exception) -> None:
        """Drop them: the next commit assigns their offsets to others."""
        problem = self._health.failed(error)
        for block in batch:
            block.problem = problem
            self._cache.release(block.names)


def _records(prepared: _StoredHalves) -> Iterator[Record]:
    halves: list[Half] = []
    size, left = 0, len(prepared.blocks)
    for block in prepared.blocks:
        halves += block.halves
        size, left = size + block.size, left - 1
        if size > _RECORD or not left:
            yield half_record(halves, prepared.queue_id, block.queue_offset + len(block) - len(halves))
            halves, size = [], 0


async def _in_order(parts: Sequence[tuple[Sequence[int], Awaitable[list[Answer]]]]) -> list[Answer]:
    """The answers to all messages of a request; ``parts``: their numbers, and the answers to them."""
    answers: dict[int, Answer] = {}
    for numbers, part in parts:
        answers.update(zip(numbers, await part, strict=True))
    return [answers[number] for number in range(len(answers))]


async def _all_stored(block: ReceivedHalves) -> list[Answer]:
    """The answer to all messages of a request, once they are committed."""
    await _done(block)
    if block.problem is not None:
        return [block.problem] * len(block)
    queue_id, first = block.queue_id, block.queue_offset
    return [_stored(half.transaction_id, queue_id, first + row) for row, half in enumerate(block.halves)]


async def _all_settled(decided: list[Answer | _InFlight]) -> list[Answer]:
    """The answers, once the in-flight messages are committed."""
    answers: list[Answer] = []
    for one in decided:
        if not isinstance(one, _InFlight):
            answers.append(one)
            continue
        block, row, content = one
        await _done(block)
        place = block.queue_id, block.queue_offset + row
        if block.problem is not None:
            answers.append(block.problem)
        elif block.fingerprints[row] == content:
            answers.append(_stored(block.halves[row].transaction_id, *place))
        else:
            answers.append(_other_content(*place))
    return answers


async def _done(block: ReceivedHalves) -> None:
    # Not shielded: waiters are only cancelled when the process exits without waiting for requests.
    if block.done is not None:
        await block.done


def _stored(transaction_id: str, queue_id: int, queue_offset: int) -> Answer:
    return {"transaction_id": transaction_id, "queue_id": queue_id, "queue_offset": queue_offset}


def is_other_content(answer: Answer) -> bool:
    """Was the message refused because the group has sent this transaction_id with another content?"""
    return isinstance(answer, Problem) and answer.code == "contradiction" and "queue_offset" in answer.more


def _other_content(queue_id: int, queue_offset: int) -> Problem:
    place = {"queue_id": queue_id, "queue_offset": queue_offset}
    return Problem("contradiction", "the group has sent this transaction_id with another content", place)


def _size(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size
