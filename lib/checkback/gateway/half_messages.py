"""Half messages in the gateway: deduplicated, batched, assigned their offsets, committed, answered."""

from __future__ import annotations

from bisect import bisect_left
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.gateway.deduplication.fingerprints import fingerprint, fingerprints
from checkback.gateway.deduplication.transaction_names import joined_names, name_of
from checkback.gateway.deduplication.verdicts import Verdict, judge_half
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal.group_commit import GroupCommit
from checkback.gateway.journal.record_codec import block_record, half_record
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.requests.half_blocks import (
    ColumnBlock,
    HalfBlock,
    MessageBlock,
    Placed,
    landed_rows,
    run_of_columns,
    run_of_messages,
)
from checkback.gateway.requests.half_requests import SentColumns, SentMessages
from checkback.gateway.tables import half_rows
from checkback.messages.delay import too_late

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal.group_commit import Intake
    from checkback.gateway.journal.record import Record
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.requests.arrow_decoder import HalfColumns
    from checkback.gateway.tables import Appender
    from checkback.messages.half import Half
    from checkback.settings import Gateway

    #: an in-flight message, and the fingerprint of one that waits for it
    _Pending = tuple["_InFlight", int]

#: memory of messages that are one record of the journal: other threads do not run while one is decoded
_RECORD = 8 << 20


class _InFlight(NamedTuple):
    """One half message of a block."""

    block: HalfBlock
    row: int


class _Prepared(NamedTuple):
    """A commit: ``halves`` of the blocks of messages at the queue's offsets from ``first`` on, then the columns."""

    halves: list[Half]
    messages: list[MessageBlock]
    columns: list[ColumnBlock]
    queue_id: int
    first: int


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
        #: by the reservation of their names
        self._blocks: dict[int, HalfBlock] = {}
        self._turn = 0
        self.commits: GroupCommit[HalfBlock] = GroupCommit(
            "half", self, gateway.gather.total_seconds(), gateway.max_waiting, intake
        )

    def take(self, messages: Sequence[Half | Problem], groups: Groups) -> Awaitable[list[Answer]]:
        """The answer to each message, once it is committed.

        The awaitable holds references only to the messages that are to be committed, which are counted.
        """
        fit = [self._fit(half, groups) for half in messages]
        admitted: dict[int, Answer | _Pending] = {n: one for n, one in enumerate(fit) if isinstance(one, Problem)}
        numbers = [number for number in range(len(fit)) if number not in admitted] if admitted else range(len(fit))
        halves = [half for half in fit if not isinstance(half, Problem)]
        names = [name_of(half.producer_group, half.transaction_id) for half in halves]
        block = self._begin(SentMessages(halves), names, list(map(fingerprint, halves)), numbers, admitted, groups)
        return _all_stored(block) if block is not None else _all_settled(admitted)

    def take_columns(self, columns: HalfColumns, groups: Groups) -> Awaitable[Placed | list[Answer]]:
        """The same for messages that came as columns; Placed if all of them are new and were committed."""
        admitted: dict[int, Answer | _Pending] = {**columns.problems}
        rows, numbers = self._fit_columns(columns, groups, admitted)
        names = joined_names(rows["producer_group"], rows["transaction_id"]).to_pylist()
        prints = fingerprints(rows).tolist()
        size = columns.size if len(rows) == len(columns.numbers) else rows.nbytes
        block = self._begin(SentColumns(rows, size), names, prints, numbers.tolist(), admitted, groups)
        return _placed(block) if block is not None else _all_settled(admitted)

    def _begin(
        self,
        sent: SentMessages | SentColumns,
        names: list[str],
        prints: list[int],
        numbers: Sequence[int],
        admitted: dict[int, Answer | _Pending],
        groups: Groups,
    ) -> HalfBlock | None:
        """Have those of the messages committed that are new, together.

        ``numbers``: of each, in the request. The block, if it has all of the request; else each one's answer, or the
        in-flight message that it is or repeats, is added to ``admitted``.
        """
        again: dict[int, tuple[int, int]] = {}
        whole = not admitted
        reservation = self._cache.reserve(names)
        if reservation is None:
            new, again = self._new(names, prints, sent.transaction_ids, numbers, admitted)
            whole = whole and len(new) == len(names)
            sent, names, prints = sent.chosen(new), [names[row] for row in new], [prints[row] for row in new]
            numbers = [numbers[row] for row in new]
        count, refusal = self._room(len(names), sent, groups)
        if refusal is not None:
            if reservation is not None:
                self._cache.release(reservation, names)
                reservation = None
            whole = False
            admitted |= dict.fromkeys(numbers[count:], refusal)
            names, prints, numbers = names[:count], prints[:count], numbers[:count]
        block: HalfBlock | None = None
        if count:
            block = sent.block(names, prints, self._reserved(names) if reservation is None else reservation)
            self._blocks[block.reservation] = block
            block.done = self.commits.submit([block], block.size, groups, count)
            if whole:
                return block
            of_rows = enumerate(zip(numbers, prints, strict=True))
            admitted |= {number: (_InFlight(block, row), content) for row, (number, content) in of_rows}
        for number, (row, content) in again.items():
            admitted[number] = (
                (_InFlight(block, row), content) if block is not None and row < count else _refused(refusal)
            )
        return None

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
        names: Sequence[str],
        prints: Sequence[int],
        transaction_ids: Sequence[str],
        numbers: Sequence[int],
        admitted: dict[int, Answer | _Pending],
    ) -> tuple[list[int], dict[int, tuple[int, int]]]:
        """Which are new, and for each that repeats one of them, by number: which new one, and its fingerprint.

        The others' answers, or in-flight messages, are added to ``admitted``.
        """
        new: list[int] = []
        first: dict[str, int] = {}
        again: dict[int, tuple[int, int]] = {}
        every = zip(names, prints, transaction_ids, numbers, strict=True)
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
        return new, again

    def _reserved(self, names: list[str]) -> int:
        reservation = self._cache.reserve(names)
        if reservation is None:
            raise AssertionError("names that are new were not")
        return reservation

    def _room(self, count: int, sent: SentMessages | SentColumns, groups: Groups) -> tuple[int, Problem | None]:
        """How many of the messages can be accepted now, and why not more."""
        refusal = self.commits.refusal(count, sent.size(count), groups) if count else None
        if refusal is None:
            return count, None
        refused = range(1, count)
        return bisect_left(refused, 1, key=lambda n: self.commits.refusal(n, sent.size(n), groups) is not None), refusal

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

    def _known(self, name: str, content: int, transaction_id: str) -> Answer | _Pending | None:
        """The answer to a message that is cached, or the in-flight one with its name; None = it is new."""
        known = self._cache.named(name)
        if known is not None:
            same = judge_half(known, content) is Verdict.REPEATED
            place = known.queue_id, known.queue_offset
            return _stored(transaction_id, *place) if same else _other_content(*place)
        under_way = self._cache.under_way(name)
        return None if under_way is None else (_InFlight(self._blocks[under_way[0]], under_way[1]), content)

    def prepare(self, batch: Sequence[HalfBlock]) -> _Prepared:
        """Assign the offsets: first those of messages, which are one record of the journal."""
        queue_id = self._cache.queues[self._turn % len(self._cache.queues)]
        self._turn += 1
        first = self._cache.next_offset(queue_id)
        messages = [one for one in batch if isinstance(one, MessageBlock)]
        columns = [one for one in batch if isinstance(one, ColumnBlock)]
        offset = first
        for one in (*messages, *columns):
            one.queue_id, one.queue_offset = queue_id, offset
            offset += len(one)
        return _Prepared([half for one in messages for half in one.halves], messages, columns, queue_id, first)

    def write(self, prepared: _Prepared) -> None:
        """Commit to `half`."""
        stored, queue_id = now_ms(), prepared.queue_id
        parts = [landed_rows(block.rows, queue_id, block.queue_offset, stored) for block in prepared.columns]
        if prepared.halves:
            parts.append(half_rows(prepared.halves, queue_id, prepared.first, stored))
        rows = pa.concat_tables(parts)
        with self._metrics.commit("half", len(rows)):
            self._table.append(rows)

    def records(self, prepared: _Prepared) -> list[Record]:
        """See group_commit.CommitTarget."""
        halves: list[Half] = []
        size, left = 0, len(prepared.messages)
        records: list[Record] = []
        for block in prepared.messages:
            halves += block.halves
            size, left = size + block.size, left - 1
            if size > _RECORD or not left:
                first = block.queue_offset + len(block) - len(halves)
                records.append(half_record(halves, prepared.queue_id, first))
                halves, size = [], 0
        return records + [block_record(block) for block in prepared.columns]

    def settle(self, batch: Sequence[HalfBlock], prepared: _Prepared) -> None:
        """Add them to the cache."""
        stored = steady_ms()
        if prepared.messages:
            self._cache.landed(run_of_messages(prepared.messages, prepared.halves, stored))
        for block in prepared.columns:
            self._cache.landed(run_of_columns(block, stored))
        for one in batch:
            del self._blocks[one.reservation]
        self._health.worked()
        self._metrics.last_offset(prepared.queue_id, prepared.first + sum(map(len, batch)) - 1)

    def failed(self, batch: Sequence[HalfBlock], error: Exception) -> None:
        """Drop them: the next commit assigns their offsets to others."""
        problem = self._health.failed(error)
        for block in batch:
            block.problem = problem
            self._cache.release(block.reservation, block.names)
            del self._blocks[block.reservation]


