"""The simulator's histories, replayed by the rules that were in force: with crashes, restarts and rebuilds in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from checkback.reconcile.records.segment_records import Kind
from checkback.reconcile.state import partition_batch
from checkback.what_if.comparison import compare, total
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER
from checkback.what_if.replay import SegmentAnswers, replayed
from checkback.what_if.timeline import Cadence, Timeline
from simulator.lives import SLOTS
from simulator.reconcile import SIZE
from simulator.scheduler import scenario
from simulator.steps import LoseCheckpoint
from simulator.world import World
from what_if.simulated import Engine, segments_of, timeline_of

if TYPE_CHECKING:
    from checkback.reconcile.records.segment_records import Records

pytestmark = pytest.mark.slow


class _History(NamedTuple):
    """What there is of a history in the tables. ``segments``: by queue and number."""

    timeline: Timeline
    segments: dict[tuple[int, int], Records]
    cadence: Cadence
    rebuilt: bool


def _history(seed: int) -> _History:
    plan = scenario(seed, ages=False)
    with patch.object(partition_batch, "SLOTS", SLOTS):
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
    segments = segments_of(world, turns, SIZE)
    needs = np.full(len(timeline), NEVER)
    for rows in segments.values():
        np.minimum(needs, Recorded.of(rows, timeline).needs, out=needs)
    rebuilt = any(planned.restored for planned in world.reconcile.offsets)
    return _History(timeline, segments, Cadence.of(timeline, needs), rebuilt)


@pytest.mark.parametrize(("rebuilt", "share"), [(False, 0.1), (True, 0.25)])
def test_what_happened_is_about_reproduced(rebuilt: bool, share: float) -> None:
    """Most of it, in histories that are made to be difficult; what is not is counted, and not compared.

    Without changes nothing changes.
    """
    reproduced = wrong = 0
    for seed in range(1, 121):
        history = _history(seed)
        if history.rebuilt != rebuilt:
            continue
        timeline = history.timeline
        for (_, number), rows in history.segments.items():
            compared = compare(rows, number * SIZE, SIZE, timeline, timeline.under({}), history.cadence)
            found = total(compared.figures.values())
            assert not len(compared.changes), f"history {seed}"
            assert (found.saved, found.lost, found.otherwise, found.assumed) == (0, 0, 0, 0), f"history {seed}"
            assert found.recorded.states == found.what_if.states
            assert found.recorded.checks == found.what_if.checks
            halves = Recorded.of(rows, timeline).halves
            assert found.recorded.transactions + found.not_reproduced == (halves["kind"] != Kind.MESSAGE).sum()
            reproduced += found.recorded.transactions
            wrong += found.not_reproduced
    print(f"{reproduced} transactions as they happened, {wrong} otherwise")
    assert reproduced > 100
    assert wrong <= share * (reproduced + wrong)


@pytest.mark.parametrize("changes", [{"check_max": 1}, {"timeout": 40}, {"check_interval": 3}])
def test_every_transaction_ends(changes: dict[str, int]) -> None:
    """Under any rules what is decided in the record is in the end, by no more checks than allowed, or by age."""
    for seed in range(1, 13):
        history = _history(seed)
        timeline = history.timeline
        for (_, number), rows in history.segments.items():
            recorded = Recorded.of(rows, timeline)
            changed = timeline.under({"count_undelivered": True, **changes})
            answers = SegmentAnswers(recorded, timeline)
            found = replayed(recorded, answers, number * SIZE, SIZE, changed, history.cadence)
            ended = recorded.outcomes["turn"] < NEVER
            assert (found["state"][ended] > 0).all(), f"history {seed}"
            assert (found["assumed"] <= found["checks"]).all()
            assert np.isin(found["offset"], recorded.halves["offset"]).all()
