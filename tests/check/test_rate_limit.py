"""Groups with a limit: never faster, never slower than they must be, and nobody else waits for them."""

from __future__ import annotations

from collections import Counter, defaultdict
from contextlib import closing
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import request
from check.test_fair_scheduler import requests_of
from checkback.check.connections import Connections
from checkback.check.endpoint_health import Rate, RateState
from checkback.check.fair_scheduler import ActiveCheck, CheckScheduler, run_checks
from checkback.check.wire import CheckAnswer

if TYPE_CHECKING:
    from checkback.check.fair_scheduler import Dialogue
    from checkback.check.wire import CheckRequest

ANSWER = CheckAnswer("UNKNOWN", "http://127.0.0.1/", None, 1, datetime(2026, 1, 1, tzinfo=timezone.utc))
NOON = 1_795_176_000.0
rates = st.builds(Rate, st.floats(0.1, 1000), st.integers(1, 50).map(float))


@given(rates, st.lists(st.floats(0, 3), max_size=60))
def test_pace_is_never_faster_than_the_rate(rate: Rate, gaps: list[float]) -> None:
    """In any stretch of time: at most the burst, and per_second for each second."""
    now, pace, sent = NOON, RateState(), []
    for number, gap in enumerate(gaps):
        now += gap + pace.wait(now + gap, rate)
        pace = pace.sent(now, rate, f"check {number}")
        sent.append(now)
    for first, begin in enumerate(sent):
        for last, end in enumerate(sent[first:], start=1):
            assert last <= rate.burst + (end - begin + 2e-4) * rate.per_second + 1e-3


@given(rates)
def test_pace_wastes_little(rate: Rate) -> None:
    """As many at once as the burst says; then a tenth slower than the rate at most."""
    now, pace = NOON, RateState()
    for number in range(200):
        wait = pace.wait(now, rate)
        assert wait == 0 if number < rate.burst else wait <= 1.1 / rate.per_second + 2e-4
        now += wait
        pace = pace.sent(now, rate, f"check {number}")
    assert now - NOON <= (200 - rate.burst + 20) * 1.1 / rate.per_second


def test_pace_survives_a_clock_that_is_set_back() -> None:
    rate = Rate(2, 4)
    assert RateState(used_until=NOON + 1e9).wait(NOON, rate) <= 1.1 / 2


class Storm:
    """A clock of its own: time goes on only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = NOON
        self.sent: dict[str, list[float]] = defaultdict(list)

    def begin(self, asked: CheckRequest) -> Dialogue:
        self.sent[asked.producer_group].append(self.now)
        yield from ()  # answered at once
        return ANSWER

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, scheduler: CheckScheduler) -> None:
        with closing(Connections[ActiveCheck](5, None)) as connections:
            run_checks(self.begin, scheduler, connections, 1, clock=lambda: self.now, sleep=self.sleep)


@pytest.mark.slow
def test_storm_after_an_outage_is_spread_and_ends() -> None:
    """50,000 checks due at once: their group is asked at its pace, the others at once, and the batch has an end.

    What was left comes again, another part of it first.
    """
    rates, paces = {"slow": Rate(100, 10)}, None
    asked: Counter[str] = Counter()
    for times in range(1, 4):
        storm = Storm()
        storm.now = NOON + 60 * times
        requests = [request(group="slow", offset=offset, times=times) for offset in range(50_000)]
        requests += requests_of(well=1000, other=10)
        scheduler = CheckScheduler(requests, rates, paces, until=storm.now + 30)
        storm.run(scheduler)
        assert storm.sent["well"] == [NOON + 60 * times] * 1000
        assert storm.sent["other"] == [NOON + 60 * times] * 10
        assert 30 * 100 / 1.1 <= len(storm.sent["slow"]) <= 30 * 100 + 10
        assert storm.now == NOON + 60 * times + 30
        left = {one.queue_offset for one in scheduler.left()}
        assert len(left) + len(storm.sent["slow"]) == 50_000
        asked.update(str(offset) for offset in range(50_000) if offset not in left)
        paces = scheduler.paces()
    assert max(asked.values()) < 3  # not the same ones first each time
    assert len(asked) > 3 * 2600


def test_limit_goes_on_from_batch_to_batch() -> None:
    """A batch that follows at once has no second burst."""
    storm, rates = Storm(), {"slow": Rate(1, 5)}
    scheduler = CheckScheduler(requests_of(slow=5), rates)
    storm.run(scheduler)
    assert storm.sent["slow"] == [NOON] * 5
    storm.run(CheckScheduler([request(group="slow", offset=99)], rates, scheduler.paces()))
    assert NOON + 1 <= storm.sent["slow"][-1] <= NOON + 1.6


def test_limit_is_shared_by_tasks() -> None:
    assert Rate(10, 4).shared(2) == Rate(5, 2)
    assert Rate(1, 1).shared(4) == Rate(0.25, 1)
