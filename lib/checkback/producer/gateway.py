"""A gateway of several: after a failure it is left alone, until a probe is answered."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import CircuitBreaker, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.producer.gateway_address import Address

_LIMITS = Limits(failures=1, pause_s=1.0, trial_s=2.0)
#: seconds for the reply to a probe
PROBE_S = 1.0
PROBE = "/readyz"


class Gateway:
    """A gateway's address and circuit breaker. Thread-safe. ``only``: there is no other, it is never left alone."""

    def __init__(self, address: Address, *, only: bool, timer: Callable[[], float]) -> None:
        self.address = address
        self.url = address.gateway_url
        self.only = only
        self._timer = timer
        self.begin()

    def begin(self) -> None:
        """Begin anew, in the child of a fork."""
        self._lock = Lock()
        self._breaker = CircuitBreaker()

    def is_left_alone(self) -> bool:
        """Has it failed, and not answered a probe since?"""
        return self._breaker.until != 0

    def failed(self, turn: int | None = None) -> None:
        """It gave no reply, or none of its own; ``turn``: to this probe."""
        if self.only:
            return
        with self._lock:
            now, breaker = self._timer(), self._breaker
            if turn is not None or not breaker.until:
                self._breaker = breaker.broken(now, breaker.turn if turn is None else turn, _LIMITS)

    def probe_due(self) -> int | None:
        """The turn of a probe that is to be sent now; None: not yet, or another thread's is on its way."""
        with self._lock:
            entered = self._breaker.enter(self._timer(), _LIMITS) if self._breaker.until else None
            if entered is None:
                return None
            self._breaker = entered
            return entered.turn

    def answered(self, turn: int) -> None:
        """It has answered the probe."""
        with self._lock:
            self._breaker = self._breaker.answered(self._timer(), turn)
