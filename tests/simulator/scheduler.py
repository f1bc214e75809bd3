"""A history made up from a seed: the settings, the transactions, and what happens in which order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from checkback.reconcile.records.segment_records import Kind
from checkback.reconcile.segment import Rules
from simulator.erasure import Wanted
from simulator.producers import COMMIT, NO_ANSWER, NOBODY, OUTCOMES, UNKNOWN, Transaction
from simulator.promises import Promises
from simulator.rebuild import POINTS
from simulator.reconcile import SIZE
from simulator.steps import (
    Ask,
    Consume,
    Decide,
    Drain,
    Erase,
    LandCancel,
    LandHalves,
    LandJunk,
    LandOps,
    LoseCheckpoint,
    MoveClock,
    Restart,
    Retain,
    Said,
    Sent,
    WaitForTimer,
)
from simulator.world import World

if TYPE_CHECKING:
    from simulator.steps import Step

_TIMEOUT, _INTERVAL = 6, 10
#: A history either repeats half messages, and then no offset is ever forgotten (rule 3: after max_age), or
#: it has a max_age that passes.
_FOR_EVER = 10**9
_RIGHT, _WRONG = ("", "", "", "unstated"), ("group", "id")


@dataclass(frozen=True)
class Scenario:
    """A history before it has happened. ``aged``: rows are removed in it."""

    rules: Rules
    transactions: tuple[Transaction, ...]
    steps: tuple[Step, ...]
    aged: bool = False

    @property
    def rebuilt(self) -> bool:
        """Is the checkpoint built anew in it?"""
        return any(isinstance(step, LoseCheckpoint) for step in self.steps)

    @property
    def erased(self) -> bool:
        """Is anything erased in it?"""
        return any(isinstance(step, Erase) for step in self.steps)

    def world(self) -> World:
        """As it is in the beginning."""
        return World(self.rules, self.transactions)

    def promises(self, world: World) -> Promises:
        """What must hold in it."""
        return Promises(world)


def scenario(seed: int, ages: bool = True, erases: bool = True) -> Scenario:
    """The scenario of a seed; always the same. ``ages``: some have retention. ``erases``: some have erasures."""
    random = Random(seed)
    rules = Rules(
        _TIMEOUT,
        _INTERVAL,
        random.choice([1, 2, 3]),
        random.choice([_FOR_EVER, 45, 200]),
        count_undelivered=random.random() < 0.6,
    )
    delayed = random.random() < 0.3
    transactions = _transactions(random, rules, delayed)
    steps = _sent(random, len(transactions), rules.max_age == _FOR_EVER, delayed)
    happens = [happening(random, rules) for _ in range(random.randrange(16, 40))]
    rebuilds = [rebuild_step(random, steps) for _ in range(random.choice([0, 0, 0, 0, 1, 1, 2, 3]))]
    for step in [*steps, *rebuilds]:
        happens.insert(random.randrange(len(happens) + 1), step)
    for _ in range(random.choice([0, 0, 0, 1, 2, 3])):
        at = random.randrange(len(happens) + 1)
        happens[at:at] = restart_steps(random, rules)
    aged, erased = Random(f"aged {seed}"), Random(f"erased {seed}")
    is_aged = ages and rules.max_age < _FOR_EVER and aged.random() >= 0.4
    happens = age(aged, happens, len(transactions)) if is_aged else happens
    happens = with_erasures(erased, happens) if erases else happens
    return Scenario(rules, transactions, tuple(happens), is_aged)


def with_retention(random: Random, happens: list[Any]) -> list[Any]:
    """These steps with runs of retention, mostly some batches after a long time, and a consumer that mostly sleeps."""
    found = list(happens)
    for _ in range(random.randrange(1, 5)):
        crash = random.randrange(8) if random.random() < 0.3 else None
        topics = random.choice([None, None, None, 0, 50, 1000])
        run = Retain(random.choice([0, 0, 20, 300]), topics, random.choice([1, 1, 2, 4, 99]), crash)
        waits = [MoveClock(random.choice([50, 500, 2000])), Decide(1 << 30, 0, None), Ask(None)]
        waits += [MoveClock(random.choice([210, 2000, 2000])), Decide(1 << 30, 0, random.choice([None, None, 3, 6]))]
        at = random.randrange(len(found) // 3, len(found) + 1)
        found[at:at] = [*waits, run] if random.random() < 0.8 else [run]
    for _ in range(random.randrange(5)):
        reads = Consume(random.choice([1, 2, 99]), random.choice([0, 1, 99]), random.random() < 0.3)
        found.insert(random.randrange(len(found) + 1), reads)
    return found


def with_erasures(random: Random, happens: list[Any], cancels: bool = True) -> list[Any]:
    """These steps with erasures, mostly late, and some given again. ``cancels``: some end what is owed first."""
    found = list(happens)
    for _ in range(random.choice([0, 1, 1, 2, 3])):
        transaction = random.choice([10, 10, 11, 11, 12, 13, 110, 111])
        named = random.choice([(transaction, None), (None, f"customer-{random.randrange(3)}")])
        wanted = Wanted(*named, random.choice([None, None, None, 1, 2]))
        for _ in range(random.choice([1, 1, 2])):
            crash = random.randrange(4) if random.random() < 0.3 else None
            run = Erase(wanted, random.choice([1, 2, 4, 99]), crash, cancels and random.random() < 0.3)
            found.insert(random.randrange(len(found) // 3, len(found) + 1), run)
    return found


def age(random: Random, happens: list[Step], transactions: int) -> list[Step]:
    """With retention, and half messages and ops sent again."""
    found = with_retention(random, happens)
    for number in range(transactions):
        again = [LandHalves((_half(random, number, other=random.random() < 0.2),)), LandOps((_op(random, number),))]
        for step in random.sample(again, random.randrange(3)):
            found.insert(random.randrange(len(found) // 2, len(found) + 1), step)
    return found


def rebuild_step(random: Random, sent: list[Step]) -> Step:
    """In the middle of it lands one of what is sent."""
    crash = random.randrange(POINTS) if random.random() < 0.4 else None
    meanwhile = sent.pop(random.randrange(len(sent))) if sent and random.random() < 0.4 else None
    size, order = random.choice([4, SIZE, SIZE, 32]), random.randrange(24)
    return LoseCheckpoint(size, order, crash, meanwhile, check=random.random() < 0.3)


def restart_steps(random: Random, rules: Rules) -> list[Step]:
    """Some settings are others, mostly with a batch under way.

    max_age is only made longer: how long it was tells the promises for how long an offset is remembered.
    """
    values: dict[str, list[Any]] = {
        "timeout": [_TIMEOUT, 2 * _TIMEOUT],
        "check_interval": [_INTERVAL, 2 * _INTERVAL],
        "check_max": [1, 2, 3],
        "max_age": [max(rules.max_age, 200)],
        "count_undelivered": [True, False],
    }
    names = random.sample(sorted(values), random.randrange(len(values)))
    changes = tuple((name, random.choice(values[name])) for name in names)
    restart = Restart(changes, random.choice([None, None, 1, 2]), random.choice([None, None, 1]))
    dies = Decide(1 << 30, random.randrange(24), random.randrange(8))
    return random.choice([[restart], [dies, restart], [dies, restart, Decide(1 << 30, 0, None)]])


def _transactions(random: Random, rules: Rules, delayed: bool) -> tuple[Transaction, ...]:
    """With ``delayed`` many in one segment, most of them delayed: which are the next deliveries changes."""
    places = [(0, offset) for offset in range(SIZE)]
    if not delayed:
        places += [(queue, offset) for queue in (0, 1) for offset in range(2 * SIZE) if (queue, offset) not in places]
    places = random.sample(places, random.randrange(3, SIZE + 1) if delayed else random.randrange(1, 6))
    found = []
    for number, (queue, offset) in enumerate(places):
        answers = tuple(random.choices(OUTCOMES, k=random.randrange(1, 5)))
        if random.random() < 0.25:  # just in time
            answers = (UNKNOWN,) * (rules.check_max - 1) + (COMMIT,)
        if rules.max_age == _FOR_EVER and answers[-1] == NOBODY:  # nothing would ever end it
            answers += (NO_ANSWER,)
        found.append(Transaction(queue, offset, random.choice([1, 2]), 10 + number, answers))
    return tuple(found)


def _sent(random: Random, transactions: int, repeats: bool, delayed: bool) -> list[Step]:
    """What producers send, by itself; the scheduler puts it anywhere, ops before their half as well."""
    steps: list[Step] = []
    for number in range(transactions):
        steps.append(LandHalves((_half(random, number, delayed=delayed),)))
        if repeats and random.random() < 0.3:
            again = (_half(random, number), _half(random, number, other=True))
            steps += [LandHalves(again), LandHalves(again[:1])][: random.randrange(1, 3)]
        for _ in range(random.choice([0, 0, 1, 1, 2, 3])):
            steps.append(LandOps(tuple(_op(random, number) for _ in range(random.choice([1, 1, 2])))))
        for _ in range(random.choice([0, 0, 1, 2])):
            steps.append(LandCancel(number, random.choice(["", "", "", "", "group", "id"])))
    for _ in range(random.choice([0, 0, 0, 1, 3])):
        steps.append(LandJunk(random.randrange(transactions), random.choice([1, 6, 12])))
    if random.random() < 0.3:
        steps.append(
            LandHalves(tuple(_half(random, number) for number in range(transactions))) if repeats else Ask(None)
        )
    return steps


def _half(random: Random, number: int, other: bool = False, delayed: bool = False) -> Sent:
    ago = random.choice([0, 0, 0, 1, 5, 20, 300, 5000, -30])
    immunity, committed = random.choice([-1, -1, -1, 0, 3, 25, 500]), random.random() < (0.6 if delayed else 0.15)
    delay, at = random.choice([(0, 0), (0, 0), (0, 0), (1, 0), (9, 0), (40, 0), (300, 0), (0, -5), (0, 3), (0, 60)])
    if delayed and random.random() < 0.8:
        delay, at = (random.choice([1, 9, 17, 30, 40, 60, 300]), 0)
    return Sent(number, ago, immunity, other, delay, at, committed)


def _op(random: Random, number: int) -> Said:
    kind = random.choice([Kind.COMMIT, Kind.COMMIT, Kind.ROLLBACK])
    wrong = random.choice(_WRONG if random.random() < 0.2 else _RIGHT)
    return Said(number, Kind.UNKNOWN if random.random() < 0.06 else kind, random.choice([0, 0, 1, 9]), wrong)


def happening(random: Random, rules: Rules) -> Step:  # noqa: PLR0911 - one for each kind
    """A batch, a run, or time."""
    crash = random.randrange(8) if random.random() < 0.25 else None
    halves = random.choice([1, 2, 1 << 30, 1 << 30])
    match random.choices(range(7), (30, 16, 4, 10, 16, 4, 2))[0]:
        case 0:
            return Decide(halves, random.randrange(24), crash)
        case 1:
            return Ask(None if crash is None else crash % 3)
        case 2:
            return Drain(halves, random.randrange(24), None if crash is None else (random.randrange(5), crash))
        case 3:
            return MoveClock(random.randrange(1, 15))
        case 4:
            return WaitForTimer(random.choice([0, 0, 0, 1]), random.choice([-1, 0, 0, 1]))
        case 5:
            return MoveClock(-random.choice([1, 5, 12, 40, 300]))
        case _:
            return MoveClock(random.choice([rules.timeout, 3 * rules.check_interval, 50, 210, 2000]))
