"""A scenario as it happens: judged after every step, told in words when it fails, and made shorter."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar
from unittest.mock import patch

from checkback.maintain import erasure as erasures
from checkback.maintain import row_retention
from checkback.reconcile.state import next_deliveries, partition_batch
from simulator.failover import FailoverScenario, failover
from simulator.lives import NEXT, SLOTS
from simulator.promises import BrokenError, UndeterminedError
from simulator.rebuild import Rebuild
from simulator.reconcile import Reconcile, StuckError
from simulator.scheduler import Scenario, scenario
from simulator.steps import MoveClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType


Plan = TypeVar("Plan", bound=Scenario | FailoverScenario)


@dataclass
class Outcome:
    """How a history ended. broken: the promise that was not kept; empty = all were."""

    broken: str = ""
    lines: list[str] = field(default_factory=list)
    batches: int = 0
    transactions: int = 0


@patch.object(partition_batch, "SLOTS", SLOTS)
@patch.object(next_deliveries, "MOST", NEXT)
def happen(
    plan: Scenario | FailoverScenario,
    engine: type[Reconcile] = Reconcile,
    rebuild: type[Rebuild] = Rebuild,
    retention: ModuleType = row_retention,
    erasure: ModuleType = erasures,
    *,
    tell: bool = False,
) -> Outcome:
    """Let it happen. ``engine``, ``rebuild``, ``retention``, ``erasure``: a test gives a broken one."""
    outcome = Outcome()
    world = plan.world()
    world.reconcile = engine(world.tables, plan.rules)
    world.reconcile.together = plan.rebuilt
    world.rebuild, world.retention, world.erasure, world.aged = rebuild, retention, erasure, plan.aged
    world.set_back = sum(max(0, -step.ms) for step in plan.steps if isinstance(step, MoveClock))
    if tell:
        world.tell = lambda text: outcome.lines.append(f"{world.clock:6} ms  {text}")
    promises = plan.promises(world)
    try:
        for step in plan.steps:
            step.apply(world)
            promises.check()
        if not world.settle(promises.end):
            outcome.broken = "P1: in the end something is still pending"
    except UndeterminedError:
        pass
    except (BrokenError, StuckError) as error:
        outcome.broken = str(error)
    except (IndexError, ValueError, KeyError, AssertionError) as error:
        outcome.broken = f"{type(error).__name__}: {error}"
    outcome.batches, outcome.transactions = world.reconcile.committed, len(promises.lives.by_key)
    return outcome


def shorter(plan: Plan, fails: Callable[[Plan], bool]) -> Plan:
    """The scenario without the steps that it fails without, too."""
    size = max(1, len(plan.steps) // 2)
    while True:
        at = 0
        before = len(plan.steps)
        while at < len(plan.steps):
            less = replace(plan, steps=(*plan.steps[:at], *plan.steps[at + size :]))
            if fails(less):
                plan = less
            else:
                at += size
        if size == 1 and len(plan.steps) == before:
            return plan
        size = max(1, size // 2)


def plans(seed: int) -> tuple[Scenario, FailoverScenario]:
    """The histories of a seed: of half messages from anywhere, and of a service with several gateways."""
    return scenario(seed), failover(seed)


def report(seed: int) -> str:
    """The shortest failing history of a seed, to be read by a person."""
    one, other = plans(seed)
    return report_of(seed, one) if happen(one).broken else report_of(seed, other)


def report_of(seed: int, plan: Plan) -> str:
    """The shortest history that fails as this one of the seed does."""
    plan = shorter(plan, lambda less: bool(happen(less).broken))
    outcome = happen(plan, tell=True)
    rules = plan.rules
    head = [
        f"SEED={seed}: {outcome.broken}",
        ", ".join(f"{name} {value}" for name, value in vars(rules).items()) + " (times in ms)",
        *(f"transaction {transaction}" for transaction in plan.transactions),
    ]
    return "\n".join([*head, *outcome.lines, outcome.broken])
