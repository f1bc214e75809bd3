"""Ops in the gateway: checked against the half message that they name, batched, committed, answered."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from checkback.gateway.appender import op_rows
from checkback.gateway.deduplication.remembered_half import name_of
from checkback.gateway.half_lookups import LookedUp, OlderHalves
from checkback.gateway.health import now_ms, steady_ms
from checkback.gateway.journal.group_commit import GroupCommit
from checkback.gateway.journal.record import op_record
from checkback.gateway.problems import Answer, Problem
from checkback.gateway.received_ops import (
    ReceivedOp,
    ReceivedOps,
    Verdict,
    contradiction,
    ended,
    firsts_of,
    judge_op,
    judged,
)
from checkback.gateway.unverified_ops import OpKey

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from concurrent.futures import ThreadPoolExecutor

    from checkback.gateway.appender import Appender
    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.deduplication.cache import DeduplicationCache
    from checkback.gateway.deduplication.history import DeduplicationHistory, Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.health import HealthState
    from checkback.gateway.journal.group_commit import Intake
    from checkback.gateway.journal.record import Record
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.unverified_ops import UnverifiedOps
    from checkback.messages.op import RemarkedOp
    from checkback.settings import Gateway

#: Approximate memory of an op in bytes.
_SIZE = 1024


class _StoredOps(NamedTuple):
    """A commit: ``ops``, of single ones and then of blocks.

    ``places``: of the half messages of single ops; ``firsts``: by queue, the first offset of those of blocks of ops.
    """

    ops: list[RemarkedOp]
    places: list[Place]
    firsts: dict[int, int]


class OpWriter:
    """Writes ops to the table."""

    def __init__(
        self,
        gateway: Gateway,
        tokens: BearerTokens,
        cache: DeduplicationCache,
        table: Appender,
        metrics: Metrics,
        health: HealthState,
        history: DeduplicationHistory,
        thread: ThreadPoolExecutor,
        unverified: UnverifiedOps,
        intake: Intake | None = None,
    ) -> None:
        """``history``: used in ``thread`` only; ``intake``: of the journal, if there is one, as in `GroupCommit`."""
        self._journaled = intake is not None
        self._tokens = tokens
        self._cache = cache
        self._table = table
        self._metrics = metrics
        self._health = health
        self._older = OlderHalves(thread, history, cache, unverified, health, gateway.max_waiting)
        self._unverified = unverified
        self._in_flight: dict[Place, ReceivedOp | ReceivedOps] = {}
        #: Of other gateways' queues, whose half messages nobody knows: not by place, which anybody may name.
        self._unverified_in_flight: dict[OpKey, ReceivedOp] = {}
        #: Blocks keep the half messages from their first on in the cache: not more than half of it.
        self._recent = gateway.dedup_max // (2 * len(gateway.queues))
        self.commits: GroupCommit[ReceivedOp | ReceivedOps] = GroupCommit(self, gateway.max_waiting, intake)

    async def take(self, messages: Sequence[RemarkedOp | Problem], groups: Groups) -> list[Answer]:
        """The answer to each op, once it is committed. Of several for one half message the first stands."""
        block = self._block(messages, groups)
        if block is not None and block.done is not None:
            await block.done
            return [block.problem or ended(op, repeated=False) for op, _ in block.ops]
        fit = [self._fit(op, groups) for op in messages]
        answers: dict[int, Answer] = {number: one for number, one in enumerate(fit) if isinstance(one, Problem)}
        left = {number: one for number, one in enumerate(fit) if not isinstance(one, Problem)}
        while left:
            remembered, recalled = await self._known(left.values(), groups)
            new: list[ReceivedOp] = []
            admitted = {number: self._admit(entry, remembered, recalled, new, groups) for number, entry in left.items()}
            if new:
                done = self.commits.submit(new, _SIZE * len(new), groups)
                for entry in new:
                    entry.done = done
            behind = {}
            for number, one in admitted.items():
                if not isinstance(one, (ReceivedOp, ReceivedOps)):
                    answers[number] = one
                    continue
                if one.done is not None:
                    await one.done
                if one.problem is not None:
                    answers[number] = one.problem
                elif one is left[number]:
                    answers[number] = left[number].refused or ended(left[number].op, repeated=False)
                else:
                    behind[number] = left[number]
            # They waited for another op of the same half message, which is committed by now.
            left = behind
        return [answers[number] for number in range(len(messages))]

    def _block(self, messages: Sequence[RemarkedOp | Problem], groups: Groups) -> ReceivedOps | None:
        """The ops, submitted as a block, if each is the first of another recent half message; else None."""
        ops = [one for one in messages if not isinstance(one, Problem)]
        if len(ops) < len(messages):
            return None
        if any(self._tokens.refused(group, groups) for group in {op.producer_group for op, _ in ops}):
            return None
        places = [(op.queue_id, op.queue_offset) for op, _ in ops]
        in_flight = self._in_flight
        if len(set(places)) < len(places) or not in_flight.keys().isdisjoint(places):
            return None
        names = [name_of(op.producer_group, op.transaction_id) for op, _ in ops if op.transaction_id is not None]
        halves = self._cache.pending(places, names) if len(names) == len(ops) else None
        if halves is None:
            return None
        block = ReceivedOps(ops, places, halves, firsts_of(places), _SIZE * len(ops))
        if not self._fits(block, groups):
            return None
        in_flight.update(dict.fromkeys(places, block))
        block.done = self.commits.submit([block], block.size, groups, len(block))
        return block

    def _fits(self, block: ReceivedOps, groups: Groups) -> bool:
        """Are its half messages recent, and is there room for it?"""
        next_offset = self._cache.next_offset
        if any(first < next_offset(queue_id) - self._recent for queue_id, first in block.firsts.items()):
            return False
        return self.commits.refusal(len(block), block.size, groups) is None

    def first_offsets(self) -> dict[int, int]:
        """By queue, the first offset whose half message must stay in the cache, because its op is in flight."""
        blocks = {block for block in self._in_flight.values() if isinstance(block, ReceivedOps)}
        return firsts_of(place for block in blocks for place in block.firsts.items())

    def _fit(self, op: RemarkedOp | Problem, groups: Groups) -> ReceivedOp | Problem:
        if isinstance(op, Problem):
            return op
        one, remark = op
        refused = self._tokens.refused(one.producer_group, groups)
        return refused or ReceivedOp(one, remark, groups, (one.queue_id, one.queue_offset))

    def _admit(
        self,
        entry: ReceivedOp,
        remembered: Mapping[Place, RememberedHalf],
        recalled: LookedUp | Problem | None,
        new: list[ReceivedOp],
        groups: Groups,
    ) -> Answer | ReceivedOp | ReceivedOps:
        """The answer if known, else the in-flight op of the half message."""
        op, place = entry.op, entry.place
        known = remembered.get(place) if recalled is None else self._remembered(place)
        if known is None and recalled is not None and self._cache.assigned(*place):
            if isinstance(recalled, Problem):
                return recalled
            known = recalled.halves.get(place)
            if known is None and place in recalled.awaited:
                return self._admit_unverified(entry, new, groups)
            if known is not None and known.state is None:
                before = self._unverified_in_flight.get(OpKey.of(op))
                if before is not None:  # it came before the half message landed, and may fail
                    return before
                known = replace(known, state=self._unverified.state(op, groups))
        elif known is not None and isinstance(recalled, LookedUp):
            known = _decided(known, recalled.halves.get(place))
        verdict = judge_op(known, op)
        if verdict in (Verdict.REPEATED, Verdict.CONTRADICTION) and known is not None:
            self._cache.recalled([known], steady_ms())
        if verdict is not Verdict.NEW:
            contradicted = known if verdict is Verdict.CONTRADICTION else None
            return judged(op, verdict) if contradicted is None else self._refuse(entry, contradicted, new)
        in_flight = self._in_flight.get(place)
        if in_flight is not None:
            return in_flight
        entry.half = known
        return self._begin(entry, new, groups)

    def _refuse(self, entry: ReceivedOp, known: RememberedHalf, new: list[ReceivedOp]) -> Answer | ReceivedOp:
        """Refuse an op that contradicts; the first against a decision is stored: `status` and `audit` count it.

        Before a decision it must not be, as it could become the first; a CANCEL follows a COMMIT.
        """
        answer = contradiction(str(known.state), known.reason, known.decided_at)
        stored = entry.op.state in known.op_states or entry.place in {one.place for one in new}
        if known.decided_at is None or known.state == "CANCEL" or stored:
            return answer
        if self.commits.refusal(len(new) + 1, _SIZE, entry.groups) is not None:
            return answer
        entry.refused = answer
        new.append(entry)
        return entry

    def _admit_unverified(
        self, entry: ReceivedOp, new: list[ReceivedOp], groups: Groups
    ) -> Answer | ReceivedOp | ReceivedOps:
        """The same for an op whose half message is not in the tables yet."""
        in_flight = self._unverified_in_flight.get(OpKey.of(entry.op))
        if in_flight is not None:
            return in_flight
        first = self._unverified.state(entry.op, groups)
        if first is not None:
            return ended(entry.op, repeated=True) if first == entry.op.state else contradiction(first)
        if self._unverified.full(groups):
            return Problem("queue_full", "too many ops wait for half messages of other gateways; send it again")
        return self._begin(entry, new, groups)

    def _begin(self, entry: ReceivedOp, new: list[ReceivedOp], groups: Groups) -> Problem | ReceivedOp:
        """Add the op to those that are to be committed, unless there is no room."""
        refusal = self.commits.refusal(len(new) + 1, _SIZE, groups)
        if refusal is not None:
            return refusal
        if entry.half is None:
            self._unverified.add(entry.op, groups, steady_ms())
            self._unverified_in_flight[OpKey.of(entry.op)] = entry
        else:
            self._in_flight[entry.place] = entry
        new.append(entry)
        return entry

    def _remembered(self, place: Place) -> RememberedHalf | None:
        """The half message there, if it is cached or has an in-flight op."""
        entry = self._in_flight.get(place)
        return self._cache.at(*place) or (entry.half if isinstance(entry, ReceivedOp) else None)

    async def _known(
        self, entries: Collection[ReceivedOp], groups: Groups
    ) -> tuple[dict[Place, RememberedHalf], LookedUp | Problem | None]:
        """The cached half messages of these ops; None, or what the tables have if they are needed, too.

        The tables' include those that were cached before: meanwhile they may have ended, or been evicted. They are also
        needed to tell an op that contradicts a decision why and when it was decided.
        """
        places = {entry.place for entry in entries}
        remembered = {place: half for place in places if (half := self._remembered(place)) is not None}
        forgotten = [place for place in places.difference(remembered) if self._cache.assigned(*place)]
        forgotten += {
            entry.place
            for entry in entries
            if (known := remembered.get(entry.place)) and judge_op(known, entry.op) is Verdict.CONTRADICTION
        }
        if not forgotten:
            return remembered, None
        return remembered, await self._older.of(forgotten, remembered, groups)

    def prepare(self, batch: Sequence[ReceivedOp | ReceivedOps]) -> _StoredOps:
        """The ops and their remarks."""
        entries = [one for one in batch if isinstance(one, ReceivedOp)]
        blocks = [one for one in batch if isinstance(one, ReceivedOps)]
        return _StoredOps(
            [(entry.op, entry.remark) for entry in entries] + [op for block in blocks for op in block.ops],
            [entry.place for entry in entries],
            firsts_of(place for block in blocks for place in block.firsts.items()),
        )

    def write(self, prepared: _StoredOps) -> None:
        """Commit to `op`."""
        rows = op_rows([op for op, _ in prepared.ops], [remark for _, remark in prepared.ops], now_ms())
        with self._metrics.commit("op", len(rows)):
            self._table.append(rows)

    def records(self, prepared: _StoredOps) -> Sequence[Record]:
        """See group_commit.CommitTarget."""
        return [op_record(prepared.ops, prepared.places, prepared.firsts)]

    def settle(self, batch: Sequence[ReceivedOp | ReceivedOps], prepared: object) -> None:  # noqa: ARG002 - as CommitTarget has it
        """Record them in the cache."""
        for one in batch:
            if isinstance(one, ReceivedOp):
                self._settle_entry(one)
            else:
                self._settle_block(one)
        self._health.worked()

    def _settle_entry(self, entry: ReceivedOp) -> None:
        if entry.refused is not None:
            return
        if entry.half is None:  # an unverified op may be another transaction's
            del self._unverified_in_flight[OpKey.of(entry.op)]
            return
        del self._in_flight[entry.place]
        state = entry.op.state
        cached = self._cache.ended(*entry.place, state)
        half = replace(entry.half, state=state)
        if not cached:
            self._cache.recalled([half], steady_ms())
        if self._journaled:
            self._cache.unflushed_op(half)
        self._older.ended({entry.place: state}.get)

    # The half messages of blocks are cached until the ops are in the table: `first_offsets`, Journal.unflushed_offsets.

    def _settle_block(self, block: ReceivedOps) -> None:
        states = [op.state for op, _ in block.ops]
        for half, state in zip(block.halves, states, strict=True):
            half.state = half.state or state
        if self._older.running:
            self._older.ended(dict(zip(block.places, states, strict=True)).get)
        self._no_longer_in_flight(block)

    def _no_longer_in_flight(self, block: ReceivedOps) -> None:
        for place in block.places:
            del self._in_flight[place]

    def failed(self, batch: Sequence[ReceivedOp | ReceivedOps], error: Exception) -> None:
        """Drop them."""
        problem = self._health.failed(error)
        for one in batch:
            one.problem = problem
            if isinstance(one, ReceivedOps):
                self._no_longer_in_flight(one)
            elif one.refused is not None:
                continue
            elif one.half is None:
                self._unverified.discard(one.op, one.groups)
                del self._unverified_in_flight[OpKey.of(one.op)]
            else:
                del self._in_flight[one.place]


def _decided(known: RememberedHalf, found: RememberedHalf | None) -> RememberedHalf:
    """A cached half message, with its decision, if the tables have one."""
    if found is None or found.decided_at is None:
        return known
    return replace(
        known, state=found.state, reason=found.reason, decided_at=found.decided_at, op_states=found.op_states
    )
