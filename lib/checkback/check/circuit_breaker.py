"""The circuit breaker of one endpoint: an immutable value and its transitions. No clock, no lock, no I/O.

*Closed*: every try is allowed. After ``Limits.failures`` consecutive failures it is *open*: no try is allowed until
``until``. Then it is *half-open*: one try, the probe (trial), is allowed; an answer closes the breaker, a failure opens
it again. Times are seconds since the epoch, because a breaker is passed between machines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.settings import Settings

#: so that a pause takes effect within a batch
_LEAST_PAUSE = timedelta(milliseconds=250)


class State(Enum):
    """The state of an endpoint's breaker."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"
    ON_TRIAL = "on trial"  # half-open, and its probe is in flight


@dataclass(frozen=True)
class Limits:
    """When a breaker opens, and for how long.

    ``failures``: consecutive ones; ``pause_s``: until the probe; ``trial_s``: timeout of a probe without a result;
    ``longest_s``: cap on Retry-After.
    """

    failures: int = 10
    pause_s: float = 30.0
    trial_s: float = 5.0
    longest_s: float = 300.0


def limits_of(settings: Settings) -> Limits:
    """The limits of the settings.

    The pause is at most half of check_interval: the next checks due then find the breaker half-open, and none is
    wasted on an open one. But it is long enough to take effect within a batch.
    """
    check = settings.check
    pause = min(check.breaker_pause, max(settings.transaction.check_interval / 2, _LEAST_PAUSE))
    return Limits(
        failures=check.breaker_failures,
        pause_s=pause.total_seconds(),
        trial_s=check.timeout.total_seconds() + 1,
        longest_s=check.retry_after_max.total_seconds(),
    )


@dataclass(frozen=True)
class CircuitBreaker:
    """The breaker of an endpoint.

    ``failed``: consecutive failures. ``until``: open until then; 0 = closed. ``trial_until``: deadline of the probe in
    flight. ``asked_for``: opened by Retry-After. ``changed``: time of the last update. ``turn``: a generation, which
    each opening and each probe increments; the result of a try of an earlier one is stale and ignored.
    """

    failed: int = 0
    until: float = 0.0
    trial_until: float = 0.0
    asked_for: bool = False
    changed: float = 0.0
    turn: int = 0

    def state(self, now: float, limits: Limits) -> State:
        """The state at this time. A clock that was set back does not keep it open longer than intended."""
        if not self.until:
            return State.CLOSED
        if now < self.until <= now + max(limits.pause_s, limits.longest_s):
            return State.OPEN
        return State.ON_TRIAL if now < self.trial_until <= now + limits.trial_s else State.HALF_OPEN

    def enter(self, now: float, limits: Limits) -> CircuitBreaker | None:
        """The breaker after it allowed a try, whose generation is its ``turn``; None = the try is not allowed."""
        state = self.state(now, limits)
        if state is State.HALF_OPEN:
            return replace(self, trial_until=now + limits.trial_s, turn=self.turn + 1)
        return self if state is State.CLOSED else None

    def answered(self, now: float, turn: int) -> CircuitBreaker:
        """The breaker after a successful try."""
        return CircuitBreaker(changed=now, turn=turn) if turn == self.turn else self

    def broken(self, now: float, turn: int, limits: Limits, retry_after_s: float | None = None) -> CircuitBreaker:
        """The breaker after a failed try. ``retry_after_s``: the endpoint's, instead of a pause of its own."""
        news = turn == self.turn
        after = replace(self, failed=self.failed + 1, changed=now) if news else self
        if retry_after_s is not None:
            until = now + min(retry_after_s, limits.longest_s)
            return replace(after._opened(until, asked_for=True), changed=now) if news or until > self.until else self
        if news and (self.until or after.failed >= limits.failures):
            return after._opened(now + limits.pause_s, asked_for=False)
        return after

    def _opened(self, until: float, asked_for: bool) -> CircuitBreaker:
        return replace(self, until=until, trial_until=0.0, asked_for=asked_for, turn=self.turn + 1)
