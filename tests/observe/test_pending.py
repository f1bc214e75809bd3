"""The count of what is pending, from what segments say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkback.observe.counts import OTHER, PendingCount
from checkback.reconcile.records.actions import AS_BEFORE, SEGMENT

_PENDING = st.integers(0, 5) | st.just(AS_BEFORE)
_TOLD = st.tuples(
    st.integers(0, 2), st.integers(0, 3), _PENDING, st.integers(0, 3), st.integers(1, 100), st.just(-1), st.just(0)
)


@given(st.lists(st.lists(_TOLD, unique_by=lambda told: told[:2], max_size=6), max_size=10))
def test_the_last_word_of_each_segment_counts(batches: list[list[tuple[int, int, int, int, int, int, int]]]) -> None:
    found = PendingCount()
    last: dict[tuple[int, int], tuple[int, int, int]] = {}
    for batch in batches:
        found.update(np.array(batch, SEGMENT))
        last |= {
            (queue, segment): (pending, oldest, scheduled)
            for queue, segment, pending, scheduled, oldest, _, _ in batch
            if pending != AS_BEFORE
        }
    there = [(pending, oldest) for pending, oldest, _ in last.values() if pending]
    oldest = min((oldest for _, oldest in there), default=None)
    assert found.by_group() == {OTHER: (sum(pending for pending, _ in there), oldest)}
    assert found.scheduled == sum(scheduled for _, _, scheduled in last.values())
