"""Intervals for plots, and durations in words."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.query.time_series import LENGTHS, MOST, in_words, interval_for


@given(st.timedeltas(timedelta(0), timedelta(days=5000)))
def test_interval_is_the_shortest_usual_one_that_fits(span: timedelta) -> None:
    found = interval_for(span)
    assert span <= MOST * found
    shorter = [length for length in LENGTHS if length < found]
    assert all(span > MOST * length for length in shorter)
    assert found in LENGTHS or found % timedelta(days=1) == timedelta(0)


def test_intervals_begin_at_round_times() -> None:
    """Each length divides the day, so that intervals counted from 1970 on begin where people expect it."""
    assert all(timedelta(days=1) % length == timedelta(0) for length in LENGTHS)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (0.44, "0.4 s"), (90, "90 s"), (600, "10 min"), (9000, "2.5 h"), (86400 * 4, "4 d")],
)
def test_durations_are_said_as_people_do(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