async def _placed(block: HalfBlock) -> Placed | list[Answer]:
    """The answer to all messages of a request, once they are committed."""
    await _done(block)
    return Placed(block.queue_id, block.queue_offset) if block.problem is None else [block.problem] * len(block)


async def _all_stored(block: HalfBlock) -> list[Answer]:
    """The same, one by one."""
    await _done(block)
    if block.problem is not None:
        return [block.problem] * len(block)
    queue_id, first = block.queue_id, block.queue_offset
    return [_stored(block.transaction_id(row), queue_id, first + row) for row in range(len(block))]


async def _all_settled(admitted: Mapping[int, Answer | _Pending]) -> list[Answer]:
    """The answers by number, once the in-flight messages are committed."""
    answers: list[Answer] = []
    for number in range(len(admitted)):
        one = admitted[number]
        if isinstance(one, tuple):
            (block, row), content = one
            await _done(block)
            place = block.queue_id, block.queue_offset + row
            if block.problem is not None:
                one = block.problem
            elif block.fingerprints[row] == content:
                one = _stored(block.transaction_id(row), *place)
            else:
                one = _other_content(*place)
        answers.append(one)
    return answers


async def _done(block: HalfBlock) -> None:
    # Not shielded: waiters are only cancelled when the process exits without waiting for requests.
    if block.done is not None:
        await block.done


def _refused(refusal: Problem | None) -> Problem:
    return refusal or Problem("queue_full", "send it again")


def _stored(transaction_id: str, queue_id: int, queue_offset: int) -> Answer:
    return {"transaction_id": transaction_id, "queue_id": queue_id, "queue_offset": queue_offset}


def _other_content(queue_id: int, queue_offset: int) -> Problem:
    place = {"queue_id": queue_id, "queue_offset": queue_offset}
    return Problem("contradiction", "the group has sent this transaction_id with another content", place)
