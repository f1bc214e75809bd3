"""A gateway as producers see it: its journal, what it remembers, and its answers, on its real pure parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.cache import DeduplicationCache
from checkback.gateway.deduplication.remembered_half import RememberedHalf, name_of
from checkback.gateway.received_ops import Verdict, judge_op
from checkback.gateway.unverified_ops import UnverifiedOps
from checkback.messages.op import Op as OpMessage
from checkback.reconcile.records.segment_records import Kind
from gateway.cache_entries import land
from simulator.tables import Half, Op

if TYPE_CHECKING:
    from simulator.world import World

    Place = tuple[int, int]

#: how many unverified ops of a group it takes
UNVERIFIED = 3
_STATES = {int(Kind.COMMIT): "COMMIT", int(Kind.ROLLBACK): "ROLLBACK"}


@dataclass
class Gateway:
    """The gateway of one queue. ``journal``: what it has acknowledged, or only stored, and not committed yet.

    ``lost``: its disk is, with the journal, before a new one began.
    """

    world: World
    queue: int
    running: bool = True
    lost: bool = False
    journal: list[Half | Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        """A process starts: it remembers what is in the tables and the journal."""
        journaled = [record for record in self.journal if isinstance(record, Half)]
        halves = [half for half in [*self.world.tables.rows["half"], *journaled] if half.queue == self.queue]
        self.cache = DeduplicationCache({self.queue: self.world.floor(self.queue)})
        self.cache.remember([self._cached(half) for half in halves])
        self.unverified = UnverifiedOps(self.world.reconcile.rules.max_age, UNVERIFIED)
        for record in self.journal:
            if isinstance(record, Op):
                self.cache.ended(record.queue, record.offset, _STATES[record.kind])

    def take_half(self, half: Half) -> Place:
        """Store it, at an offset of its own unless it is remembered; its place."""
        known = self.cache.named(name_of(str(half.group), str(half.transaction)))
        if known is not None:
            return known.queue_id, known.queue_offset
        half = half._replace(queue=self.queue, offset=self.cache.next_offset(self.queue))
        self.journal.append(half)
        land(self.cache, self._cached(half))
        return self.queue, half.offset

    def take_op(self, op: Op) -> str:
        """Store it, unless it is refused, repeated or contradicts another; what is answered."""
        message = OpMessage(op.queue, op.offset, str(op.transaction), str(op.group), _STATES[op.kind], op.born)
        groups, now = frozenset({str(op.group)}), self.world.clock
        known = self.cache.at(op.queue, op.offset)
        if known is None and self.cache.assigned(op.queue, op.offset):
            known = self._looked_up(op.queue, op.offset)
            if known is None and op.queue != self.queue and op.offset > self._last(op.queue):
                return self._take_unverified(message, op, groups)
        verdict = judge_op(known, message)
        if verdict is Verdict.NEW:
            self.journal.append(op)
            self.cache.ended(op.queue, op.offset, message.state)
        asked = self.unverified.to_look_up(groups)
        found = {place: half for place in asked if (half := self._looked_up(*place)) is not None}
        self.unverified.looked_up(groups, asked, found, now)
        return verdict.value

    def _take_unverified(self, message: OpMessage, op: Op, groups: frozenset[str]) -> str:
        first = self.unverified.state(message, groups)
        if first is not None:
            return "repeated" if first == message.state else "contradiction"
        if self.unverified.full(groups):
            return "queue_full"
        self.unverified.add(message, groups, self.world.clock)
        self.journal.append(op)
        return "unverified"

    def flush(self, most: int, dies: bool = False) -> None:
        """Commit the journal's first records: the half messages, then the ops; in between it may die."""
        records, left = self.journal[:most], self.journal[most:]
        halves = [record for record in records if isinstance(record, Half)]
        ops = [record for record in records if isinstance(record, Op)]
        if halves:
            store = self.world.stored_half({(half.queue, half.offset) for half in halves})
            self.world.land_halves([half._replace(store=store) for half in halves])
        if dies:
            self.journal = [*ops, *left]
            self.running = False
            return
        if ops:
            store = self.world.stored()
            self.world.land_ops([op._replace(store=store) for op in ops])
        self.journal = left

    def lose(self) -> None:
        """The machine is gone, and another begins with an empty journal, when it is started."""
        self.running, self.lost, self.journal = False, True, []

    def start(self) -> None:
        """Started again: it commits what the journal has, and goes on."""
        if not self.running:
            self.flush(len(self.journal))
            self.running = True
            self._begin()

    def forget(self) -> None:
        """Time passes, longer than gateway.dedup_window."""
        if not self.journal:
            self.cache.forget(1 << 62, 0)

    def _last(self, queue: int) -> int:
        offsets = (half.offset for half in self.world.tables.rows["half"] if half.queue == queue)
        return max(offsets, default=self.world.floor(queue) - 1)

    def _looked_up(self, queue: int, offset: int) -> RememberedHalf | None:
        """As the tables have it."""
        halves = [half for half in self.world.tables.rows["half"] if (half.queue, half.offset) == (queue, offset)]
        return self._cached(halves[0]) if halves else None

    def _cached(self, half: Half) -> RememberedHalf:
        """With its decision, else its first op."""
        place, rows = (half.queue, half.offset), self.world.tables.rows
        states = [row.state for row in rows["decisions"] if (row.queue, row.offset) == place]
        ops = [op for op in rows["op"] if (op.queue, op.offset) == place and op.kind in _STATES]
        own = [op for op in ops if (op.group, op.transaction) == (half.group, half.transaction)]
        states += [_STATES[op.kind] for op in sorted(own, key=lambda op: (op.store, op.born, op.kind))]
        name = name_of(str(half.group), str(half.transaction))
        return RememberedHalf(*place, name, 1, "payments", half.born, self.world.clock, states[0] if states else None)
