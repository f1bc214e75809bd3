"""Half messages in the gateway: deduplicated, batched, assigned their offsets, committed, answered."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.delay import too_late
from checkback.gateway.deduplication import (
    Verdict,
    fingerprint,
    fingerprints,
    joined_names,
    judge_half,
    name_of,
)
from checkback.gateway.group_commit import GroupCommit
from checkback.gateway.half_blocks import BlockRow, HalfBlock, Placed, block_size, landed_rows
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal_records import block_record, half_record
from checkback.gateway.landed_halves import CachedHalf
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.tables import half_rows

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.arrow_decoder import HalfColumns
    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication import DeduplicationCache
    from checkback.gateway.group_commit import Intake
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal import Record
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.tables import Appender
    from checkback.messages import Half
    from checkback.settings import Gateway

    #: an in-flight message, and the fingerprint of one that waits for it
    _Pending = tuple["_Entry | BlockRow", int]

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

    def __len__(self) -> int:
        return 1

    @property
    def transaction_id(self) -> str:
        """Its transaction id."""
        return self.half.transaction_id


class _Prepared(NamedTuple):
    """A commit: single messages at the queue's offsets from ``first`` on, and the blocks that follow them."""

    halves: list[Half]
    blocks: list[HalfBlock]
    queue_id: int
    first: int


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
        #: single messages by their name, blocks by the reservation of their names
        self._on_the_way: dict[str, _Entry] = {}
        self._blocks: dict[int, HalfBlock] = {}
        self._turn = 0
        self.commits: GroupCommit[_Entry | HalfBlock] = GroupCommit(
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

    def take_columns(self, columns: HalfColumns, groups: Groups) -> Awaitable[Placed | list[Answer]]:
        """The same for messages that came as columns; Placed if all of them are new and were committed."""
        admitted: dict[int, Answer | _Pending] = {**columns.problems}
        rows, numbers = self._fit_columns(columns, groups, admitted)
        names, prints = joined_names(rows["producer_group"], rows["transaction_id"]).to_pylist(), fingerprints(rows)
        again: dict[int, tuple[int, int]] = {}
        reservation = self._cache.reserve(names) if self._on_the_way.keys().isdisjoint(names) else None
        if reservation is None:
            new, again = self._new(names, prints, rows, numbers, admitted)
            rows, names = rows.take(pa.array(new)), [names[row] for row in new.tolist()]
            prints, numbers = prints[new], numbers[new]
        whole = columns.size if len(names) == len(columns.numbers) else rows.nbytes
        count, size, refusal = self._room(len(names), whole, rows, groups)
        if refusal is not None:
            if reservation is not None:
                self._cache.release(reservation, names)
                reservation = None
            admitted |= dict.fromkeys(numbers[count:].tolist(), refusal)
            rows, names, prints, numbers = rows.slice(0, count), names[:count], prints[:count], numbers[:count]
        if count:
            block = HalfBlock(rows, names, prints, size, self._reserved(names) if reservation is None else reservation)
            self._blocks[block.reservation] = block
            block.done = self.commits.submit([block], block.size, groups, count)
            if count == len(columns.transaction_ids):
                return _placed(block)
            of_rows = enumerate(zip(numbers.tolist(), prints.tolist(), strict=True))
            admitted |= {number: (BlockRow(block, row), content) for row, (number, content) in of_rows}
        for number, (row, content) in again.items():
            admitted[number] = (BlockRow(block, row), content) if row < count else _refused(refusal)
        return _all_settled([admitted[number] for number in range(len(columns.transaction_ids))])

    def _fit_columns(
        self, columns: HalfColumns, groups: Groups, refused: dict[int, Answer | _Pending]
    ) -> tuple[pa.Table, NDArray[np.int64]]:
        """The rows that fit, and their numbers; the problems of the others are added to ``refused``."""
        rows, numbers = columns.rows, columns.numbers
        problems: dict[int, Problem] = {}
        code = rows["producer_group"].combine_chunks().dictionary_encode()
        of_group = [self._refused(group, groups) for group in code.dictionary.to_pylist()]
        if any(of_group):
            found = enumerate(map(of_group.__getitem__, code.indices.to_pylist()))
            problems |= {row: problem for row, problem in found if problem is not None}
        for name in ("delay_ms", "deliver_at"):
            if rows[name].null_count == len(rows):
                continue
            for row in np.flatnonzero(np.asarray(rows[name].is_valid())).tolist():
                delay_ms, at = rows["delay_ms"][row].as_py(), rows["deliver_at"].cast(pa.int64())[row].as_py()
                problem = self._too_late(delay_ms, None if at is None else at // 1000)
                if problem is not None:
                    problems.setdefault(row, problem)
        if not problems:
            return rows, numbers
        refused |= {int(numbers[row]): problem for row, problem in problems.items()}
        fit = np.ones(len(numbers), np.bool_)
        fit[list(problems)] = False
        return rows.filter(pa.array(fit)), numbers[fit]

    def _new(
        self,
        names: list[str],
        prints: NDArray[np.int64],
        rows: pa.Table,
        numbers: NDArray[np.int64],
        admitted: dict[int, Answer | _Pending],
    ) -> tuple[NDArray[np.int64], dict[int, tuple[int, int]]]:
        """Which rows are new, and for each that repeats one of them, by number: which new one, and its fingerprint.

        The others' answers, or in-flight messages, are added to ``admitted``.
        """
        new: list[int] = []
        first: dict[str, int] = {}
        again: dict[int, tuple[int, int]] = {}
        every = zip(names, prints.tolist(), rows["transaction_id"].to_pylist(), numbers.tolist(), strict=True)
        for row, (name, content, transaction_id, number) in enumerate(every):
            if name in first:
                again[number] = first[name], content
                continue
            known = self._known(name, content, transaction_id)
            if known is None:
                first[name] = len(new)
                new.append(row)
            else:
                admitted[number] = known
        return np.array(new, np.int64), again

    def _reserved(self, names: list[str]) -> int:
        reservation = self._cache.reserve(names)
        if reservation is None:
            raise AssertionError("names that are new were not")
        return reservation

    def _room(self, count: int, size: int, rows: pa.Table, groups: Groups) -> tuple[int, int, Problem | None]:
        """How many of the messages can be accepted now, their memory in bytes, and why not more."""
        refusal = None
        while count:
            problem = self.commits.refusal(count, block_size(count, size), groups)
            if problem is None:
                break
            refusal, count = problem, count // 2
            size = rows.slice(0, count).nbytes
        return count, block_size(count, size), refusal

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

    def _admit(self, half: Half, new: _New, groups: Groups) -> Answer | _Pending:
        """The answer if known; else the in-flight message with this name, and the fingerprint of ``half``."""
        name, content = name_of(half.producer_group, half.transaction_id), fingerprint(half)
        known = self._known(name, content, half.transaction_id)
        if known is not None:
            return known
        size = _size(half)
        refusal = self.commits.refusal(len(new.entries) + 1, new.size + size, groups)
        if refusal is not None:
            return refusal
        entry = self._on_the_way[name] = _Entry(half, name, content)
        new.entries.append(entry)
        new.size += size
        return entry, content

    def _known(self, name: str, content: int, transaction_id: str) -> Answer | _Pending | None:
        """The answer to a message that is cached, or the in-flight one with its name; None = it is new."""
        known = self._cache.named(name)
        if known is not None:
            same = judge_half(known, content) is Verdict.REPEATED
            return _stored(transaction_id, known) if same else _other_content(known)
        entry = self._on_the_way.get(name)
        if entry is not None:
            return entry, content
        under_way = self._cache.under_way(name)
        return None if under_way is None else (BlockRow(self._blocks[under_way[0]], under_way[1]), content)

    def prepare(self, batch: Sequence[_Entry | HalfBlock]) -> _Prepared:
        """Assign the offsets: first those of single messages, which are one record of the journal."""
        queue_id = self._cache.queues[self._turn % len(self._cache.queues)]
        self._turn += 1
        first = self._cache.next_offset(queue_id)
        singles = [one for one in batch if isinstance(one, _Entry)]
        blocks = [one for one in batch if isinstance(one, HalfBlock)]
        offset = first
        ordered: list[_Entry | HalfBlock] = [*singles, *blocks]
        for one in ordered:
            one.queue_id, one.queue_offset = queue_id, offset
            offset += len(one)
        return _Prepared([entry.half for entry in singles], blocks, queue_id, first)

    def write(self, prepared: _Prepared) -> None:
        """Commit to `half`."""
        halves, blocks, queue_id, first = prepared
        stored = now_ms()
        parts = [landed_rows(block.rows, queue_id, block.queue_offset, stored) for block in blocks]
        if halves:
            parts.append(half_rows(halves, queue_id, first, stored))
        rows = pa.concat_tables(parts)
        with self._metrics.commit_seconds("half"):
            self._table.append(rows)
        self._metrics.committed("half", len(rows))

    def records(self, prepared: _Prepared) -> list[Record]:
        """See group_commit.CommitTarget."""
        singles = [half_record(prepared.halves, prepared.queue_id, prepared.first)] if prepared.halves else []
        return singles + [block_record(block) for block in prepared.blocks]

    def settle(self, batch: Sequence[_Entry | HalfBlock], prepared: _Prepared) -> None:
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
            if isinstance(entry, _Entry)
        )
        for block in prepared.blocks:
            self._cache.landed_together(block.entries(stored))
            del self._blocks[block.reservation]
        self._forget(batch)
        self._health.worked()
        self._metrics.last_offset(prepared.queue_id, prepared.first + sum(map(len, batch)) - 1)

    def failed(self, batch: Sequence[_Entry | HalfBlock], error: Exception) -> None:
        """Drop them: the next commit assigns their offsets to others."""
        problem = self._health.failed(error)
        for entry in batch:
            entry.problem = problem
            if isinstance(entry, HalfBlock):
                self._cache.release(entry.reservation, entry.names)
                del self._blocks[entry.reservation]
        self._forget(batch)

    def _forget(self, batch: Sequence[_Entry | HalfBlock]) -> None:
        """The single messages are not on the way any more."""
        for entry in batch:
            if isinstance(entry, _Entry):
                del self._on_the_way[entry.name]


def _size(half: Half) -> int:
    """The approximate memory a message needs: its body is not always the largest part."""
    size = _OVERHEAD + len(half.body) + len(half.transaction_id) + len(half.tags or "") + len(half.keys or "")
    if half.properties:
        size += _PROPERTY * len(half.properties) + sum(map(len, half.properties))
        size += sum(map(len, half.properties.values()))
    return size


async def _placed(block: HalfBlock) -> Placed | list[Answer]:
    """The answer to the messages of a block, once it is committed."""
    if block.done is not None:
        await block.done
    return Placed(block.queue_id, block.queue_offset) if block.problem is None else [block.problem] * len(block)


def _refused(refusal: Problem | None) -> Problem:
    return refusal or Problem("queue_full", "send it again")


async def _all_settled(admitted: Sequence[Answer | _Pending]) -> list[Answer]:
    return [await _settled(*one) if isinstance(one, tuple) else one for one in admitted]


async def _settled(entry: _Entry | BlockRow, content: int) -> Answer:
    """The answer to a message with this content, once the in-flight one is committed."""
    # Not shielded: waiters are only cancelled when the process exits without waiting for requests.
    if entry.done is not None:
        await entry.done
    if entry.problem is not None:
        return entry.problem
    return _stored(entry.transaction_id, entry) if entry.fingerprint == content else _other_content(entry)


def _stored(transaction_id: str, first: CachedHalf | _Entry | BlockRow) -> Answer:
    return {"transaction_id": transaction_id, "queue_id": first.queue_id, "queue_offset": first.queue_offset}


def _other_content(first: CachedHalf | _Entry | BlockRow) -> Problem:
    place = {"queue_id": first.queue_id, "queue_offset": first.queue_offset}
    return Problem("contradiction", "the group has sent this transaction_id with another content", place)
