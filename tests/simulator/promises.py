"""The promises, checked after every step of a history from what the tables, the offset log and the state say.

P1 a half message is pending, scheduled, published, rolled back, cancelled or discarded: one of them, and what is due is
done: a scheduled one is published at its time, never before.
P2 nothing is published twice. P3 what is published or rolled back, is so by its first op. P4 one decision.
P5 at most check_max checks that count, none before the immunity ends, in or after the batch of the decision, or within
check_interval of the last. P0: what is not obeyed is in `rejected`, once.
P7 is that all of it holds through a rebuild. P8 a consumer has each message once, but for those that were removed.
What retention has removed is judged like the rest, and nothing that was owed is among it.
P9 an erased message has ended, nothing but its ids and times is in any table from then on, no other is erased, and
none that has ended is refused.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from checkback.reconcile.records.segment_records import Kind, Reason
from checkback.reconcile.segment import WAITING_OF_GROUP
from checkback.reconcile.state.next_deliveries import load
from checkback.reconcile.state.packed_events import parse_key
from checkback.reconcile.state.partition_batch import due_timer
from checkback.storage.horizon import HORIZON
from simulator.lives import LATER, UNKNOWN, Key, Life, Lives
from simulator.steps import HOSTILE
from simulator.tables import NOTHING, Half

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.reconcile.segment import Rules
    from simulator.tables import Decision, Delivery, Op, Request
    from simulator.world import World


_NEVER = 1 << 60
#: longest time for which a batch puts off a delivery: `partition_batch.put_off_delivery`
_PUT_OFF = 1 + 7 + 8 * 30


class BrokenError(AssertionError):
    """A promise was not kept."""


class UndeterminedError(Exception):
    """An op was removed at the end of its wait, and may yet be obeyed or not: the history ends here."""


@dataclass
class Promises:
    """Judges the tables by what the queries have read."""

    world: World
    lives: Lives = field(init=False)
    _decoded: dict[
        tuple[str, bytes, bytes | None], tuple[list[int], list[int], list[int], Counter[tuple[int, int]]]
    ] = field(default_factory=dict)
    _in_state: set[Key] = field(default_factory=set)
    #: those of which a CANCEL waits for the next batch
    _held: set[Key] = field(default_factory=set)
    _judged: int = 0
    _size: int = -1
    _removals: int = 0
    _removed: dict[str, set[int]] = field(default_factory=dict)
    _erasures: int = 0
    _emptied: set[Any] = field(default_factory=set)
    _secret: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lives = Lives(self.world)

    def check(self) -> None:
        """Raises BrokenError when one is broken."""
        query = self.world.reconcile
        self.lives.read()
        self._owed()
        self._erased()
        tables = self.world.tables.landed
        size = sum(map(len, tables.values())) + query.committed
        if size == self._size:
            return  # nothing has happened but time
        self._size = size
        decisions = _by_key([row for row in tables["decisions"] if row.state != "CANCEL"])
        cancelled = _by_key([row for row in tables["decisions"] if row.state == "CANCEL"])
        deliveries = _by_key(tables["deliveries"])
        published, discarded = _by_key(tables["topics"]), _by_key(tables["discarded"])
        requests = _by_key(tables["check_requests"])
        _once("P2", "published", published)
        _once("P4", "decided", decisions)
        _once("P4", "discarded", discarded)
        _once("P4", "cancelled", cancelled)
        _once("P2", "delivered", deliveries)
        for key in published:
            _keep("P1", key not in discarded, key, "is published and discarded")
        for key in {*decisions, *published, *discarded, *requests}:
            _keep("P3", key in self.lives.by_key, key, "is acted on, and no batch has read its half")
        for key, life in self.lives.by_key.items():
            self._one(key, life, decisions.get(key), published.get(key), requests.get(key, []))
        for row in tables["rejected"]:
            key = row.row.queue, row.row.offset
            _keep("P0", row.reason != Reason.TOO_MANY.name or row.row.group >= HOSTILE, key, "{} is too many", row.row)
            if row.reason == Reason.NO_HALF.name:
                left = tables["half"][slice(*query.offsets[row.batch].unread_halves)]
                there = any((half.queue, half.offset) == key for half in left)
                _keep("P0", not there, key, "{} is rejected in batch {}, its half had landed", row.row, row.batch)
        if self._judged < query.committed and not query.under_way and not query.rebuilding:
            self._judged = query.committed
            self._whole(decisions, published, discarded, requests)
            self._scheduled(decisions, published, deliveries, cancelled)

    def _owed(self) -> None:
        """P1: retention has removed nothing of what had not ended before the horizon."""
        tables = self.world.tables
        if self._removals == tables.removals:
            return
        self._removals = tables.removals
        ends = self._ends()
        horizon = tables.last_version("half", HORIZON) or 0
        messages = tables.last_version("topics", HORIZON) or 0
        for name, rows in tables.landed.items():
            if name == "batches":
                continue
            gone = set(range(len(rows))).difference(tables.places[name])
            for row in (rows[place] for place in gone - self._removed.get(name, set())):
                about = row.row if name == "rejected" else row
                key = about.queue, about.offset
                time = row.store // 1000 if hasattr(row, "store") else row.at
                old = time < messages if name == "topics" else max(time, ends.get(key, time)) < horizon
                _keep("P1", old, key, "is removed before it has ended: {}", row)
                if name == "op" and key not in self.lives.by_key:
                    self._waited(key, row)
            self._removed[name] = gone

    def _ends(self) -> dict[Key, int]:
        """When each transaction ended, by a batch that is whole."""
        tables = self.world.tables.landed
        whole = {row.batch for row in tables["batches"]}
        ends: dict[Key, int] = {(half.queue, half.offset): _NEVER for half in tables["half"]}
        for row in sorted(tables["decisions"], key=lambda row: row.state == "CANCEL"):
            ends[row.queue, row.offset] = _NEVER if row.batch not in whole or row.deliver_at else row.at
        for row in tables["deliveries"]:
            ends[row.queue, row.offset] = row.at if row.batch in whole else _NEVER
        return ends

    def _erased(self) -> None:
        """P9."""
        tables, erasures = self.world.tables, self.world.erasures
        if not erasures:
            return
        if self._erasures < len(erasures):
            self._erasures, (wanted, done), ends = len(erasures), erasures[-1], self._ends()
            mine = [row for row in _messages(tables.rows) if wanted.selects(row)]
            refused = done is not None or any(ends[row.queue, row.offset] == _NEVER for row in mine)
            _keep("P9", refused, (0, 0), "and others: {} have ended, and are refused", mine)
            if done:
                here = [*_messages(tables.landed), *_rejected_halves(tables.landed)]
                self._secret |= {row.body for row in here if wanted.selects(row)} - {NOTHING}
            decided = {(row.queue, row.offset): (row.group, row.transaction) for row in tables.landed["decisions"]}
            for row in _messages(tables.rows):
                if row.body == NOTHING and row not in self._emptied:
                    self._emptied.add(row)
                    key = row.queue, row.offset
                    _keep("P9", wanted.selects(row), key, "is erased, and was not to be: {}", row)
                    # Where another one is decided, it is rejected.
                    ended = ends[key] < _NEVER or decided.get(key) != (row.group, row.transaction)
                    _keep("P9", ended and key in decided, key, "is erased before it has ended: {}", row)
        for row in (*_messages(tables.rows), *_rejected_halves(tables.rows)) if self._secret else ():
            _keep("P9", row.body not in self._secret, (row.queue, row.offset), "was erased, and is there: {}", row)

    def _consumed(self) -> None:
        """P8: a consumer has had each message once, but those that were removed before, of which it is told."""
        consumer, tables = self.world.consumer, self.world.tables
        consumer.consume(_NEVER, 0, dies=False)
        _once("P8", "consumed", _by_key(consumer.consumed))
        consumed, left = _by_key(consumer.consumed), _by_key(tables.rows["topics"])
        lacking = [row for row in tables.landed["topics"] if (row.queue, row.offset) not in consumed]
        for row in lacking:
            _keep("P8", (row.queue, row.offset) not in left, (row.queue, row.offset), "is not consumed: {}", row)
        told = consumer.missed()
        _keep("P8", told == len(lacking), (0, 0), f"and others: {len(lacking)} were not consumed, told are {told}")

    def _waited(self, key: Key, op: Op) -> None:
        """P1: an op waits for its half message for max_age from when it was read."""
        waits = any(op == other for _, other in self.lives.early.get(key, []))
        may_wait = waits or op.kind == Kind.CANCEL or self.world.reconcile.under_way  # a batch is about to give it up
        if not may_wait or any(row.row == op for row in self.world.tables.landed["rejected"]):
            return
        lasted = self.world.clock - self.lives.reads.get(op, self.world.clock)
        ended = self.world.set_back > 0 or lasted >= self.world.reconcile.rules.max_age
        _keep("P1", ended, key, "may still come, and is removed: {}", op)
        raise UndeterminedError

    def end(self) -> bool:
        """Checks, and tells whether each half message that has landed is decided. Raises BrokenError."""
        self.check()
        self._consumed()
        landed = {(half.queue, half.offset) for half in self.world.tables.landed["half"]}
        tables = self.world.tables.landed
        decided = {(row.queue, row.offset) for row in tables["decisions"]}
        waiting = {(row.queue, row.offset) for row in tables["decisions"] if row.deliver_at}
        waiting -= {(row.queue, row.offset) for row in tables["deliveries"]}
        return landed == decided and not waiting - {
            (row.queue, row.offset) for row in tables["decisions"] if row.state == "CANCEL"
        }

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
            most = self.lives.rules(row.batch).check_max
            _keep("P5", row.times <= most, key, f"has check {row.times} of {most}")
            late = life.deciding is not None and row.batch >= life.decided_in
            _keep("P5", not late, key, f"is checked in batch {row.batch}, its op came in {life.decided_in}")
            unread = self.world.tables.landed["op"][slice(*self.world.reconcile.offsets[row.batch].unread)]
            there = any((op.queue, op.offset) == key and life.is_own(op) for op in unread)
            _keep("P5", not there, key, f"is checked in batch {row.batch}, its op had landed")
            _keep("P5", not decided or row.batch < decided[0].batch, key, "is checked when it is decided")
        for row in asked[:1]:  # the others are an interval apart
            # A batch that was broken off for ever may have asked before the rebuild that took the half message.
            immune = life.immune(self.lives.in_force(min(life.taken, row.batch), row.batch))
            _keep("P5", row.at > immune, key, f"is checked at {row.at}, in its immunity")
        for one, other in pairwise(asked):
            interval = self.lives.in_force(one.batch, other.batch).check_interval
            _keep("P5", other.at - one.at >= interval, key, f"is checked at {one.at} and at {other.at}")

    def _counts(self, key: Key, asked: list[Request], until: int = 1 << 60) -> list[int]:
        """How many checks counted before each of those asked for, and at last in the batch ``until`` (rule 9)."""
        received = self.lives.received.get(key, [])
        told = [(batch, 1, number) for batch, _, number in received if batch <= until]
        rebuilt = [(number, 0, number) for number in self.lives.rebuilt if number <= until]
        counts: list[int] = []
        count = 0
        for batch, what, number in sorted([*told, *rebuilt, *((row.batch, 2, 0) for row in asked)]):
            if what == 1:
                count = max(count, number) if number <= len(counts) else count
            elif what == 2:
                counts.append(count)
                count += _counts_at_once(self.lives.rules(batch), count + 1)
            else:
                end = self.world.reconcile.offsets[number].op[1]
                known = max((times for _, place, times in received if place < end), default=0)
                last = max(((row.at, row.times) for row in asked if row.batch < number), default=(0, 0))[1]
                rules = self.lives.rules(number)
                count = min(known, len(counts))
                if rules.count_undelivered:
                    count = last if last < rules.check_max or known >= last else max(known, rules.check_max - 1)
        return [*counts, count]

    def _decision(self, key: Key, life: Life, decision: Decision, asked: list[Request]) -> None:
        """By its first op; a discard only when there is none, and the last answer had its time (rules 6 and 7)."""
        count = self._counts(key, asked, decision.batch)[-1]
        # Of a batch that was broken off for ever, the decision is made of the message: by the checks requested.
        query = self.world.reconcile
        broken_off = decision.batch in query.void or (query.rebuilding and decision.batch >= query.committed)
        counted = decision.times == count or broken_off
        _keep("P5", counted, key, f"is decided after {count} checks that count, and says {decision.times}")
        most = max(self.lives.rules(row.batch).check_max for row in asked) if asked else 0
        _keep("P5", decision.times <= most, key, f"is decided after {decision.times} checks of {most}")
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
        rules, by = self.lives.rules(decision.batch), self.lives.in_force(asked[-1].batch, decision.batch)
        waited = decision.at - asked[-1].at
        _keep("P5", waited >= by.check_interval, key, f"is discarded {waited} ms after its last check")
        if decision.reason == Reason.EXPIRED.name:
            _keep("P3", decision.at - life.landed > rules.max_age, key, "is given up before max_age")
            _keep("P5", len(asked) >= rules.enough, key, f"is given up after {len(asked)} checks")
            last = asked[-1].at - life.landed > rules.max_age or by.check_interval != rules.check_interval
            _keep("P5", last, key, "is given up without a last check")
            return
        _keep("P5", count >= rules.check_max, key, f"is discarded after {count} checks that count")
        answers = self.world.tables.landed["check_answers"]
        answers = [row for row in answers if (row.queue, row.offset) == key]
        received = {row.times for row in answers if row.delivered}
        sent = {row.times for row in answers if row.outcome != "SKIPPED"}
        told = [op for op in self.world.tables.landed["op"] if op.kind == Kind.COUNTED]
        received |= sent & {op.number for op in told if (op.queue, op.offset) == key}
        for row in asked:
            rules_since = [
                self.lives.rules(number) for number in (row.batch, *(at for at in self.lives.rebuilt if row.batch < at))
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
        self._in_state, self._held = set(), set()
        for name, block in query.state.blocks.items():
            queue, base = parse_key(name, query.size)
            beside = query.state.next_deliveries.get(name)
            if (name, block, beside) not in self._decoded:
                segment, _ = load(block, lambda: beside, base, query.size)  # noqa: B023 - called at once
                early = zip(segment.early["offset"].tolist(), segment.early["group"].tolist(), strict=True)
                places = [rows["offset"].tolist() for rows in (segment.pending, segment.scheduled, segment.cancels)]
                self._decoded[name, block, beside] = *places, Counter(early)
            offsets, scheduled, held, waiting = self._decoded[name, block, beside]
            pending |= {(queue, offset) for offset in offsets}
            self._in_state |= {(queue, offset) for offset in scheduled}
            self._held |= {(queue, offset) for offset in held}
            for (offset, group), number in waiting.items() if self.lives.applied(last) else ():
                _keep("P0", number <= WAITING_OF_GROUP, (queue, offset), f"has {number} ops of group {group} waiting")
        overdue = [at for at, _ in query.state.timers if at <= now]
        _keep("P1", not overdue, (0, 0), f"and others: timers of {overdue} are left behind")
        for key, life in self.lives.by_key.items():
            if life.taken > last:
                continue
            decided = decisions.get(key)
            _keep("P1", (decided is None) == (key in pending), key, "is not just one of pending and decided")
            state = decided[0].state if decided else ""
            if state != "COMMIT":
                _keep("P1", key not in published, key, f"is {state or 'pending'}, and published")
                _keep("P1", (state == "DISCARD") == (key in discarded), key, f"is {state or 'pending'}; discarded?")
            if not decided and self.lives.applied(last):
                self._waits(key, life, requests.get(key, []), now)
        self._rejections(last)

    def _scheduled(
        self,
        decisions: dict[Key, list[Decision]],
        published: dict[Key, Any],
        deliveries: dict[Key, list[Delivery]],
        cancelled: dict[Key, list[Decision]],
    ) -> None:
        """P1: what is committed is published at once, or scheduled, and then delivered or cancelled."""
        query = self.world.reconcile
        last = query.committed - 1
        now = query.offsets[last].time
        discarded = _by_key(self.world.tables.landed["discarded"])
        for key in self._in_state | set(deliveries) | set(cancelled):
            _keep("P1", bool(decisions.get(key)), key, "is scheduled without a decision")
        for key, rows in decisions.items():
            row, half = rows[0], self.lives.by_key[key].half
            due = row.at - half.delay if half.delay < 0 else half.delay
            held = row.deliver_at and any((op.queue, op.offset) == key for _, op in self.lives.cancels)
            expected = due if row.state == "COMMIT" and (due > row.at or held) else 0
            _keep("P1", row.deliver_at == expected, key, f"is scheduled for {row.deliver_at}, not {expected}")
            delivered = deliveries.get(key, [])
            ended = len(delivered) + len(cancelled.get(key, []))
            _keep("P4", ended <= bool(expected), key, f"is delivered and cancelled: {delivered}")
            is_scheduled = bool(expected) and not ended
            _keep("P1", is_scheduled == (key in self._in_state), key, f"scheduled is {is_scheduled}; in the state?")
            out = row.state == "COMMIT" and (not expected or bool(delivered))
            _keep("P1", out == (key in published), key, f"published should be {out}")
            _keep("P1", (key in discarded) == (row.state == "DISCARD" or key in cancelled), key, "kept in discarded?")
            for one in delivered:
                message = published[key][0]
                _keep("P1", one.at >= row.deliver_at == one.deliver_at, key, f"is delivered early: {one}")
                _keep("P1", (message.at, message.batch) == (one.at, one.batch), key, f"{message} is not {one}")
            put_off = any(
                (planned.max_deliveries is not None or planned.behind) and planned.time + _PUT_OFF >= now
                for planned in query.offsets
            )
            if is_scheduled and self.lives.applied(last) and not put_off and key not in self._held:
                # Its timer is up to 7 ms later (`partition_batch.delivery_timer`); a rebuild's, than the ms after it.
                due = max(
                    [row.deliver_at, row.at + 1, *(query.offsets[number].time + 1 for number in self.lives.rebuilt)]
                )
                _keep("P1", due + 7 > now, key, f"is due since {row.deliver_at}, and it is {now}")
        self._cancels(last, cancelled)

    def _timers(self, first: int, last: int) -> int:
        """How often a timer that a batch sets at once has fired since the batch ``first``."""
        fired, at = 0, self.world.reconcile.offsets[first].time
        for planned in self.world.reconcile.offsets[first : last + 1]:
            if planned.time >= at + 4:
                fired, at = fired + 1, planned.time
        return fired

    def _cancels(self, last: int, cancelled: dict[Key, list[Decision]]) -> None:
        """P0: each CANCEL that was read has cancelled something, is in `rejected`, or waits.

        It waits for its half message, and then for the batch after that has read both; restored ones for the ops that
        were restored, too.
        """
        if not self.lives.applied(last):
            return
        times = [planned.time for planned in self.world.reconcile.offsets]
        rejected: dict[Op, set[str]] = defaultdict(set)
        for row in self.world.tables.landed["rejected"]:
            rejected[row.row._replace(store=0, born=0)].add(row.reason)
        given_up = {Reason.TOO_MANY.name, Reason.NO_HALF.name}
        published = _by_key(self.world.tables.landed["topics"])
        taken = set()
        for batch, op in self.lives.cancels:
            key = op.queue, op.offset
            life = self.lives.by_key.get(key)
            if life is None:
                continue
            told = rejected[op._replace(store=0, born=0)]
            if life.fits(op) and batch <= life.taken and life.half.committed and life.half.delay:
                _keep(
                    "P1",
                    bool(told & given_up) or key not in published,
                    key,
                    "is published, and {} was read before it",
                    op,
                )
            fits = life.fits(op) and key in cancelled
            taken |= {key} if fits else set()
            forgotten = max(times[: max(batch, *self.lives.rebuilt, 0) + 1]) >= life.known_until
            read = max(batch, life.taken, *self.lives.rebuilt, 0)
            waits = self._timers(read, last) < 1 + bool(self.lives.rebuilt)
            known = read > last or forgotten or waits or batch in self.world.reconcile.void
            _keep("P0", known or fits or bool(told), key, "{} is lost", op)
        for key in cancelled:
            _keep("P3", key in taken, key, "is cancelled, and nobody wanted it")

    def _waits(self, key: Key, life: Life, asked: list[Request], now: int) -> None:
        """P1: what is pending is so rightly."""
        query = self.world.reconcile
        if life.deciding is not None:
            _keep("P1", life.decided_in >= query.committed, key, "waits, decided by {}", life.deciding)
        last = query.committed - 1
        if asked:
            due = asked[-1].at + self.lives.in_force(asked[-1].batch, last).check_interval
        else:
            due = life.immune(self.lives.in_force(life.taken, last)) + 1
        begun = query.offsets[: last + 1]
        put_off = [planned.time + LATER for planned in begun if planned.max_checks is not None or planned.behind]
        # Where a CANCEL waits in its segment, the one timer is that of the ops: `partition_batch.ops_timer`.
        held = any(queue == key[0] and offset // query.size == key[1] // query.size for queue, offset in self._held)
        in_time = (due + 3 if held else due_timer(due)) > now or max(put_off, default=-1) >= now
        _keep("P1", in_time, key, f"is due since {due}, and it is {now}")

    def _rejections(self, last: int) -> None:
        """P0: rule 2."""
        found = {(row.row.queue, row.row.offset, row.row.group, row.row.transaction) for row in self._rejected()}
        for batch, op in self.lives.ops if self.lives.applied(last) else ():
            life = self.lives.by_key.get((op.queue, op.offset))
            if batch <= last and life is not None and life.taken <= last and not life.is_own(op):
                named = (op.queue, op.offset, op.group, op.transaction) in found
                decided = op.kind == UNKNOWN or named
                _keep("P0", decided, (op.queue, op.offset), "{} is not its own, and not in rejected", op)

    def _rejected(self) -> list[Any]:
        """P0: each once, and of half messages at one place not the only one."""
        rows: list[Any] = self.world.tables.landed["rejected"]
        batches: dict[Any, int] = {}
        places = Counter((half.queue, half.offset) for half in self.world.tables.landed["half"])
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


def _messages(rows: Mapping[str, list[Any]]) -> list[Any]:
    """The rows of messages."""
    return [*rows["topics"], *rows["discarded"], *rows["half"]]


def _rejected_halves(rows: Mapping[str, list[Any]]) -> list[Half]:
    """What `rejected` has of messages: an erasure may take more of them than was wanted."""
    return [row.row for row in rows["rejected"] if isinstance(row.row, Half)]


def _by_key(rows: list[Any]) -> dict[Key, list[Any]]:
    found: dict[Key, list[Any]] = {}
    for row in rows:
        found.setdefault((row.queue, row.offset), []).append(row)
    return found
