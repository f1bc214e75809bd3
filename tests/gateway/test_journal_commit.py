"""Which commits to the journal the loop makes itself; no disk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.journal.journal_commit import _HELD_UP_S, _LEFT_S, _SHORT_S, _SMALL, InLoop


def test_small_commits_are_made_in_the_loop_while_the_disk_is_fast() -> None:
    in_loop = InLoop()
    for number in range(1000):
        assert in_loop.fits(_SMALL, number)
        in_loop.took(_SHORT_S, number)
    assert not in_loop.fits(_SMALL + 1, 1000)


def test_one_slow_flush_of_many_changes_nothing() -> None:
    in_loop = InLoop()
    for number in range(1000):
        in_loop.took(_HELD_UP_S, number)
        in_loop.took(_SHORT_S, number)
        assert in_loop.fits(1, number)


@given(st.lists(st.floats(2 * _SHORT_S, 1.0), min_size=200, max_size=200))
def test_a_slow_disk_holds_up_the_loop_for_a_bounded_part_of_the_time(seconds: list[float]) -> None:
    in_loop, now, held_up = InLoop(), 0.0, 0.0
    for took in seconds:
        inside = in_loop.fits(1, now)
        now += took
        if inside:
            held_up += took
            in_loop.took(took, now)
    longest = max(seconds)
    assert held_up <= (now / _LEFT_S + 1) * (_HELD_UP_S + longest)
