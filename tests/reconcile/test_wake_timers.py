"""When a batch is asked for: at the first timer of all segments, known or told; a model in plain Python beside it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.records.actions import SEGMENT
from checkback.reconcile.state.state_codec import AT_ONCE
from checkback.reconcile.state.wake_timers import WakeTimers

_KEYS = st.tuples(st.integers(0, 1), st.integers(0, 2))
_BATCH = st.dictionaries(_KEYS, st.integers(-1, 50), max_size=4)


def _records(batch: dict[tuple[int, int], int], batch_time: int = 0) -> np.ndarray:
    return np.array([(queue, segment, 1, 0, 1, wake, batch_time) for (queue, segment), wake in batch.items()], SEGMENT)


def _timers(batch: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """What was put off at 0 is due from the next ms on."""
    return {key: 1 if wake == AT_ONCE else wake for key, wake in batch.items()}


@given(st.dictionaries(_KEYS, st.integers(0, 50)), st.lists(_BATCH, max_size=4), st.lists(_BATCH, max_size=4))
def test_batch_is_asked_for_at_the_first_timer(
    before: dict[tuple[int, int], int], early: list[dict[tuple[int, int], int]], late: list[dict[tuple[int, int], int]]
) -> None:
    """Batches may tell before the checkpoint does: theirs is newer. Until it has, one is asked for at any time."""
    wakes, model = WakeTimers(), dict(before)
    assert not wakes.wants_to_know
    for batch in early:
        wakes.update(_records(batch))
        model |= _timers(batch)
        assert wakes.due(-5)
    assert wakes.wants_to_know == bool(early)
    wakes.know((*key, at + later) for key, at in before.items() for later in (9, 0, 30))  # a segment may have several
    assert not wakes.wants_to_know
    for batch in late:
        wakes.update(_records(batch))
        model |= _timers(batch)
    wakes.update(_records({}))
    first = min((at for at in model.values() if at >= 0), default=None)
    if first is None:
        assert not wakes.due(10**6)
        return
    assert not wakes.due(first - 1)
    assert wakes.due(first)


def test_batch_is_asked_for_once() -> None:
    """Until one is done: what it told may still be to do."""
    wakes = WakeTimers()
    wakes.know([(0, 0, 7)])
    assert [wakes.due(7), wakes.due(8)] == [True, False]
    wakes.update(_records({}))
    assert wakes.due(8)
    wakes.update(_records({(0, 0): 20}))
    assert not wakes.due(19)


def test_checks_that_are_put_off_are_due_at_once() -> None:
    wakes = WakeTimers()
    wakes.know([])
    wakes.update(_records({(0, 0): 50, (0, 1): AT_ONCE}))
    assert (wakes.at_once(1), wakes.due(1)) == (True, True)
    wakes.update(_records({(0, 1): 60}))
    assert (wakes.at_once(49), wakes.due(49)) == (False, False)


def test_where_the_clock_was_set_back_nothing_is_due_before_it_is_there_again() -> None:
    """A batch before then fires no timer and would put the checks off again, and again."""
    wakes = WakeTimers()
    wakes.know([])
    wakes.update(_records({(0, 1): AT_ONCE}, batch_time=1000))
    assert (wakes.at_once(400), wakes.due(400)) == (False, False)
    assert (wakes.at_once(1000), wakes.due(1000)) == (False, False)
    assert (wakes.at_once(1001), wakes.due(1001)) == (True, True)


def test_batch_is_asked_for_when_a_topics_table_is_tried_again() -> None:
    """Once, and no more when nothing waits for one."""
    wakes = WakeTimers()
    wakes.know([(0, 0, 90)])
    wakes.update(_records({}), next_try=30)
    assert wakes.next_try == 30
    assert [wakes.due(29), wakes.due(30), wakes.due(31)] == [False, True, False]
    wakes.update(_records({}), next_try=None)
    assert [wakes.due(89), wakes.due(90)] == [False, True]


def test_table_of_a_topic_is_tried_again_when_the_clock_is_set_back() -> None:
    """As the retry is due then (`unpublished.Waiting.due`): once, and for nothing else."""
    wakes = WakeTimers()
    wakes.know([(0, 0, 5000)])
    assert [wakes.due(1000), wakes.due(400)] == [False, False]
    wakes.update(_records({}), next_try=2000)
    assert [wakes.due(1000), wakes.due(300), wakes.due(200)] == [False, True, False]
    wakes.update(_records({}), next_try=700)
    assert [wakes.due(300), wakes.due(699), wakes.due(700)] == [False, False, True]


def test_topics_that_were_put_off_are_due_at_once() -> None:
    wakes = WakeTimers()
    wakes.update(_records({}), next_try=0)
    assert wakes.at_once(1)
    wakes.update(_records({}), next_try=5)
    assert not wakes.at_once(6)
