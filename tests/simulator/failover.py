"""Histories of a service that sends through two or three gateways, which die, come back late, or are lost."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.reconcile.records.segment_records import Kind, Source
from checkback.reconcile.segment import Rules
from simulator.failover_promises import FailoverPromises
from simulator.gateways import Gateway
from simulator.scheduler import happening, rebuild_step, restart_steps, with_erasures, with_retention
from simulator.services import ANSWERS, BARRIER, GROUP, Sending, Service
from simulator.steps import HOSTILE, LoseCheckpoint
from simulator.tables import Half, Op
from simulator.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from simulator.steps import Step

_TIMEOUT, _INTERVAL, _FOR_EVER = 6, 10, 10**9
_KINDS = {"COMMIT": Kind.COMMIT, "ROLLBACK": Kind.ROLLBACK}


class FailoverWorld(World):
    """A world with gateways, and a service."""

    def __init__(self, rules: Rules, sendings: tuple[Sending, ...], gateways: int, service: type[Service]) -> None:
        super().__init__(rules, ())
        self.service = service(self.tables, sendings)
        self.check.producers = self.service
        self.gateways = [Gateway(self, queue) for queue in range(gateways)]

    def settle(self, decided: Callable[[], bool]) -> bool:
        """Gateways that were not lost come back, too."""
        for gateway in self.gateways:
            gateway.start()
            gateway.flush(len(gateway.journal))
        return super().settle(decided)


def of(world: World) -> FailoverWorld:
    """The world of these steps."""
    assert isinstance(world, FailoverWorld)
    return world


class SendHalf(NamedTuple):
    """The service sends a half message: to one gateway after the other, until one has answered.

    ``attempts``: gateway, and whether its answer comes; a gateway that is down stores nothing.
    """

    transaction: int
    attempts: tuple[tuple[int, bool], ...]
    immunity: int
    delay: int

    def apply(self, world: World) -> None:
        here = of(world)
        sending = here.service.sendings[self.transaction]
        for queue, answered in self.attempts:
            gateway = here.gateways[queue % len(here.gateways)]
            if not gateway.running:
                continue
            named = GROUP, sending.transaction, here.new_body()
            place = gateway.take_half(Half(0, 0, 0, here.clock, self.immunity, *named, -self.delay))
            here.tell(f"id {sending.transaction} is stored at {place}, {'acknowledged' if answered else 'no answer'}")
            if answered:
                here.service.acknowledged(sending.transaction, place)
                return


class RunLocal(NamedTuple):
    """The local transaction. ``ends``: as of Service.run_local."""

    transaction: int
    ends: str

    def apply(self, world: World) -> None:
        service = of(world).service
        name = service.sendings[self.transaction].transaction
        world.tell(f"the local transaction of id {name}: {service.run_local(name, self.ends)}")


class SendOp(NamedTuple):
    """The op for the last half message, sent to these gateways: its answer is lost but for the last."""

    transaction: int
    gateways: tuple[int, ...]

    def apply(self, world: World) -> None:
        here = of(world)
        name = here.service.sendings[self.transaction].transaction
        sends = here.service.sends.get(name)
        kind = None if not sends or sends[-1].state is None else _KINDS.get(sends[-1].state.value)
        if not sends or kind is None:
            return
        op = Op(*sends[-1].place, int(kind), Source.PRODUCER, 0, here.clock, GROUP, name)
        _send(here, op, self.gateways)


class SendJunk(NamedTuple):
    """Ops of another group, or for another transaction, for places that may come: ``number`` of them."""

    place: tuple[int, int]
    number: int
    kind: int
    group: int
    transaction: int
    gateway: int

    def apply(self, world: World) -> None:
        queue, first = self.place
        for offset in range(first, first + self.number):
            named = self.group, self.transaction
            op = Op(queue, offset, self.kind, Source.PRODUCER, 0, world.clock, *named)
            _send(of(world), op, (self.gateway,))


def _send(world: FailoverWorld, op: Op, gateways: tuple[int, ...]) -> None:
    for queue in gateways:
        gateway = world.gateways[queue % len(world.gateways)]
        if gateway.running:
            state = Kind(op.kind).name
            answer = gateway.take_op(op)
            world.tell(f"{state} for {op.queue}/{op.offset}, id {op.transaction}, to gateway {gateway.queue}: {answer}")


class Flush(NamedTuple):
    """A gateway commits what its journal has, or part of it; it may die between `half` and `op`."""

    gateway: int
    records: int
    dies: bool

    def apply(self, world: World) -> None:
        here = of(world)
        gateway = here.gateways[self.gateway % len(here.gateways)]
        if gateway.running and gateway.journal:
            world.tell(f"gateway {gateway.queue} flushes{' and dies in the middle' if self.dies else ''}")
            gateway.flush(self.records, self.dies)


class Happens(NamedTuple):
    """What happens to a gateway: it dies, is lost, starts again, or forgets."""

    gateway: int
    what: str

    def apply(self, world: World) -> None:
        here = of(world)
        gateway = here.gateways[self.gateway % len(here.gateways)]
        world.tell(f"gateway {gateway.queue}: {self.what}")
        if self.what == "dies":
            gateway.running = False
        else:
            {"is lost": gateway.lose, "starts": gateway.start, "forgets": gateway.forget}[self.what]()


FailoverStep = SendHalf | RunLocal | SendOp | SendJunk | Flush | Happens


@dataclass(frozen=True)
class FailoverScenario:
    """A history before it has happened. ``service``: a test gives a broken one. ``aged``: rows are removed in it."""

    rules: Rules
    transactions: tuple[Sending, ...]
    steps: tuple[Any, ...]
    gateways: int
    service: type[Service] = Service
    aged: bool = False

    @property
    def rebuilt(self) -> bool:
        """Is the checkpoint built anew in it?"""
        return any(isinstance(step, LoseCheckpoint) for step in self.steps)

    def world(self) -> FailoverWorld:
        """As it is in the beginning."""
        return FailoverWorld(self.rules, self.transactions, self.gateways, self.service)

    def promises(self, world: World) -> FailoverPromises:
        """What must hold in it."""
        return FailoverPromises(world=world, service=of(world).service, gateways=of(world).gateways)


def failover(seed: int, service: type[Service] = Service) -> FailoverScenario:
    """The scenario of a seed; always the same."""
    random = Random(f"failover {seed}")
    rules = Rules(
        _TIMEOUT,
        _INTERVAL,
        random.choice([1, 2, 3]),
        random.choice([_FOR_EVER, 200]),
        count_undelivered=random.random() < 0.6,
    )
    sendings = tuple(
        Sending(10 + number, (*random.choices(ANSWERS, k=random.randrange(3)), BARRIER))
        for number in range(random.randrange(1, 4))
    )
    steps: list[Step | FailoverStep] = [happening(random, rules) for _ in range(random.randrange(10, 28))]
    for _ in range(random.randrange(3, 10)):
        steps.insert(random.randrange(len(steps) + 1), _to_a_gateway(random))
    if random.random() < 0.2:
        steps.insert(random.randrange(len(steps) + 1), rebuild_step(random, []))
    if random.random() < 0.2:
        at = random.randrange(len(steps) + 1)
        steps[at:at] = restart_steps(random, rules)
    for number in range(len(sendings)):
        at = 0
        for step in _transaction(random, number):
            at = random.randrange(at, len(steps) + 1)
            steps.insert(at, step)
            at += 1
    gateways, aged = random.choice([2, 2, 3]), Random(f"aged failover {seed}")
    is_aged = rules.max_age < _FOR_EVER and aged.random() < 0.6
    steps = with_retention(aged, steps) if is_aged else steps
    steps = with_erasures(Random(f"erased failover {seed}"), steps, cancels=False)
    return FailoverScenario(rules, sendings, tuple(steps), gateways, service, is_aged)


def _transaction(random: Random, number: int) -> list[FailoverStep]:
    """What the service does, in order; it may die in between, and send again."""
    steps: list[FailoverStep] = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        attempts = tuple((random.randrange(3), random.random() < 0.5) for _ in range(random.randrange(1, 4)))
        steps.append(SendHalf(number, attempts, random.choice([-1, -1, 0, 25]), random.choice([0, 0, 0, 9, 40])))
        steps.append(RunLocal(number, random.choice(["commits"] * 5 + ["fails", "raises"])))
        if random.random() < 0.6:
            steps.append(SendOp(number, tuple(random.randrange(3) for _ in range(random.choice([1, 1, 2])))))
        if random.random() < 0.25:
            steps = steps[: -random.randrange(1, 2)]
    return steps


def _to_a_gateway(random: Random) -> FailoverStep:
    gateway = random.randrange(3)
    match random.choices(range(4), (10, 4, 3, 5))[0]:
        case 0:
            return Flush(gateway, random.choice([1, 2, 99]), random.random() < 0.2)
        case 1:
            return Happens(gateway, random.choice(["dies", "starts", "starts", "forgets", "is lost"]))
        case 2:
            return Happens(gateway, "dies")
        case _:
            place = random.randrange(3), random.randrange(3)
            group, name = random.choice([(GROUP, 99), (HOSTILE, 10), (HOSTILE + 1, 11)])
            kind = random.choice([Kind.COMMIT, Kind.ROLLBACK])
            return SendJunk(place, random.choice([1, 1, 5]), kind, group, name, gateway)
