"""What the queries have read of each transaction, from the entries of the offset log.

A rebuild knows what came first by store_timestamp alone: what it restores counts as read by the entry that stands for
it, and is applied when a later batch has a later time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.reconcile.records.segment_records import NOT_STATED, Kind
from simulator.tables import Op

if TYPE_CHECKING:
    from checkback.reconcile.segment import Rules
    from simulator.tables import Half
    from simulator.world import World

Key = tuple[int, int]
#: places of a window of timers here, where milliseconds matter: `partition_batch.SLOTS`
SLOTS = 4
#: next deliveries of a segment here: `next_deliveries.MOST`
NEXT = 3
#: until then at most, after a batch that put them off, segments wait for the next
LATER = 8 * 4 * SLOTS
UNKNOWN, _COUNTED = int(Kind.UNKNOWN), int(Kind.COUNTED)


@dataclass
class Life:
    """What the queries have read of a transaction: its half in which batch, and the op that decides in which.

    ``known_until``: until then its segment remembers it.
    """

    half: Half
    taken: int
    known_until: int
    deciding: Op | None = None
    decided_in: int = -1

    @property
    def landed(self) -> int:
        """In ms."""
        return self.half.store // 1000

    def immune(self, rules: Rules) -> int:
        """Until when it is not checked (rule 4)."""
        own = min(self.half.immunity, rules.max_age)
        return self.born + (own if own >= 0 else rules.timeout)

    @property
    def born(self) -> int:
        """A birth in the future counts as the landing (rule 4)."""
        return min(self.half.born, self.landed)

    def is_own(self, op: Op) -> bool:
        """May the op decide it?"""
        return op.kind != UNKNOWN and self.fits(op)

    def fits(self, op: Op) -> bool:
        """Are group and transaction its own?"""
        return op.group == self.half.group and op.transaction in (self.half.transaction, NOT_STATED)

    def commit_itself(self, number: int) -> None:
        """A message without a transaction is its own COMMIT."""
        if self.half.committed:
            half = self.half
            named = half.store, half.born, half.group, half.transaction
            self.deciding, self.decided_in = Op(half.queue, half.offset, Kind.COMMIT, 0, *named), number


@dataclass
class Lives:
    """Reads each entry of the offset log once.

    ``ops``: those that no segment has forgotten, with the batch that has read them; ``cancels``: all that were read;
    ``received``: of each place the checks that were received, as (batch, place in the table, number); ``rebuilt``: the
    entries of rebuilds; ``early``: the ops that wait, with the time since when; ``reads``: when ops were read first.
    """

    world: World
    by_key: dict[Key, Life] = field(default_factory=dict)
    ops: list[tuple[int, Op]] = field(default_factory=list)
    cancels: list[tuple[int, Op]] = field(default_factory=list)
    received: dict[Key, list[tuple[int, int, int]]] = field(default_factory=dict)
    rebuilt: list[int] = field(default_factory=list)
    early: dict[Key, list[tuple[int, Op]]] = field(default_factory=dict)
    reads: dict[Op, int] = field(default_factory=dict)
    _latest: int = 0
    _read: int = 0

    def read(self) -> None:
        """What is new in the offset log."""
        query = self.world.reconcile
        while self._read < len(query.offsets):
            if query.offsets[self._read].restored:
                self._read_tables(self._read)
            else:
                self._read_batch(self._read)
            self._read += 1

    def rules(self, batch: int) -> Rules:
        """What the batch was begun with."""
        return self.world.reconcile.offsets[batch].rules

    def in_force(self, batch: int, until: int) -> Rules:
        """By which rules what happened in the batch goes on: a rebuild applies its own to all that is pending."""
        return self.rules(max([batch, *(number for number in self.rebuilt if number <= until)]))

    def applied(self, last: int) -> bool:
        """Is what the last rebuild has restored due by now?"""
        if not self.rebuilt:
            return True
        restored, *others = self.world.reconcile.offsets[self.rebuilt[-1] : last + 1]
        return any(planned.time >= restored.time + 4 for planned in others)

    def _read_batch(self, number: int) -> None:
        """Half messages, then ops, by the rules 1 to 3."""
        planned = self.world.reconcile.offsets[number]
        halves = self.world.tables.landed["half"][slice(*planned.half)]
        for half in sorted(halves, key=lambda row: (row.store, row.group, row.transaction)):
            key = half.queue, half.offset
            if key not in self.by_key:
                self.by_key[key] = Life(half, number, planned.time + planned.rules.max_age)
                self.by_key[key].commit_itself(number)
        ops = list(enumerate(self.world.tables.landed["op"]))[slice(*planned.op)]
        self._receive(number, ops)
        for _, op in ops:
            self.reads.setdefault(op, planned.time)
        self.cancels += [(number, op) for _, op in ops if op.kind == Kind.CANCEL]
        deciding = (op for _, op in ops if op.kind not in (_COUNTED, Kind.CANCEL))
        new = sorted(deciding, key=lambda op: (op.store, op.born, op.kind))
        self._latest = max(self._latest, planned.time)
        self.ops += [(number, op) for op in new if not self._forgotten(op)]
        dealt = {row.row for row in self.world.tables.landed["rejected"] if row.batch < number}
        waiting = [(since, op) for ops in self.early.values() for since, op in ops if op not in dealt]
        self.early = {}
        for since, op in [*waiting, *((planned.time, op) for op in new if op.kind != UNKNOWN)]:
            self._arrives(op, since, number)

    def _receive(self, number: int, ops: list[tuple[int, Op]]) -> None:
        """Checks that were received, as a batch or a rebuild reads of them: ops, and where they stand in the table."""
        for place, op in ops:
            if op.number >= 0:
                self.received.setdefault((op.queue, op.offset), []).append((number, place, op.number))

    def _arrives(self, op: Op, since: int, number: int) -> None:
        """It decides, or waits for its half, or changes nothing."""
        query = self.world.reconcile
        life = self.by_key.get((op.queue, op.offset))
        if life is None:
            held = self.early.setdefault((op.queue, op.offset), [])
            planned = query.offsets[number]
            waited = planned.time - planned.rules.max_age
            oldest = 0 if planned.behind else waited  # a batch that is behind gives up no op
            known = any(
                (other.group, other.transaction) == (op.group, op.transaction) and since >= oldest
                for since, other in held
            )
            # It is given up when its segment has its turn: at a timer, 1 modulo 4, or later if that was put off.
            now = planned.time
            put_off = any(
                (each.max_checks is not None or each.behind) and each.time + LATER >= now
                for each in query.offsets[: number + 1]
            )
            if (since + 3 >= waited or put_off or not self.applied(number)) and not known:
                held.append((since, op))
        elif life.deciding is None and life.is_own(op):
            life.deciding, life.decided_in = op, number

    def _read_tables(self, number: int) -> None:
        """What a rebuild restores. Of the batches that were not committed only what they have written counts."""
        query, tables = self.world.reconcile, self.world.tables.landed
        planned = query.offsets[number]
        self._latest = max(self._latest, planned.time)
        self.rebuilt.append(number)
        kept = {(row.queue, row.offset) for row in tables["decisions"] if row.batch < number}
        for key, life in list(self.by_key.items()):
            if key not in kept and not self._was_whole(life.taken):
                del self.by_key[key]
            elif key not in kept:
                life.deciding = None
                life.commit_itself(number)
            life.known_until = min(life.known_until, life.landed + planned.rules.max_age)
        for half in sorted(tables["half"][: planned.half[1]], key=lambda row: (row.store, row.group, row.transaction)):
            known_until = half.store // 1000 + planned.rules.max_age
            if (half.queue, half.offset) not in self.by_key:
                self.by_key[half.queue, half.offset] = Life(half, number, known_until)
                self.by_key[half.queue, half.offset].commit_itself(number)
        self.ops = [(batch, op) for batch, op in self.ops if self._was_whole(batch) and not self._forgotten(op)]
        # The same op sent again is rejected with it.
        dealt = {row.row._replace(store=0) for row in tables["rejected"] if row.batch < number}
        known = {op for _, op in self.ops}
        self.early = {}
        ops = self.world.tables.until("op", planned.op[1])
        self.cancels += [(number, op) for op in ops if op.kind == Kind.CANCEL]
        self._receive(number, list(enumerate(tables["op"][: planned.op[1]])))
        for op in sorted(ops, key=lambda row: (row.store, row.born, row.kind)):
            self.reads.setdefault(op, planned.time)
            if op._replace(store=0) in dealt or op.kind in (_COUNTED, Kind.CANCEL):
                continue
            if op not in known and not self._forgotten(op):
                self.ops.append((number, op))
            if op.kind != UNKNOWN:
                self._arrives(op, planned.time, number)

    def _was_whole(self, batch: int) -> bool:
        """Was it not broken off for ever, by the loss of the checkpoint?"""
        return batch not in self.world.reconcile.void

    def _forgotten(self, op: Op) -> bool:
        """Has the segment forgotten its half, max_age after it? Then the op waits for another (rule 3)."""
        life = self.by_key.get((op.queue, op.offset))
        return life is not None and self._latest >= life.known_until
