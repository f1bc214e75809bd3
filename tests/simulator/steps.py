"""What may happen in a simulated world: each step stands for itself, so that any of them can be left out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.reconcile.records.segment_records import NOT_STATED, Kind, Source
from simulator.tables import Half, Op

if TYPE_CHECKING:
    from simulator.erasure import Wanted
    from simulator.world import World

#: nobody waits until everything is forgotten (rule 3), unless max_age is short
_PATIENCE = 1000
#: groups from here on send what concerns nobody
HOSTILE = 900


class Sent(NamedTuple):
    """A half message as it lands: of which transaction, how long ago it was born, and whether under another id.

    ``delay``: ms after its COMMIT, or ``at`` ms from now. ``committed``: without a transaction.
    """

    transaction: int
    ago: int
    immunity: int
    other: bool
    delay: int = 0
    at: int = 0
    committed: bool = False


class Said(NamedTuple):
    """An op as it lands. wrong: '', 'group', 'id', or 'unstated', which is right."""

    transaction: int
    kind: int
    ago: int
    wrong: str


class LandHalves(NamedTuple):
    """Half messages land, in one commit."""

    sent: tuple[Sent, ...]

    def apply(self, world: World) -> None:
        keys = {world.producers.transactions[sent.transaction].key for sent in self.sent}
        store = world.stored_half(keys)
        halves = []
        for sent in self.sent:
            of = world.producers.transactions[sent.transaction]
            name = of.transaction + 100 if sent.other else of.transaction
            named = of.group, name, world.new_body()
            delay = max(1, world.clock + sent.at) if sent.at else -sent.delay
            born = world.clock - sent.ago
            halves.append(Half(of.queue, of.offset, store, born, sent.immunity, *named, delay, sent.committed))
        world.land_halves(halves)


class LandOps(NamedTuple):
    """Ops land, in one commit."""

    said: tuple[Said, ...]

    def apply(self, world: World) -> None:
        store = world.stored()
        ops = []
        for said in self.said:
            of = world.producers.transactions[said.transaction]
            group = of.group + 50 if said.wrong == "group" else of.group
            name = {"id": of.transaction + 200, "unstated": NOT_STATED}.get(said.wrong, of.transaction)
            born = world.clock - said.ago
            ops.append(Op(of.queue, of.offset, said.kind, Source.PRODUCER, store, born, group, name))
        world.land_ops(ops)


class LandCancel(NamedTuple):
    """An operator, or its producer, cancels a transaction, scheduled or not. ``wrong``: as of Said."""

    transaction: int
    wrong: str

    def apply(self, world: World) -> None:
        of = world.producers.transactions[self.transaction]
        group = of.group + 50 if self.wrong == "group" else of.group
        name = of.transaction + 200 if self.wrong == "id" else of.transaction
        named = Kind.CANCEL, Source.OPERATOR, world.stored(), world.clock, group, name
        world.land_ops([Op(of.queue, of.offset, *named)])


class LandJunk(NamedTuple):
    """Ops of a hostile group land, in one commit: for the place of a transaction, each with an id of its own."""

    transaction: int
    number: int

    def apply(self, world: World) -> None:
        of, store = world.producers.transactions[self.transaction], world.stored()
        ids = range(1000 * store, 1000 * store + self.number)
        named = (of.queue, of.offset, Kind.COMMIT, Source.PRODUCER, store, 0, HOSTILE + self.number % 3)
        world.land_ops([Op(*named, name) for name in ids])


class Restart(NamedTuple):
    """The application is started anew with other settings, also with a batch under way."""

    changes: tuple[tuple[str, Any], ...]
    max_checks: int | None
    max_deliveries: int | None

    def apply(self, world: World) -> None:
        rules = replace(world.reconcile.rules, **dict(self.changes))
        world.restart(rules, self.max_checks, self.max_deliveries)


class MoveClock(NamedTuple):
    """Time passes, or the clock is set: back, too, as by a restart on another machine."""

    ms: int

    def apply(self, world: World) -> None:
        world.clock = max(1, world.clock + self.ms)
        world.tell(f"the clock {'goes on' if self.ms >= 0 else 'is set BACK'} by {abs(self.ms)} ms")


class WaitForTimer(NamedTuple):
    """Time passes until just before, at, or just after something is due."""

    number: int
    more: int

    def apply(self, world: World) -> None:
        at = world.next_timer(self.number)
        if at is not None and world.clock < at + self.more < world.clock + _PATIENCE:
            world.clock = at + self.more
            world.tell(f"time passes until {self.more:+} ms from a timer")


class Decide(NamedTuple):
    """A batch of the reconcile query, which may crash."""

    halves: int
    order: int
    crash: int | None

    def apply(self, world: World) -> None:
        world.decide(self.halves, self.order, self.crash)


class Ask(NamedTuple):
    """A batch of the check query, which may crash."""

    crash: int | None

    def apply(self, world: World) -> None:
        world.ask(self.crash)


class Drain(NamedTuple):
    """A scheduled run."""

    halves: int
    order: int
    crash: tuple[int, int] | None

    def apply(self, world: World) -> None:
        world.drain(self.halves, self.order, self.crash)


class LoseCheckpoint(NamedTuple):
    """The checkpoint of reconcile is lost, and a rebuild makes one of other segments; it may crash.

    ``meanwhile`` lands in the middle of it. ``check``: that of check is lost, too.
    """

    size: int
    order: int
    crash: int | None
    meanwhile: Step | None
    check: bool

    def apply(self, world: World) -> None:
        if self.check:
            world.lose_check()
        landing = self.meanwhile
        world.build_anew(self.size, self.order, self.crash, int if landing is None else lambda: landing.apply(world))


class Retain(NamedTuple):
    """`maintain` removes what is older than ``history`` and ``topics`` (ms), from files of ``size`` rows."""

    history: int
    topics: int | None
    size: int
    crash: int | None

    def apply(self, world: World) -> None:
        world.retain(self.history, self.topics, self.size, self.crash)


class Erase(NamedTuple):
    """An operator erases messages, in files of ``size`` rows; ``cancel``: what has not ended is ended first."""

    wanted: Wanted
    size: int
    crash: int | None
    cancel: bool

    def apply(self, world: World) -> None:
        world.erase(self.wanted, self.size, self.crash, self.cancel)


class Consume(NamedTuple):
    """A consumer reads some batches, old ones as runs; it may die before it stores its position."""

    most: int
    alone: int
    dies: bool

    def apply(self, world: World) -> None:
        world.consume(self.most, self.alone, self.dies)


Step = (
    LandHalves
    | LandOps
    | LandCancel
    | LandJunk
    | Restart
    | MoveClock
    | WaitForTimer
    | Decide
    | Ask
    | Drain
    | LoseCheckpoint
    | Retain
    | Erase
    | Consume
)
