"""The promises, checked after every step of a history from what the tables, the offset log and the state say.

P1 a half message is pending, published, rolled back or discarded: one of them, and what is due is done.
P2 nothing is published twice. P3 what is published or rolled back, is so by its first op. P4 one decision.
P5 at most check_max checks that count, none before the immunity ends, in or after the batch of the decision, or within
check_interval of the last. P0: what is not obeyed is in `rejected`, once.
P7 is that all of it holds through a rebuild, which knows what came first by store_timestamp alone: what it restores
counts as read by the entry that stands for it, and is applied when a later batch has a later time.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from checkback.reconcile.packed_events import parse_key
from checkback.reconcile.records import NOT_STATED, Kind, Reason
from checkback.reconcile.segment import WAITING_OF_GROUP
from checkback.reconcile.state_codec import decode
from simulator.steps import HOSTILE

if TYPE_CHECKING:
    from checkback.reconcile.segment import Rules
    from simulator.tables import Decision, Half, Op, Request
    from simulator.world import World

Key = tuple[int, int]
#: places of a window of timers here, where milliseconds matter: `timer_encoding.SLOTS`
SLOTS = 4
#: until then at most, after a batch that put them off, segments wait for the next
_LATER = 8 * 4 * SLOTS
_UNKNOWN, _DELIVERED = int(Kind.UNKNOWN), int(Kind.DELIVERED)


class BrokenError(AssertionError):
    """A promise was not kept."""


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
        own = min(self.half.immunity, rules.reserved)
        return self.born + (own if own >= 0 else rules.timeout)

    @property
    def born(self) -> int:
        """A birth in the future counts as the landing (rule 4)."""
        return min(self.half.born, self.landed)

    def is_own(self, op: Op) -> bool:
        """May the op decide it?"""
        right = op.group == self.half.group and op.transaction in (self.half.transaction, NOT_STATED)
        return right and op.kind != _UNKNOWN


@dataclass
class Promises:
    """Reads each entry of the offset log once, and judges the tables."""

    world: World
    lives: dict[Key, Life] = field(default_factory=dict)
    _early: dict[Key, list[tuple[int, Op]]] = field(default_factory=dict)
    _ops: list[tuple[int, Op]] = field(default_factory=list)
    _received: dict[Key, list[tuple[int, int, int]]] = field(default_factory=dict)
    _decoded: dict[tuple[str, bytes], tuple[list[int], Counter[tuple[int, int]]]] = field(default_factory=dict)
    _latest: int = 0
    _rebuilt: list[int] = field(default_factory=list)
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
        for row in tables["rejected"]:
            key = row.row.queue, row.row.offset
            _keep("P0", row.reason != Reason.TOO_MANY.name or row.row.group >= HOSTILE, key, "{} is too many", row.row)
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
            key = half.queue, half.offset
            self.lives.setdefault(key, Life(half, number, planned.time + planned.rules.reserved))
        ops = list(enumerate(self.world.tables.rows["op"]))[slice(*planned.op)]
        self._receive(number, ops)
        new = sorted((op for _, op in ops if op.kind != _DELIVERED), key=lambda op: (op.store, op.born, op.kind))
        self._latest = max(self._latest, planned.time)
        self._ops += [(number, op) for op in new if not self._forgotten(op)]
        dealt = {row.row for row in self.world.tables.rows["rejected"] if row.batch < number}
        waiting = [(since, op) for ops in self._early.values() for since, op in ops if op not in dealt]
        self._early = {}
        for since, op in [*waiting, *((planned.time, op) for op in new if op.kind != _UNKNOWN)]:
            self._arrives(op, since, number)

    def _receive(self, number: int, ops: list[tuple[int, Op]]) -> None:
        """Checks that were received, as a batch or a rebuild reads of them: ops, and where they stand in the table."""
        for place, op in ops:
            if op.kind == _DELIVERED:
                self._received.setdefault((op.queue, op.offset), []).append((number, place, op.number))

    def _arrives(self, op: Op, since: int, number: int) -> None:
        """It decides, or waits for its half, or changes nothing."""
        query = self.world.reconcile
        life = self.lives.get((op.queue, op.offset))
        if life is None:
            held = self._early.setdefault((op.queue, op.offset), [])
            waited = query.offsets[number].time - query.offsets[number].rules.reserved
            known = any(
                (other.group, other.transaction) == (op.group, op.transaction) and since >= waited
                for since, other in held
            )
            # It is given up when its segment has its turn: at a timer, which is odd, or later if that was put off.
            now = query.offsets[number].time
            put_off = any(
                planned.max_checks is not None and planned.time + _LATER >= now
                for planned in query.offsets[: number + 1]
            )
            if (since + 1 >= waited or put_off or not self._applied(number)) and not known:
                held.append((since, op))
        elif life.deciding is None and life.is_own(op):
            life.deciding, life.decided_in = op, number

    def _read_tables(self, number: int) -> None:
        """What a rebuild restores. Of the batches that were not committed only what they have written counts."""
        query, tables = self.world.reconcile, self.world.tables.rows
        planned = query.offsets[number]
        self._latest = max(self._latest, planned.time)
        self._rebuilt.append(number)
        kept = {(row.queue, row.offset) for row in tables["decisions"] if row.batch < number}
        for key, life in list(self.lives.items()):
            if key not in kept and not self._was_whole(life.taken):
                del self.lives[key]
            elif key not in kept:
                life.deciding = None
            life.known_until = min(life.known_until, life.landed + planned.rules.reserved)
        for half in sorted(tables["half"][: planned.half[1]], key=lambda row: (row.store, row.group, row.transaction)):
            known_until = half.store // 1000 + planned.rules.reserved
            self.lives.setdefault((half.queue, half.offset), Life(half, number, known_until))
        self._ops = [(batch, op) for batch, op in self._ops if self._was_whole(batch) and not self._forgotten(op)]
        # The same op sent again is rejected with it.
        dealt = {row.row._replace(store=0) for row in tables["rejected"] if row.batch < number}
        known = {op for _, op in self._ops}
        self._early = {}
        ops = tables["op"][: planned.op[1]]
        self._receive(number, list(enumerate(ops)))
        for op in sorted(ops, key=lambda row: (row.store, row.born, row.kind)):
            if op._replace(store=0) in dealt or op.kind == _DELIVERED:
                continue
            if op not in known and not self._forgotten(op):
                self._ops.append((number, op))
            if op.kind != _UNKNOWN:
                self._arrives(op, planned.time, number)

    def _was_whole(self, batch: int) -> bool:
        """Was it not broken off for ever, by the loss of the checkpoint?"""
        return batch not in self.world.reconcile.void

    def _forgotten(self, op: Op) -> bool:
        """Has the segment forgotten its half, the reserved time after it? Then the op waits for another (rule 3)."""
        life = self.lives.get((op.queue, op.offset))
        return life is not None and self._latest >= life.known_until

    def _one(
        self, key: Key, life: Life, decided: list[Decision] | None, published: list[Any] | None, asked: list[Request]
    ) -> None:
        """P3 to P5, also in the middle of a batch."""
        if decided:
            self._decision(key, life, decided[0], asked)
        if published:
            committed = life.deciding is not None and life.deciding.kind == Kind.COMMIT
            _keep("P3", committed, key, "is published without a COMMIT of its own")
            _keep("P3", published[0].body == life.half.body, key, "is published with another's body")
        counts = self._counts(key, asked)
        for row, count in zip(asked, counts, strict=False):
            _keep("P5", row.times == count + 1, key, f"has check {row.times}, and {count} have counted")
            most = self._rules(row.batch).check_max
            _keep("P5", row.times <= most, key, f"has check {row.times} of {most}")
            late = life.deciding is not None and row.batch >= life.decided_in
            _keep("P5", not late, key, f"is checked in batch {row.batch}, its op came in {life.decided_in}")
            _keep("P5", not decided or row.batch < decided[0].batch, key, "is checked when it is decided")
        for row in asked[:1]:  # the others are an interval apart
            # A batch that was broken off for ever may have asked before the rebuild that took the half message.
            immune = life.immune(self._in_force(min(life.taken, row.batch), row.batch))
            _keep("P5", row.at > immune, key, f"is checked at {row.at}, in its immunity")
        for one, other in pairwise(asked):
            interval = self._in_force(one.batch, other.batch).check_interval
            _keep("P5", other.at - one.at >= interval, key, f"is checked at {one.at} and at {other.at}")

    def _rules(self, batch: int) -> Rules:
        """What the batch was begun with."""
        return self.world.reconcile.offsets[batch].rules

    def _in_force(self, batch: int, until: int) -> Rules:
        """By which rules what happened in the batch goes on: a rebuild applies its own to all that is pending."""
        return self._rules(max([batch, *(number for number in self._rebuilt if number <= until)]))

    def _counts(self, key: Key, asked: list[Request], until: int = 1 << 60) -> list[int]:
        """How many checks counted before each of those asked for, and at last in the batch ``until`` (rule 9)."""
        received = self._received.get(key, [])
        told = [(batch, 1, number) for batch, _, number in received if batch <= until]
        rebuilt = [(number, 0, number) for number in self._rebuilt if number <= until]
        counts: list[int] = []
        count = 0
        for batch, what, number in sorted([*told, *rebuilt, *((row.batch, 2, 0) for row in asked)]):
            if what == 1:
                count = max(count, number) if number <= len(counts) else count
            elif what == 2:
                counts.append(count)
                count += _counts_at_once(self._rules(batch), count + 1)
            else:
                end = self.world.reconcile.offsets[number].op[1]
                known = max((times for _, place, times in received if place < end), default=0)
                last = max(((row.at, row.times) for row in asked if row.batch < number), default=(0, 0))[1]
                rules = self._rules(number)
                count = min(known, len(counts))
                if rules.count_undelivered:
                    count = last if last < rules.check_max or known >= last else max(known, rules.check_max - 1)
        return [*counts, count]

    def _decision(self, key: Key, life: Life, decision: Decision, asked: list[Request]) -> None:
        """By its first op; a discard only when there is none, and the last answer had its time (rules 6 and 7)."""
        if decision.state != "DISCARD":
            own = life.deciding is not None and Kind(life.deciding.kind).name == decision.state
            _keep("P3", own, key, "is decided {}, its first op is {}", decision.state, life.deciding)
            restored = self.world.reconcile.offsets[life.decided_in].restored and decision.batch > life.decided_in
            in_time = decision.batch == life.decided_in or restored
            _keep("P3", in_time, key, f"is not decided in batch {life.decided_in}")
            return
        too_late = life.deciding is None or life.decided_in > decision.batch
        _keep("P3", too_late, key, f"is discarded, and its op came in batch {life.decided_in}")
        _keep("P5", bool(asked), key, "is discarded, and was never checked")
        rules, by = self._rules(decision.batch), self._in_force(asked[-1].batch, decision.batch)
        waited = decision.at - asked[-1].at
        _keep("P5", waited >= by.check_interval, key, f"is discarded {waited} ms after its last check")
        if decision.reason == Reason.EXPIRED.name:
            _keep("P3", decision.at - life.landed > rules.reserved, key, "is given up before the reserved time")
            _keep("P5", len(asked) >= rules.enough, key, f"is given up after {len(asked)} checks")
            last = asked[-1].at - life.landed > rules.reserved or by.check_interval != rules.check_interval
            _keep("P5", last, key, "is given up without a last check")
            return
        count = self._counts(key, asked, decision.batch)[-1]
        _keep("P5", count >= rules.check_max, key, f"is discarded after {count} checks that count")
        answers = self.world.tables.rows["check_answers"]
        answers = [row for row in answers if (row.queue, row.offset) == key]
        received = {row.times for row in answers if row.delivered}
        sent = {row.times for row in answers if row.outcome != "SKIPPED"}
        told = [op for op in self.world.tables.rows["op"] if op.kind == Kind.DELIVERED]
        received |= sent & {op.number for op in told if (op.queue, op.offset) == key}
        for row in asked:
            rules_since = [
                self._rules(number) for number in (row.batch, *(at for at in self._rebuilt if row.batch < at))
            ]
            if any(_counts_at_once(each, row.times) for each in rules_since):
                received.add(row.times)
        _keep("P5", len(received) >= rules.check_max, key, f"is discarded, and only checks {received} were received")
        in_force = self.world.reconcile.offsets[asked[0].batch : decision.batch + 1]
        if {planned.rules.check_max for planned in in_force} == {rules.check_max}:
            _keep("P5", rules.check_max in sent, key, "is discarded, and its last check was sent to nobody")

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
            if (name, block) not in self._decoded:
                segment, _ = decode(block, base, query.size)
                early = zip(segment.early["offset"].tolist(), segment.early["group"].tolist(), strict=True)
                self._decoded[name, block] = segment.pending["offset"].tolist(), Counter(early)
            offsets, waiting = self._decoded[name, block]
            pending |= {(queue, offset) for offset in offsets}
            for (offset, group), number in waiting.items() if self._applied(last) else ():
                _keep("P0", number <= WAITING_OF_GROUP, (queue, offset), f"has {number} ops of group {group} waiting")
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
        if not self._rebuilt:
            return True
        restored, *others = self.world.reconcile.offsets[self._rebuilt[-1] : last + 1]
        return any(planned.time >= restored.time + 4 for planned in others)

    def _waits(self, key: Key, life: Life, asked: list[Request], now: int) -> None:
        """P1: what is pending is so rightly."""
        query = self.world.reconcile
        if life.deciding is not None:
            _keep("P1", life.decided_in >= query.committed, key, "waits, decided by {}", life.deciding)
        last = query.committed - 1
        if asked:
            due = asked[-1].at + self._in_force(asked[-1].batch, last).check_interval
        else:
            due = life.immune(self._in_force(life.taken, last)) + 1
        put_off = [planned.time + _LATER for planned in query.offsets[: last + 1] if planned.max_checks is not None]
        _keep("P1", (due | 1) > now or max(put_off, default=-1) >= now, key, f"is due since {due}, and it is {now}")

    def _rejections(self, last: int) -> None:
        """P0: rule 2."""
        found = {(row.row.queue, row.row.offset, row.row.group, row.row.transaction) for row in self._rejected()}
        for batch, op in self._ops if self._applied(last) else ():
            life = self.lives.get((op.queue, op.offset))
            if batch <= last and life is not None and life.taken <= last and not life.is_own(op):
                named = (op.queue, op.offset, op.group, op.transaction) in found
                decided = op.kind == _UNKNOWN or named
                _keep("P0", decided, (op.queue, op.offset), "{} is not its own, and not in rejected", op)

    def _rejected(self) -> list[Any]:
        """P0: each once, and of half messages at one place not the only one."""
        rows: list[Any] = self.world.tables.rows["rejected"]
        batches: dict[Any, int] = {}
        places = Counter((half.queue, half.offset) for half in self.world.tables.rows["half"])
        for row in rows:
            key = row.row.queue, row.row.offset
            batch = batches.setdefault((row.row, row.reason), row.batch)
            again = row.row, batch, row.batch
            _keep("P0", row.batch == batch, key, "{} is rejected in batch {}, and again in {}", *again)
            _keep("P0", row.reason != "repeated" or places[key] > 1, key, "is rejected as repeated, and is not")
        return rows


def _counts_at_once(rules: Rules, number: int) -> bool:
    """Does a check of this number count when it is requested?"""
    return rules.count_undelivered and number < rules.check_max


def _keep(promise: str, kept: bool, key: Key, what: str, *details: object) -> None:
    """``details`` fill ``what``: rows take longer to be told than to be judged."""
    if not kept:
        raise BrokenError(f"{promise}: {key[0]}/{key[1]} {what.format(*details)}")


def _once(promise: str, done: str, rows: dict[Key, list[Any]]) -> None:
    for key, of_key in rows.items():
        _keep(promise, len(of_key) == 1, key, f"is {done} {len(of_key)} times")


def _by_key(rows: list[Any]) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for row in rows:
        found.setdefault((row.queue, row.offset), []).append(row)
    return found
