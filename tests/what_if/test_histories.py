"""The simulator's histories, replayed by the rules that were in force: with crashes, restarts and rebuilds in them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from checkback.reconcile.records.records import Kind
from checkback.reconcile.state import timer_encoding
from checkback.what_if import changed_replay, silent_checks
from checkback.what_if.changed_replay import under
from checkback.what_if.comparison import compare
from checkback.what_if.figures import total
from checkback.what_if.recorded_replay import as_recorded
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER
from checkback.what_if.timeline import Cadence, Needs, Timeline
from simulator.lives import SLOTS
from simulator.reconcile import SIZE
from simulator.scheduler import scenario
from simulator.steps import LoseCheckpoint
from simulator.world import World
from what_if.simulated import Engine, segments_of, timeline_of

if TYPE_CHECKING:
    from checkback.reconcile.records.records import Records

pytestmark = pytest.mark.slow

_SAME = ["state", "source", "reason", "checks", "turn", "cancelled", "delivered"]
#: The last are of batches that died in a row, or while something was due; and one, where it is estimated what batches
#: read, in which only the first of the two replays comes to what happened.
_HISTORIES = (*range(1, 61), 87, 1948, 2529, 585)


class _History(NamedTuple):
    """What there is of a history in the tables. ``segments``: by first offset, of each queue."""

    world: World
    timeline: Timeline
    turns: dict[int, int]
    segments: dict[tuple[int, int], Records]


def _history(seed: int, told: bool = False) -> _History:
    plan = scenario(seed)
    with patch.object(timer_encoding, "SLOTS", SLOTS):
        world = World(plan.rules, plan.transactions)
        world.reconcile = Engine(world.tables, plan.rules)
        world.reconcile.together = plan.rebuilt
        for step in plan.steps:
            # Which transactions were visited together depends on the size of the segments.
            (step._replace(size=SIZE) if isinstance(step, LoseCheckpoint) else step).apply(world)
        world.settle(lambda: True)
        for _ in range(12):
            world.clock = max(world.clock + 1, world.next_timer() or 0)
            world.decide()
            world.ask()
            world.decide()
    timeline, turns = timeline_of(world)
    return _History(world, timeline, turns, segments_of(world, turns, SIZE, told))


def _differences(found: Records, recorded: Recorded) -> list[int]:
    """Offsets of the transactions with which something else happened."""
    return [int(one["offset"]) for one, was in zip(found, recorded.outcomes, strict=True) if one[_SAME] != was[_SAME]]


@patch.object(timer_encoding, "SLOTS", SLOTS)
@pytest.mark.parametrize("told", [False, True], ids=["estimated", "told what each batch read"])
def test_what_happened_is_reproduced(told: bool) -> None:
    """All of it where the batches tell what they read; else all but one in fifty.

    And without changes nothing changes: a transaction that comes to something else is not compared, but counted.
    """
    right = wrong = not_compared = 0
    for seed in _HISTORIES:
        history = _history(seed, told)
        timeline, needs, parts = history.timeline, Needs.none(len(history.timeline)), []
        for (_, number), rows in history.segments.items():
            recorded = Recorded.of(rows, timeline)
            assert recorded.told.all() == told or not len(recorded.halves)
            found = as_recorded(recorded, number * SIZE, SIZE, timeline)
            needs.join(found.needs)
            parts.append((recorded, number * SIZE, found, rows))
        cadence = Cadence.of(timeline, needs)
        for recorded, base, found, rows in parts:
            not_compared += _compared_with_itself(rows, base, timeline, cadence, f"history {seed}")
            differences = _differences(found.outcomes, recorded)
            if told and differences:
                print(f"history {seed}: {differences} of {base}")
            wrong += len(differences)
            right += len(recorded.halves) - len(differences)
            if not differences and (told or not len(timeline.rebuilt)):
                again = under(recorded, base, SIZE, timeline, timeline.under({}), found.deferred, cadence)
                ended = recorded.outcomes["turn"] < NEVER
                assert again[ended].tolist() == found.outcomes[ended].tolist(), f"history {seed}"
    print(f"{right} transactions as they happened, {wrong} otherwise; {not_compared} not compared")
    assert right > 150
    assert wrong <= (0 if told else right // 50)
    assert not_compared <= (0 if told else right // 25)


def _compared_with_itself(rows: Records, base: int, timeline: Timeline, cadence: Cadence, where: str) -> int:
    """How many transactions are not compared; the others are the same on both sides, without any change of rules."""
    compared = compare(rows, base, SIZE, timeline, timeline.under({}), cadence)
    found = total(compared.figures.values())
    assert not len(compared.changes), where
    assert (found.saved, found.lost, found.otherwise, found.assumed) == (0, 0, 0, 0), where
    assert found.to_json() == replace(found, what_if=found.recorded).to_json(), where
    halves = Recorded.of(rows, timeline).halves
    assert found.recorded.transactions + found.not_reproduced == (halves["kind"] != Kind.MESSAGE).sum(), where
    return found.not_reproduced


@pytest.mark.parametrize(
    "changes",
    [
        *({"check_max": 1}, {"check_max": 200}, {"check_max": 200, "reserved": 5_000}),
        *({"count_undelivered": False}, {"count_undelivered": False, "check_interval": 3, "reserved": 9_000}),
    ],
)
@pytest.mark.parametrize("lag", [0, 1, 7])
def test_checks_that_are_passed_over_would_have_brought_nothing(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], lag: int
) -> None:
    """Played one by one it comes to the same, to the millisecond."""
    passed = 0

    def played(pending: Records, *_: Any) -> Any:
        return np.zeros(len(pending), np.int64)

    for seed in range(1, 13):
        history = _history(seed)
        timeline = history.timeline
        changed, cadence = timeline.under(changes), Cadence(np.zeros(len(timeline), np.int64), lag, lag)
        for (_, number), rows in history.segments.items():
            recorded = Recorded.of(rows, timeline)
            deferred = as_recorded(recorded, number * SIZE, SIZE, timeline).deferred

            def found() -> Any:
                return under(recorded, number * SIZE, SIZE, timeline, changed, deferred, cadence)  # noqa: B023

            with monkeypatch.context() as counting:
                counted: list[int] = []
                passes = silent_checks.silent_checks
                counting.setattr(changed_replay, "silent_checks", lambda *a: _noted(passes(*a), counted))  # noqa: B023
                quick = found()
            passed += sum(counted)
            with monkeypatch.context() as slow:
                slow.setattr(changed_replay, "silent_checks", played)
                assert quick.tolist() == found().tolist(), f"history {seed}"
    assert passed > 0 or changes.get("check_max") != 200  # whoever was asked then has received it


def _noted(checks: Any, counted: list[int]) -> Any:
    counted.append(int(checks.sum()))
    return checks


@pytest.mark.parametrize(
    "changes", [{"check_max": 1}, {"timeout": 40}, {"check_interval": 3}, {"count_undelivered": False}]
)
def test_every_transaction_ends(changes: dict[str, Any]) -> None:
    """Under any rules what is decided in the record is in the end, by no more checks than allowed, or by age."""
    for seed in range(1, 13):
        history = _history(seed)
        timeline = history.timeline
        changed, nothing = timeline.under(changes), Needs.none(len(timeline))
        for (_, number), rows in history.segments.items():
            recorded = Recorded.of(rows, timeline)
            deferred = as_recorded(recorded, number * SIZE, SIZE, timeline).deferred
            found = under(recorded, number * SIZE, SIZE, timeline, changed, deferred, Cadence.of(timeline, nothing))
            ended = recorded.outcomes["turn"] < NEVER
            assert (found["state"][ended] > 0).all(), f"history {seed}"
            assert (found["assumed"] <= found["checks"]).all()
            assert np.isin(found["offset"], recorded.halves["offset"]).all()
