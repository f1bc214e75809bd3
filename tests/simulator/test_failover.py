"""Histories of services with several gateways: each transaction is published once, and faults in that are found."""

from __future__ import annotations

import os
from random import Random

import pytest

from simulator.failover import SendHalf, failover
from simulator.failover_mutants import BARRIERS, SERVICES, broken_barrier
from simulator.history import happen, report_of
from simulator.services import Service

pytestmark = pytest.mark.slow

_HISTORIES = 250
#: histories after which a fault must be found
_PATIENCE = 1500
#: by fault that few histories find, one that does
_FINDS = {"ROLLBACK without a mark": 196}


def _first_broken(service: type[Service] = Service, first: int = 1) -> tuple[int, str]:
    """The seed of the first history that breaks a promise, and which. ``first``: one that is tried first."""
    for seed in (first, *range(1, _PATIENCE)):
        broken = happen(failover(seed, service)).broken
        if broken:
            return seed, broken
    raise AssertionError(f"the fault was not found in {_PATIENCE} histories")


def test_promises_hold_in_histories_at_random() -> None:
    """New ones each time, or that of SEED=n."""
    seed = int(os.environ.get("SEED") or 0)
    first = seed or Random().randrange(1, 10**9)
    for number in range(first, first + (1 if seed else _HISTORIES)):
        if happen(failover(number)).broken:
            pytest.fail(report_of(number, failover(number)), pytrace=False)


@pytest.mark.parametrize("fault", SERVICES)
def test_fault_in_a_listener_is_found(fault: str) -> None:
    print(f"{fault}: history {' '.join(map(str, _first_broken(SERVICES[fault], _FINDS.get(fault, 1))))}")


@pytest.mark.parametrize("fault", BARRIERS)
def test_fault_in_the_barrier_is_found(fault: str) -> None:
    with broken_barrier(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken()))}")


def test_all_kinds_of_trouble_happen() -> None:
    """Else the histories would prove nothing."""
    missing = {"sent again elsewhere", "no answer", "unverified", "repeated", "contradiction", "dies in the middle"}
    missing |= {"is lost", "is barred, COMMIT", "is barred, ROLLBACK", "queue_full", "wrong_group", "rebuilt"}
    for seed in range(1, 200):
        plan = failover(seed)
        lines = happen(plan, tell=True).lines
        if any(isinstance(step, SendHalf) and len({queue for queue, _ in step.attempts}) > 1 for step in plan.steps):
            missing.discard("sent again elsewhere")
        missing -= {text for text in missing if any(text in line for line in lines)}
        if not missing:
            print(f"after {seed} histories")
            return
    raise AssertionError(missing)
