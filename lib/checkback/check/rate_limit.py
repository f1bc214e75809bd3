"""The rate limit of one group: when its next check may be sent. An immutable value; no clock, no lock.

The generic cell rate algorithm (ITU-T I.371): its state is a single timestamp, cheap to keep between batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

#: A pause is lengthened by up to this fraction, so that tasks that share a limit do not send in lockstep.
_JITTER = 0.1
#: accumulated rounding error of a burst: a float of seconds since the epoch is exact to 0.2 microseconds
_NEGLIGIBLE_S = 1e-4


@dataclass(frozen=True)
class Rate:
    """At most ``per_second`` checks, with bursts of at most ``burst``."""

    per_second: float
    burst: float = 1.0

    def shared(self, tasks: int) -> Rate:
        """The share of each of ``tasks``; each may send one check at once."""
        return Rate(self.per_second / tasks, max(1.0, self.burst / tasks))


@dataclass(frozen=True)
class RateState:
    """A group's use of its rate. ``used_until``: when the full burst is available again (seconds since the epoch)."""

    used_until: float = 0.0

    def wait(self, now: float, rate: Rate) -> float:
        """Seconds until the next check may be sent; 0 = now.

        A clock that was set back delays it no more than a full burst does.
        """
        wait = self._used(now, rate) - now - (rate.burst - 1) / rate.per_second
        return wait if wait > _NEGLIGIBLE_S else 0.0

    def sent(self, now: float, rate: Rate, salt: str) -> RateState:
        """The state after a check was sent. ``salt`` seeds the jitter of the next pause: deterministic for a check."""
        pause = 1 / rate.per_second
        after = RateState(self._used(now, rate) + pause)
        if not after.wait(now, rate):
            return after
        return RateState(after.used_until + pause * _JITTER * crc32(salt.encode()) / 2**32)

    def _used(self, now: float, rate: Rate) -> float:
        return max(now, min(self.used_until, now + (rate.burst + _JITTER) / rate.per_second))
