"""A simulated world: a clock, the tables, the producers, and the two queries, which crash and start again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.maintain import erasure as erasures
from checkback.maintain import row_retention
from checkback.reconcile.records.segment_records import Kind, Source
from simulator import erasure, retention
from simulator.check import Check
from simulator.consumers import GROUP, Consumer
from simulator.producers import Producers
from simulator.rebuild import Rebuild
from simulator.reconcile import CrashError, Reconcile
from simulator.tables import Half, Op, Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from checkback.reconcile.segment import Rules
    from simulator.erasure import Wanted
    from simulator.producers import Transaction

#: rounds after which a history must have come to its end
_ROUNDS = 200
_ALL = 1 << 30


class World:
    """Everything there is in a history. Times in ms."""

    def __init__(
        self, rules: Rules, transactions: Sequence[Transaction], tell: Callable[[str], object] = lambda _: None
    ) -> None:
        """``tell`` is given what happens, in words.

        ``aged``: rows are removed; then half messages come through `land`. ``set_back``: ms, by all steps together.
        """
        self.clock = 1  # 0 is no time in ROW
        self.tables = Tables()
        self.producers = Producers(transactions)
        self.reconcile = Reconcile(self.tables, rules)
        self.check = Check(self.tables, self.producers)
        self.tell = tell
        self.rebuild = Rebuild
        self.retention = row_retention
        self.consumer = Consumer(self.tables)
        self.aged = False
        self.set_back = 0
        self.erasure = erasures
        #: of each erasure what was wanted, and whether it is done; refused = None
        self.erasures: list[tuple[Wanted, bool | None]] = []
        self._landings = self._bodies = 0

    def new_body(self) -> int:
        """The body of another message."""
        self._bodies += 1
        return self._bodies

    def stored(self, after: int = -1) -> int:
        """The store_timestamp (µs) of what lands now: no two landings have the same. At least ``after`` + 1."""
        self._landings += 1
        return max(after + 1, self.clock * 1000 + self._landings % 1000)

    def stored_half(self, keys: Collection[tuple[int, int]]) -> int:
        """As ``stored``, for half messages at these places.

        Where there may be a rebuild, none lands before one that is there: which of two came first the tables tell by
        their store_timestamps alone.
        """
        there = (half.store for half in self.tables.landed["half"] if (half.queue, half.offset) in keys)
        return self.stored(max(there, default=-1) if self.reconcile.together else -1)

    def land_halves(self, halves: Sequence[Half]) -> None:
        """Append to `half`."""
        halves = self._new(halves) if self.aged else halves
        self.tables.append("half", list(halves))
        for half in halves:
            immunity = "" if half.immunity < 0 else f", immune for {half.immunity} ms"
            more = f"{immunity}{f', delay {half.delay}' if half.delay else ''}{', committed' if half.committed else ''}"
            self.tell(f"half {half.queue}/{half.offset} lands: id {half.transaction}, born {half.born}{more}")

    def _new(self, halves: Sequence[Half]) -> list[Half]:
        """As landing.batch: without those whose place is taken, or was before it was removed."""
        there = {(half.queue, half.offset) for half in self.tables.rows["half"]}
        new = {(half.queue, half.offset): half for half in reversed(halves)}
        return [half for key, half in reversed(new.items()) if key not in there and key[1] >= self.floor(key[0])]

    def floor(self, queue: int) -> int:
        """The lowest offset that a half queue still takes."""
        return retention.floor(self.tables, queue)

    def consume(self, most: int, alone: int, dies: bool) -> None:
        """A consumer that has slept goes on."""
        number = self.consumer.consume(most, alone, dies)
        self.tell(f"the consumer reads {number} messages{' and dies' if dies else ''}")

    def retain(self, history: int, topics: int | None, size: int, crash: int | None) -> bool:
        """`maintain` removes what is older; False = it crashed, or a rebuild was broken off.

        The history lasts longer than the clock is ever set back: by their times rows would be older than they are.
        """
        if self._refused():
            return False
        query = self.reconcile
        if query.under_way and any(row.at > query.offsets[-1].time for row in self.tables.rows["batches"]):
            topics = None  # nor is a batch from before the clock was set back under way for longer than these last
        settings = retention.settings_of(history + self.set_back, self.reconcile.rules.max_age, topics)
        unread = {GROUP: self.consumer.unread}
        try:
            done = retention.retain(self.tables, settings, self.clock, size, crash, unread, self.retention)
            self.tell(f"retention with a history of {settings.history()}: {done}")
        except CrashError as error:
            self.tell(f"retention with a history of {settings.history()}: CRASH {error}")
            return False
        return True

    def erase(self, wanted: Wanted, size: int, crash: int | None, cancel: bool) -> None:
        """`erase`; ``cancel``: what is owed is ended first, and another one is to follow."""
        try:
            owed = erasure.erase(self.tables, wanted, self.clock, size, crash, self.erasure)
        except CrashError as error:
            self.tell(f"erasure of {wanted}: CRASH {error}")
            self.erasures.append((wanted, False))
            return
        self.tell(f"erasure of {wanted}: {owed or 'done'}")
        self.erasures.append((wanted, None if owed else True))
        if cancel:
            self.land_ops([self._end(row) for row in owed])

    def _end(self, owed: Mapping[str, Any]) -> Op:
        """An operator's op that ends it."""
        kind = {"pending": Kind.ROLLBACK, "scheduled": Kind.CANCEL}[owed["state"]]
        named = int(owed["producer_group"]), int(owed["transaction_id"].removeprefix("tx-"))
        return Op(owed["queue_id"], owed["queue_offset"], kind, Source.OPERATOR, self.stored(), self.clock, *named)

    def land_ops(self, ops: Sequence[Op]) -> None:
        """Append to `op`."""
        self.tables.append("op", list(ops))
        for op in ops:
            name = "unknown state" if op.kind == Kind.UNKNOWN else Kind(op.kind).name
            self.tell(f"{name} for {op.queue}/{op.offset} lands: group {op.group}, id {op.transaction}")

    def restart(self, rules: Rules, max_checks: int | None, max_deliveries: int | None) -> None:
        """The application is started anew, with other settings."""
        was = self.reconcile.rules
        self.reconcile.rules, self.reconcile.max_checks = rules, max_checks
        self.reconcile.max_deliveries = max_deliveries
        found = [f"{name} {value}" for name, value in vars(rules).items() if value != getattr(was, name)]
        self.tell(f"started again with {', '.join(found) or 'the same rules'}, at most {max_checks}, {max_deliveries}")

    def decide(self, halves: int = _ALL, order: int = 0, crash: int | None = None) -> bool:
        """One batch of the reconcile query, or the one again that was under way; False = it crashed."""
        query = self.reconcile
        if self._refused():
            return False
        again = query.under_way
        if not again:
            query.plan(self.clock, halves)
        planned = query.offsets[query.committed]
        name = f"batch {query.committed} of {planned.time}{', again' if again else ''}"
        read = f"{planned.half[1] - planned.half[0]} half, {planned.op[1] - planned.op[0]} op"
        try:
            self.tell(f"reconcile, {name}: {read} -> {query.run(self.clock, order, crash)}")
        except CrashError as error:
            self.tell(f"reconcile, {name}: {read} -> CRASH {error}")
            return False
        return True

    def ask(self, crash: int | None = None) -> bool:
        """One batch of the check query, if there is something to ask; False = it crashed."""
        query = self.check
        if self._refused():
            return False
        again = query.under_way
        if not again:
            if not query.has_news():
                return True
            query.plan()
        name = f"batch {query.committed}{', again' if again else ''}"
        try:
            self.tell(f"check, {name}: {query.run(self.clock, crash, self.reconcile.rules)}")
        except CrashError as error:
            self.tell(f"check, {name}: CRASH {error}")
            return False
        return True

    def drain(self, halves: int, order: int, crash: tuple[int, int] | None) -> bool:
        """A scheduled run: ticks once, then reconcile and check in turn; ``crash``: in which batch, and where."""
        if self._refused():
            return False
        self.tell("a scheduled run starts")
        turn = 0

        def point() -> int | None:
            nonlocal turn
            turn += 1
            return crash[1] if crash and crash[0] == turn - 1 else None

        tick = True
        while True:
            while self.reconcile.under_way or self.reconcile.has_news() or tick:
                # The batch that is done again has not read the tick.
                tick = tick and self.reconcile.under_way
                if not self.decide(halves, order, point()):
                    return False
            if not (self.check.under_way or self.check.has_news()):
                return True
            while self.check.under_way or self.check.has_news():
                if not self.ask(point()):
                    return False

    def build_anew(
        self, size: int, order: int = 0, crash: int | None = None, meanwhile: Callable[[], object] = int
    ) -> bool:
        """The checkpoint of reconcile is lost, or fits no more: rebuild it from the tables; False = it crashed."""
        query, again = self.reconcile, " again" if self.reconcile.rebuilding else ""
        half_done = f", in the middle of batch {query.committed}" if query.under_way else ""
        try:
            done = self.rebuild(query, size, crash).run(self.clock, order, meanwhile)
            self.tell(f"rebuilt{again}{half_done}: {done}")
        except CrashError as error:
            self.tell(f"rebuilt{again}{half_done}: CRASH {error}")
            return False
        return True

    def lose_check(self) -> None:
        """The checkpoint of check is lost: it begins anew."""
        self.tell("the checkpoint of check is lost")
        self.check.begin_anew()

    def _refused(self) -> bool:
        if self.reconcile.rebuilding:
            self.tell("nothing starts: a rebuild was broken off")
        return self.reconcile.rebuilding

    def next_timer(self, number: int = 0) -> int | None:
        """When the next timer but ``number`` is due, or the last one there is."""
        timers = sorted({at for at, _ in self.reconcile.state.timers})
        return timers[min(number, len(timers) - 1)] if timers else None

    def settle(self, decided: Callable[[], bool]) -> bool:
        """Nothing crashes any more, and time goes on: is everything decided in the end?"""
        self.tell("from here on nothing goes wrong, and time goes on")
        if self.reconcile.rebuilding:
            self.build_anew(self.reconcile.size)
        for _ in range(_ROUNDS):
            self.decide()
            self.ask()
            self.decide()
            if decided() and not self.check.has_news():
                return True
            self.clock = max(self.clock + 1, self.next_timer() or 0)
        return False
