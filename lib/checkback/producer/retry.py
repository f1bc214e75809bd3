"""Retry policy of requests to the gateway: the decision only, the caller waits. No network, no clock."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from random import random

from urllib3 import Retry
from urllib3.exceptions import InvalidHeader

from checkback.errors import SettingsError
from checkback.messages.durations import seconds_of
from checkback.producer.responses import TRY_AGAIN, Reply, may_have_landed

_LEAST = 0.001
#: seconds: the longest backoff
_BACKOFF_S = 2.0
#: seconds; no lock or socket waits longer than some years
MOST_S = 86_400.0


@dataclass(frozen=True)
class RetryPolicy:
    """How long requests may take.

    ``timeout``: one attempt, from connecting to the last byte; ``total_timeout``: all attempts and the backoff between
    them. Attempts are made until then, however many. Raises SettingsError for a negative time, TypeError for a
    plain number.
    """

    timeout: timedelta = timedelta(seconds=5)
    total_timeout: timedelta = timedelta(seconds=15)

    def __post_init__(self) -> None:
        for name in ("timeout", "total_timeout"):
            if seconds_of(name, getattr(self, name)) < 0:
                raise SettingsError("is negative", name, "give a timedelta of zero or more")


class Attempts:
    """The attempts of one request, and the backoff after each. Times are monotonic, in seconds.

    The backoff is urllib3's: 0, then 0.2 s, 0.4 s, ... plus up to 0.1 s jitter, up to 2 s.
    """

    def __init__(self, retry_policy: RetryPolicy, now: float) -> None:
        self._backoff = 0.0
        #: when all attempts must have ended
        self.until = now + retry_policy.total_timeout.total_seconds()
        #: an attempt got no reply and may have landed
        self.lost = False

    def left(self, now: float) -> float:
        """Seconds left for this attempt and all others."""
        return max(min(self.until - now, MOST_S), _LEAST)

    def after_failure(self, now: float) -> float | None:
        """Seconds to wait after an attempt without a reply; None: give up."""
        self.lost = True
        return self._wait(0, now)

    def after_reply(self, reply: Reply, now: float) -> float | None:
        """Seconds to wait after a reply; None: it is final."""
        if reply.status not in TRY_AGAIN:
            return None
        if may_have_landed(reply):
            self.lost = True
        return self._wait(self._asked(reply), now)

    def _asked(self, reply: Reply) -> float:
        try:
            return float(Retry().parse_retry_after(reply.retry_after)) if reply.retry_after else 0
        except (InvalidHeader, ValueError, OverflowError):  # no such time, or a number beyond all
            return 0

    def _wait(self, least: float, now: float) -> float | None:
        jitter = random() * 0.1 if self._backoff else 0  # noqa: S311 - no secret
        wait = max(min(self._backoff + jitter, _BACKOFF_S), least)
        self._backoff = min(self._backoff * 2 or 0.2, _BACKOFF_S)
        # Give up if the wait (Retry-After included) would exceed the total timeout.
        return wait if now + wait < self.until else None
