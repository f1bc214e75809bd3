"""The promises, checked after every step of a history from what the tables, the offset log and the state say.

P1 a half message is pending, published, rolled back or discarded: one of them, and what is due is done.
P2 nothing is published twice. P3 what is published or rolled back, is so by its first op. P4 one decision.
P5 at most check_max checks, none before the immunity ends, in or after the batch of the decision, or within
check_interval of the last. P0: what is not obeyed is in `rejected`, once.
P7 is that all of it holds through a rebuild, which knows what came first by store_timestamp alone: what it restores
counts as read by the entry that stands for it, and is applied when a later batch has a later time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from checkback.reconcile.events import parse_key
from checkback.reconcile.segment import NOT_STATED, Kind, Reason
from checkback.reconcile.state import decode

if TYPE_CHECKING:
    from simulator.tables import Decision, Half, Op, Request
    from simulator.world import World

Key = tuple[int, int]


class BrokenError(AssertionError):
    """A promise was not kept."""


@dataclass
class Life:
    """What the queries have read of a transaction: its half in which batch, and the op that decides in which.

    ``known_since``: its segment remembers it for the reserved time after that.
    """

    half: Half
    taken: int
    known_since: int
    deciding: Op | None = None
    decided_in: int = -1

    @property
    def born(self) -> int:
        """A birth in the future counts as the landing (rule 4)."""
        return min(self.half.born, self.half.store // 1000)

    def is_own(self, op: Op) -> bool:
        """May the op decide it?"""
        right = op.group == self.half.group and op.transaction in (self.half.transaction, NOT_STATED)
        return right and op.kind != Kind.UNKNOWN


@dataclass
class Promises:
    """Reads each entry of the offset log once, and judges the tables."""

    world: World
    lives: dict[Key, Life] = field(default_factory=dict)
    _early: dict[Key, list[tuple[int, Op]]] = field(default_factory=dict)
    _ops: list[tuple[int, Op]] = field(default_factory=list)
    _latest: int = 0
    _rebuilt: int = -1
    _read: int = 0
    _judged: int = 0
    _size: int = -1

    def check(self) -> None:
        """Raises BrokenError when one is broken."""
        query = self.world.reconcile
        while self._read < len(query.offsets):
            if query.offsets[self._read].restored:
                self._read_tables(self._read)
            else:
                self._read_batch(self._read)
            self._read += 1
        tables = self.world.tables.rows
        size = sum(map(len, tables.values())) + query.committed
        if size == self._size:
            return  # nothing has happened but time
        self._size = size
        decisions = _by_key(tables["decisions"])
        published, discarded = _by_key(tables["topics"]), _by_key(tables["discarded"])
        requests = _by_key(tables["check_requests"])
        _once("P2", "published", published)
        _once("P4", "decided", decisions)
        _once("P4", "discarded", discarded)
        for key in published:
            _keep("P1", key not in discarded, key, "is published and discarded")
        for key in {*decisions, *published, *discarded, *requests}:
            _keep("P3", key in self.lives, key, "is acted on, and no batch has read its half")
        for key, life in self.lives.items():
            self._one(key, life, decisions.get(key), published.get(key), requests.get(key, []))
        if self._judged < query.committed and not query.under_way and not query.rebuilding:
            self._judged = query.committed
            self._whole(decisions, published, discarded, requests)

    def end(self) -> bool:
        """Checks, and tells whether each half message that has landed is decided. Raises BrokenError."""
        self.check()
        landed = {(half.queue, half.offset) for half in self.world.tables.rows["half"]}
        return landed == {(row.queue, row.offset) for row in self.world.tables.rows["decisions"]}

    def _read_batch(self, number: int) -> None:
        """Half messages, then ops, by the rules 1 to 3."""
        planned = self.world.reconcile.offsets[number]
        halves = self.world.tables.rows["half"][slice(*planned.half)]
        for half in sorted(halves, key=lambda row: (row.store, row.group, row.transaction)):
            self.lives.setdefault((half.queue, half.offset), Life(half, number, planned.time))
        ops = self.world.tables.rows["op"][slice(*planned.op)]
        new = sorted(ops, key=lambda row: (row.store, row.born, row.kind))
        self._latest = max(self._latest, planned.time)
        self._ops += [(number, op) for op in new if not self._forgotten(op)]
        dealt = {row.row for row in self.world.tables.rows["rejected"] if row.batch < number}
        waiting = [(since, op) for ops in self._early.values() for since, op in ops if op not in dealt]
        self._early = {}
        for since, op in [*waiting, *((planned.time, op) for op in new if op.kind != Kind.UNKNOWN)]:
            self._arrives(op, since, number)

    def _arrives(self, op: Op, since: int, number: int) -> None:
        """It decides, or waits for its half, or changes nothing."""
        query = self.world.reconcile
        life = self.lives.get((op.queue, op.offset))
        if life is None:
            held = self._early.setdefault((op.queue, op.offset), [])
            waited = query.offsets[number].time - query.rules.reserved
            known = any(
                (other.group, other.transaction) == (op.group, op.transaction) and since >= waited
                for since, other in held
            )
            if (since >= waited or not self._applied(number)) and not known:
                held.append((since, op))
        elif life.deciding is None and life.is_own(op):
            life.deciding, life.decided_in = op, number

    def _read_tables(self, number: int) -> None:
        """What a rebuild restores. Of the batches that were not committed only what they have written counts."""
        query, tables = self.world.reconcile, self.world.tables.rows
        planned = query.offsets[number]
        self._latest, self._rebuilt = max(self._latest, planned.time), number
        kept = {(row.queue, row.offset) for row in tables["decisions"] if row.batch < number}
        for key, life in list(self.lives.items()):
            if key not in kept and not self._was_whole(life.taken):
                del self.lives[key]
            elif key not in kept:
                life.deciding = None
            life.known_since = min(life.known_since, life.half.store // 1000)
        for half in sorted(tables["half"][: planned.half[1]], key=lambda row: (row.store, row.group, row.transaction)):
            key = half.queue, half.offset
            since = half.store // 1000
            self.lives.setdefault(key, Life(half, number, since))
        self._ops = [(batch, op) for batch, op in self._ops if self._was_whole(batch)]
        # The same op sent again is rejected with it.
        dealt = {row.row._replace(store=0) for row in tables["rejected"] if row.batch < number}
        known = {op for _, op in self._ops}
        self._early = {}
        ops = tables["op"][: planned.op[1]]
        for op in sorted(ops, key=lambda row: (row.store, row.born, row.kind)):
            if op._replace(store=0) in dealt:
                continue
            if op not in known and not self._forgotten(op):
                self._ops.append((number, op))
            if op.kind != Kind.UNKNOWN:
                self._arrives(op, op.store // 1000, number)

    def _was_whole(self, batch: int) -> bool:
        """Was it not broken off for ever, by the loss of the checkpoint?"""
        return batch not in self.world.reconcile.void

    def _forgotten(self, op: Op) -> bool:
        """Has the segment forgotten its half, the reserved time after it? Then the op waits for another (rule 3)."""
        life = self.lives.get((op.queue, op.offset))
        return life is not None and self._latest >= life.known_since + self.world.reconcile.rules.reserved

    def _one(
        self, key: Key, life: Life, decided: list[Decision] | None, published: list[Any] | None, asked: list[Request]
    ) -> None:
        """P3 to P5, also in the middle of a batch."""
        rules = self.world.reconcile.rules
        if decided:
            self._decision(key, life, decided[0], asked)
        if published:
            committed = life.deciding is not None and life.deciding.kind == Kind.COMMIT
            _keep("P3", committed, key, "is published without a COMMIT of its own")
            _keep("P3", published[0].body == life.half.body, key, "is published with another's body")
        _keep("P5", len(asked) <= rules.check_max, key, f"is checked {len(asked)} times")
        _keep("P5", [row.times for row in asked] == list(range(1, len(asked) + 1)), key, "has its checks misnumbered")
        immune = life.half.immunity if life.half.immunity >= 0 else rules.timeout
        for row in asked:
            _keep("P5", row.at > life.born + immune, key, f"is checked at {row.at}, in its immunity")
            late = life.deciding is not None and row.batch >= life.decided_in
            _keep("P5", not late, key, f"is checked in batch {row.batch}, its op came in {life.decided_in}")
            _keep("P5", not decided or row.batch < decided[0].batch, key, "is checked when it is decided")
        for one, other in pairwise(asked):
            _keep("P5", other.at - one.at >= rules.check_interval, key, f"is checked at {one.at} and at {other.at}")

    def _decision(self, key: Key, life: Life, decision: Decision, asked: list[Request]) -> None:
        """By its first op; a discard only when there is none, and the last answer had its time (rules 6 and 7)."""
        rules = self.world.reconcile.rules
        if decision.state != "DISCARD":
            own = life.deciding is not None and Kind(life.deciding.kind).name == decision.state
            _keep("P3", own, key, f"is decided {decision.state}, its first op is {life.deciding}")
            restored = self.world.reconcile.offsets[life.decided_in].restored and decision.batch > life.decided_in
            in_time = decision.batch == life.decided_in or restored
            _keep("P3", in_time, key, f"is not decided in batch {life.decided_in}")
            return
        too_late = life.deciding is None or life.decided_in > decision.batch
        _keep("P3", too_late, key, f"is discarded, and its op came in batch {life.decided_in}")
        if decision.reason == Reason.EXPIRED.name:
            _keep("P3", decision.at - life.born > rules.reserved, key, "is given up before the reserved time")
            return
        _keep("P5", len(asked) == rules.check_max, key, f"is discarded after {len(asked)} checks")
        waited = decision.at - asked[-1].at
        _keep("P5", waited >= rules.check_interval, key, f"is discarded {waited} ms after its last check")

    def _whole(
        self,
        decisions: dict[Key, list[Decision]],
        published: dict[Key, Any],
        discarded: dict[Key, Any],
        requests: dict[Key, list[Request]],
    ) -> None:
        """P1: after a batch each transaction that was read is in one place, and nothing due is left undone."""
        query = self.world.reconcile
        last, now = query.committed - 1, query.offsets[query.committed - 1].time
        pending: set[Key] = set()
        for name, block in query.state.blocks.items():
            queue, base = parse_key(name, query.size)
            segment, _ = decode(block, base, query.size)
            pending |= {(queue, offset) for offset in segment.pending["offset"].tolist()}
        overdue = [at for at, _ in query.state.timers if at <= now]
        _keep("P1", not overdue, (0, 0), f"and others: timers of {overdue} are left behind")
        for key, life in self.lives.items():
            if life.taken > last:
                continue
            decided = decisions.get(key)
            _keep("P1", (decided is None) == (key in pending), key, "is not just one of pending and decided")
            state = decided[0].state if decided else ""
            _keep("P1", (state == "COMMIT") == (key in published), key, f"is {state or 'pending'}; published?")
            _keep("P1", (state == "DISCARD") == (key in discarded), key, f"is {state or 'pending'}; discarded?")
            if not decided and self._applied(last):
                self._waits(key, life, requests.get(key, []), now)
        self._rejections(last)

    def _applied(self, last: int) -> bool:
        """Is what the last rebuild has restored due by now?"""
        offsets, rebuilt = self.world.reconcile.offsets, self._rebuilt
        return any(planned.time > offsets[rebuilt].time for planned in offsets[rebuilt + 1 : last + 1]) or rebuilt < 0

    def _waits(self, key: Key, life: Life, asked: list[Request], now: int) -> None:
        """P1: what is pending is so rightly."""
        rules = self.world.reconcile.rules
        if life.deciding is not None:
            _keep("P1", life.decided_in >= self.world.reconcile.committed, key, f"waits, decided by {life.deciding}")
        immune = life.half.immunity if life.half.immunity >= 0 else rules.timeout
        due = asked[-1].at + rules.check_interval if asked else life.born + immune + 1
        _keep("P1", due > now, key, f"is due since {due}, and it is {now}")
        _keep("P1", now - life.born <= rules.reserved, key, "is older than the reserved time")

    def _rejections(self, last: int) -> None:
        """P0: rule 2."""
        found = {(row.row.queue, row.row.offset, row.row.group, row.row.transaction) for row in self._rejected()}
        for batch, op in self._ops if self._applied(last) else ():
            life = self.lives.get((op.queue, op.offset))
            if batch <= last and life is not None and life.taken <= last and not life.is_own(op):
                named = (op.queue, op.offset, op.group, op.transaction) in found
                decided = op.kind == Kind.UNKNOWN or named
                _keep("P0", decided, (op.queue, op.offset), f"{op} is not its own, and not in rejected")

    def _rejected(self) -> list[Any]:
        """P0: each once, and of half messages at one place not the only one."""
        rows: list[Any] = self.world.tables.rows["rejected"]
        batches: dict[Any, int] = {}
        places = Counter((half.queue, half.offset) for half in self.world.tables.rows["half"])
        for row in rows:
            key = row.row.queue, row.row.offset
            batch = batches.setdefault((row.row, row.reason), row.batch)
            _keep("P0", row.batch == batch, key, f"{row.row} is rejected in batch {batch}, and again in {row.batch}")
            _keep("P0", row.reason != "repeated" or places[key] > 1, key, "is rejected as repeated, and is not")
        return rows


def _keep(promise: str, kept: bool, key: Key, what: str) -> None:
    if not kept:
        raise BrokenError(f"{promise}: {key[0]}/{key[1]} {what}")


def _once(promise: str, done: str, rows: dict[Key, list[Any]]) -> None:
    for key, of_key in rows.items():
        _keep(promise, len(of_key) == 1, key, f"is {done} {len(of_key)} times")


def _by_key(rows: list[Any]) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for row in rows:
        found.setdefault((row.queue, row.offset), []).append(row)
    return found
