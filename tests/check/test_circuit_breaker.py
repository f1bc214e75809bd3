"""The breaker against a model that keeps its whole history, and what each state lets through."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.check.circuit_breaker import CircuitBreaker, Limits, State

LIMITS = Limits(failures=3, pause_s=10, trial_s=4, longest_s=30)

#: (seconds since the last step, what happens, which of the tries under way it is about, Retry-After)
steps = st.lists(
    st.tuples(
        st.integers(0, 12),
        st.sampled_from(["enter", "enter", "enter", "answered", "broken", "broken"]),
        st.integers(0, 5),
        st.sampled_from([None, None, None, 1, 7, 1000]),
    ),
    max_size=60,
)


@dataclass
class Model:
    """The breaker as a story of eras: every opening and every trial begins one, and a try belongs to its own."""

    era: int = 0
    failures: int = 0
    closed: bool = True
    reopens: int = 0
    trial_began: int | None = None
    under_way: list[int] = field(default_factory=list)

    def enter(self, now: int) -> bool:
        if not self.closed:
            if now < self.reopens or (self.trial_began is not None and now < self.trial_began + 4):
                return False
            self.trial_began = now
            self.era += 1
        self.under_way.append(self.era)
        return True

    def outcome(self, now: int, era: int, well: bool, retry_after: int | None) -> None:
        if era == self.era and well:
            self.failures, self.closed, self.trial_began = 0, True, None
            return
        if era == self.era:
            self.failures += 1
        asked = now + min(retry_after or 0, 30)
        if not well and retry_after and (era == self.era or asked > self.reopens):
            self.open(asked)
        elif era == self.era and not retry_after and (not self.closed or self.failures >= 3):
            self.open(now + 10)

    def open(self, until: int) -> None:
        self.closed, self.reopens, self.trial_began = False, until, None
        self.era += 1


@given(steps)
def test_breaker_does_what_the_model_does(history: list[tuple[int, str, int, int | None]]) -> None:
    """Whoever tries, and whenever their outcomes come."""
    now, breaker, model = 1_000, CircuitBreaker(), Model()
    scheduler: list[int] = []
    for later, event, which, retry_after in history:
        now += later
        if event == "enter":
            entered = breaker.enter(now, LIMITS)
            assert (entered is not None) == model.enter(now)
            if entered is not None:
                breaker = entered
                scheduler.append(entered.turn)
        elif scheduler:
            turn, era = scheduler.pop(which % len(scheduler)), model.under_way.pop(which % len(model.under_way))
            well = event == "answered"
            model.outcome(now, era, well, retry_after)
            breaker = breaker.answered(now, turn) if well else breaker.broken(now, turn, LIMITS, retry_after)
        assert (breaker.state(now, LIMITS) is State.CLOSED) == model.closed
        if not model.closed:
            assert (breaker.state(now, LIMITS) is State.OPEN) == (now < model.reopens)


@given(steps)
def test_endpoint_that_is_down_gets_few_tries(history: list[tuple[int, str, int, int | None]]) -> None:
    """However often somebody wants to try: the failures that open it, then at most one a pause."""
    now, breaker, let_in = 0, CircuitBreaker(), []
    for later, *_ in history * 3:
        now += later
        entered = breaker.enter(now, LIMITS)
        if entered is not None:
            let_in.append(now)
            breaker = entered.broken(now, entered.turn, LIMITS)
    assert all(b - a >= LIMITS.pause_s for a, b in pairwise(let_in[2:]))


def failed(times: int, at: float = 0, limits: Limits = LIMITS) -> CircuitBreaker:
    breaker = CircuitBreaker()
    for _ in range(times):
        breaker = breaker.broken(at, breaker.turn, limits)
    return breaker


@pytest.mark.parametrize(
    ("breaker", "now", "state"),
    [
        (CircuitBreaker(), 0, State.CLOSED),
        (failed(2), 0, State.CLOSED),
        (failed(3), 0, State.OPEN),
        (failed(3), 9.9, State.OPEN),
        (failed(3), 10, State.HALF_OPEN),
        (failed(3, at=1e9), 10, State.HALF_OPEN),  # the clock was set back: not for years
        (replace(failed(3), trial_until=14.0), 13, State.ON_TRIAL),
        (replace(failed(3), trial_until=14.0), 14, State.HALF_OPEN),  # the trial was never heard of again
    ],
)
def test_state(breaker: CircuitBreaker, now: float, state: State) -> None:
    assert breaker.state(now, LIMITS) is state


def test_late_outcomes_of_tries_before_it_opened_are_no_news() -> None:
    """Of twenty that fail together the first three open it; the others neither prolong the pause nor close it."""
    breaker = failed(3)
    assert breaker.broken(5, 0, LIMITS).answered(5, 0) == breaker
