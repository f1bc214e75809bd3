"""Ranges of offsets that files are skipped by."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from checkback.storage.offset_ranges import Range, merge_ranges

spans = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 200), st.integers(0, 20)).map(lambda s: Range(s[0], s[1], s[1] + s[2]))
)


@given(spans, st.integers(1, 5))
def test_merged_ranges_cover_all_and_stay_few(content: list[Range], most: int) -> None:
    """Every offset is covered, ranges do not touch, and there are more than asked for only if queues are."""
    merged = merge_ranges(content, most)
    for span in content:
        assert any(r.queue_id == span.queue_id and r.first <= span.first and span.last <= r.last for r in merged)
    assert len(merged) <= max(most, len({span.queue_id for span in content}))
    for before, after in pairwise(merged):
        assert before.queue_id < after.queue_id or before.last + 1 < after.first


def test_nearest_ranges_are_merged_first() -> None:
    """The gap that costs least is read."""
    content = [Range(0, 0, 9), Range(0, 100, 109), Range(0, 112, 119), Range(1, 0, 5)]
    assert merge_ranges(content, 3) == [Range(0, 0, 9), Range(0, 100, 119), Range(1, 0, 5)]
    assert merge_ranges(content, 4) == content


def test_touching_ranges_are_one() -> None:
    """No gap, no second range."""
    assert merge_ranges([Range(0, 10, 19), Range(0, 0, 9), Range(0, 5, 12)], 9) == [Range(0, 0, 19)]
