"""P6: a producer group that is dead delays nobody else, whatever happens."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from simulator.producers import NO_ANSWER
from simulator.scheduler import Scenario, scenario
from simulator.steps import Ask, Drain, Restart, WaitForTimer
from simulator.world import World

pytestmark = pytest.mark.slow

_HISTORIES = 60
_HEALTHY, _DEAD = 1, 2


def _alike(plan: Scenario) -> Scenario:
    """Without the steps that look at what all groups together have to do."""
    steps = [step for step in plan.steps if not isinstance(step, WaitForTimer)]
    calm = [step._replace(crash=None) if isinstance(step, Ask | Drain) else step for step in steps]
    unlimited = [step._replace(max_checks=None) if isinstance(step, Restart) else step for step in calm]
    return replace(plan, steps=tuple(unlimited))


def _dead(plan: Scenario) -> Scenario:
    """One group answers nothing any more."""
    gone = tuple(replace(one, answers=(NO_ANSWER,)) if one.group == _DEAD else one for one in plan.transactions)
    return replace(plan, transactions=gone)


def _of_healthy(plan: Scenario) -> list[tuple[Any, ...]]:
    """When each transaction of the healthy group was checked and decided, and how."""
    world = World(plan.rules, plan.transactions)
    world.reconcile.together = plan.rebuilt
    for step in plan.steps:
        step.apply(world)
    mine = {one.key for one in plan.transactions if one.group == _HEALTHY}
    rows = world.tables.rows
    decided = [(row.queue, row.offset, row.state, row.times, row.at) for row in rows["decisions"]]
    checked = [(row.queue, row.offset, "CHECK", row.times, row.at) for row in rows["check_requests"]]
    answered = [(row.queue, row.offset, row.outcome, row.times, row.at) for row in rows["check_answers"]]
    return sorted(row for row in [*decided, *checked, *answered] if row[:2] in mine)


def test_dead_group_changes_nothing_for_the_other() -> None:
    """Each check, answer and decision of the other is the same, at the same time."""
    first, compared = Random().randrange(1, 10**9), 0
    print(f"seeds from {first} on")
    for seed in range(first, first + _HISTORIES):
        plan = _alike(scenario(seed, ages=False, erases=False))  # these look at rows of all groups together
        expected = _of_healthy(plan)
        assert _of_healthy(_dead(plan)) == expected, seed
        compared += len(expected)
    assert compared > _HISTORIES
