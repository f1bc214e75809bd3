"""Histories at random: the promises hold in each, and a fault in the protocol or the engine breaks one soon."""

from __future__ import annotations

import os
from random import Random
from typing import TYPE_CHECKING

import pytest

from checkback.maintain import erasure as erasures
from checkback.maintain import row_retention
from simulator.erasure_mutants import ERASURES, broken_erasure
from simulator.history import happen, report, shorter
from simulator.mutants import (
    ENGINES,
    FAULTS,
    NEXT_FAULTS,
    RESTORE_FAULTS,
    SCHEDULED_FAULTS,
    broken_next,
    broken_restore,
    broken_schedule,
    broken_segment,
)
from simulator.rebuild import Rebuild
from simulator.rebuild_mutants import REBUILDS
from simulator.reconcile import InPieces, Reconcile
from simulator.retention_mutants import RETENTIONS, broken_retention
from simulator.scheduler import scenario

if TYPE_CHECKING:
    from types import ModuleType

pytestmark = pytest.mark.slow

_HISTORIES = 100
#: histories after which a fault must be found
_PATIENCE = 1500
#: by fault that few histories find, one that does: it is tried first
_FINDS = {
    "discard without the last interval": 214,
    "given up at max_age, not after it": 241,
    "never given up": 108,
    "delivered late": 154,
    "birth in the future taken as it is": 22,
    "hostile group's ops take another's place": 29,
    "any of the scheduled ones taken for the next": 40,
    "delivered and still next": 40,
    "no messages finished": 254,
    "no deliveries finished": 659,
    "rules not kept with a batch": 92,
    "max_deliveries not kept with a batch": 425,
    "looked up by numbers alone": 185,
    "rejected ops decide": 1413,
    "floors recede": 1534,
    "the last batch is not waited for": 381,
    "decisions of a batch under way": 359,
    "deliveries of a batch under way": 809,
    "as of the last batch's time": 200128,
}


def _first_broken(
    fault: str,
    engine: type[Reconcile] = Reconcile,
    rebuild: type[Rebuild] | None = None,
    retention: ModuleType | None = None,
    erasure: ModuleType | None = None,
) -> tuple[int, str]:
    """The seed of the first history that breaks a promise, and which.

    Of a ``rebuild``, ``retention`` or ``erasure``: among those that have one.
    """
    for seed in (_FINDS.get(fault, 1), *range(1, _PATIENCE)):
        plan = scenario(seed, retention is not None or erasure is not None, erasure is not None)
        if rebuild is not None and not plan.rebuilt:
            continue
        if retention is not None and not plan.aged:
            continue
        if erasure is not None and not plan.erased:
            continue
        broken = happen(plan, engine, rebuild or Rebuild, retention or row_retention, erasure or erasures).broken
        if broken:
            return seed, broken
    raise AssertionError(f"the fault was not found in {_PATIENCE} histories")


def test_promises_hold_in_histories_at_random() -> None:
    """New ones each time, or that of SEED=n."""
    seed = int(os.environ.get("SEED") or 0)
    first = seed or Random().randrange(1, 10**9)
    for number in range(first, first + (1 if seed else _HISTORIES)):
        if happen(scenario(number)).broken:
            pytest.fail(report(number), pytrace=False)


def test_promises_hold_where_a_backlog_is_read_in_pieces() -> None:
    """Without retention, which takes what landed before the last batch for read (`retention.history`, 30 days)."""
    first = Random().randrange(1, 10**9)
    for number in range(first, first + _HISTORIES):
        plan = scenario(number)
        if not plan.aged and (broken := happen(plan, InPieces).broken):
            pytest.fail(f"history {number}: {broken}", pytrace=False)


@pytest.mark.parametrize("fault", FAULTS)
def test_fault_in_the_protocol_is_found(fault: str) -> None:
    with broken_segment(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken(fault)))}")


@pytest.mark.parametrize("fault", SCHEDULED_FAULTS)
def test_fault_in_what_is_scheduled_is_found(fault: str) -> None:
    with broken_schedule(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken(fault)))}")


@pytest.mark.parametrize("fault", NEXT_FAULTS)
def test_fault_in_the_next_deliveries_is_found(fault: str) -> None:
    with broken_next(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken(fault)))}")


@pytest.mark.parametrize("fault", REBUILDS)
def test_fault_in_a_rebuild_is_found(fault: str) -> None:
    print(f"{fault}: history {' '.join(map(str, _first_broken(fault, rebuild=REBUILDS[fault])))}")


@pytest.mark.parametrize("fault", RESTORE_FAULTS)
def test_fault_in_what_is_restored_is_found(fault: str) -> None:
    with broken_restore(fault):
        print(f"{fault}: history {' '.join(map(str, _first_broken(fault, rebuild=Rebuild)))}")


@pytest.mark.parametrize("fault", RETENTIONS)
def test_fault_in_retention_is_found(fault: str) -> None:
    print(f"{fault}: history {' '.join(map(str, _first_broken(fault, retention=broken_retention(fault))))}")


@pytest.mark.parametrize("fault", ERASURES)
def test_fault_in_an_erasure_is_found(fault: str) -> None:
    print(f"{fault}: history {' '.join(map(str, _first_broken(fault, erasure=broken_erasure(fault))))}")


@pytest.mark.parametrize("fault", ENGINES)
def test_fault_in_the_engine_is_found(fault: str) -> None:
    print(f"{fault}: history {' '.join(map(str, _first_broken(fault, ENGINES[fault])))}")


def test_history_is_the_seeds_and_is_told_in_words() -> None:
    """Twice the same, line by line."""
    one, other = (happen(scenario(7), tell=True) for _ in range(2))
    assert one.lines == other.lines
    assert any("lands" in line for line in one.lines)
    assert any("reconcile, batch" in line for line in one.lines)


def test_failing_history_is_made_shorter_and_still_fails() -> None:
    """What is printed has the steps that are needed, and says the promise."""
    fault = "seen offsets forgotten"
    with broken_segment(fault):
        seed, _ = _first_broken(fault)
        plan = scenario(seed)
        short = shorter(plan, lambda less: bool(happen(less).broken))
        assert 0 < len(short.steps) < len(plan.steps)
        assert happen(short).broken
        text = report(seed)
        assert text.startswith(f"SEED={seed}: P")
        print(text)
    assert not happen(short).broken
