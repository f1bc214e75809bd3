"""The circuit breaker of one endpoint: a value, and what becomes of it. No clock, no lock, no I/O.

*Closed*: every try is let in. After ``Limits.failures`` tries in a row that found the endpoint broken it is *open*:
nobody is let in until ``until``. Then it is *half-open*: one try, the trial, is let in; an answer closes the breaker, a
failure opens it anew. Times are seconds since the epoch, because a breaker travels between machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum


class State(Enum):
    """What an endpoint's breaker does with the next try."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    ON_TRIAL = "on trial"  # half-open, and its one try is under way


@dataclass(frozen=True)
class Limits:
    """When a breaker opens, and for how long.

    ``failures`` in a row; ``pause_s`` until the trial; ``trial_s``: after that a trial of which nothing was heard is
    over; ``longest_s``: most that a Retry-After is obeyed.
    """

    failures: int = 10
    pause_s: float = 30.0
    trial_s: float = 5.0
    longest_s: float = 300.0


@dataclass(frozen=True)
class CircuitBreaker:
    """The breaker of an endpoint.

    ``failed``: tries in a row that found it broken. ``until``: left alone until then; 0 = closed. ``trial_until``: a
    trial is under way until then at most. ``asked_for``: it is left alone because it asked for it. ``changed``: when
    something was last learned. ``turn``: grows with each opening and each trial; what a try of an earlier turn brings
    is no news.
    """

    failed: int = 0
    until: float = 0.0
    trial_until: float = 0.0
    asked_for: bool = False
    changed: float = 0.0
    turn: int = 0

    def state(self, now: float, limits: Limits) -> State:
        """What it does at this time. A clock that was set back does not keep it open for longer than was meant."""
        if not self.until:
            return State.CLOSED
        if now < self.until <= now + max(limits.pause_s, limits.longest_s):
            return State.OPEN
        return State.ON_TRIAL if now < self.trial_until <= now + limits.trial_s else State.HALF_OPEN

    def enter(self, now: float, limits: Limits) -> CircuitBreaker | None:
        """The breaker with one more try let in, whose turn is its ``turn``; None = the try is not let in."""
        state = self.state(now, limits)
        if state is State.HALF_OPEN:
            return replace(self, trial_until=now + limits.trial_s, turn=self.turn + 1)
        return self if state is State.CLOSED else None

    def answered(self, now: float, turn: int) -> CircuitBreaker:
        """After a try that found the endpoint well."""
        return CircuitBreaker(changed=now, turn=turn) if turn == self.turn else self

    def broken(self, now: float, turn: int, limits: Limits, retry_after_s: float | None = None) -> CircuitBreaker:
        """After a try that found it broken. ``retry_after_s``: how long it asks to be left alone."""
        after = self
        if turn == self.turn:
            after = replace(self, failed=self.failed + 1, changed=now)
            if self.until or after.failed >= limits.failures:
                after = after._opened(now + limits.pause_s, asked_for=False)
        if retry_after_s is not None and retry_after_s > 0:
            until = now + min(retry_after_s, limits.longest_s)
            if until > after.until:
                after = replace(after._opened(until, asked_for=True), changed=now)
        return after

    def _opened(self, until: float, asked_for: bool) -> CircuitBreaker:
        return replace(self, until=until, trial_until=0.0, asked_for=asked_for, turn=self.turn + 1)
