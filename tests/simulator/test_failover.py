"""Histories of services with several gateways: each transaction is published once, and faults in that are found."""

from __future__ import annotations

import os
from collections import Counter
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


def _first_broken(service: type[Service] = Service) -> tuple[int, str]:
    """The seed of the first history that breaks a promise, and which."""
    for seed in range(1, _PATIENCE):
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
    print(f"{fault}: history {' '.join(map(str, _first_broken(SERVICES[fault])))}")


@pytest.mark.parametrize("fault", BARRIERS)
def test_fault_in_the_barrier_is_found(fault: str) -> None:
    with broken_barrier(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken()))}")


def test_all_kinds_of_trouble_happen() -> None:
    """Else the histories would prove nothing."""
    told = Counter[str]()
    for seed in range(1, 200):
        plan = failover(seed)
        lines = happen(plan, tell=True).lines
        told["sent again elsewhere"] += any(
            isinstance(step, SendHalf) and len({queue for queue, _ in step.attempts}) > 1 for step in plan.steps
        )
        for text in ("no answer", "unverified", "repeated", "contradiction", "dies in the middle", "is lost"):
            told[text] += any(text in line for line in lines)
        for text in ("is barred, COMMIT", "is barred, ROLLBACK", "queue_full", "wrong_group", "rebuilt"):
            told[text] += any(text in line for line in lines)
    print(dict(told))
    assert all(told.values())
