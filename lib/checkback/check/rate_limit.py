"""The pace of one group: how soon its next check may be sent. A value; no clock, no lock.

The generic cell rate algorithm (ITU-T I.371): one time says all, so that it is cheap to keep between batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from zlib import crc32

#: A pause is longer by up to this share of it, so that tasks that share a limit do not send in step.
_JITTER = 0.1
#: what rounding adds up to in a burst: a float of seconds since the epoch is exact to 0.2 microseconds
_NEGLIGIBLE_S = 1e-4


@dataclass(frozen=True)
class Rate:
    """At most ``per_second`` checks, of which ``burst`` may follow one another at once."""

    per_second: float
    burst: float = 1.0

    def shared(self, tasks: int) -> Rate:
        """What is left to each of so many tasks; each may send one check at once."""
        return Rate(self.per_second / tasks, max(1.0, self.burst / tasks))


@dataclass(frozen=True)
class RateState:
    """What a group has used of its rate. ``used_until``: when all of it is unused again (seconds since the epoch)."""

    used_until: float = 0.0

    def wait(self, now: float, rate: Rate) -> float:
        """Seconds until the next check may be sent; 0 = at once.

        A clock that was set back delays it by no more than a full burst does.
        """
        wait = self._used(now, rate) - now - (rate.burst - 1) / rate.per_second
        return wait if wait > _NEGLIGIBLE_S else 0.0

    def sent(self, now: float, rate: Rate, salt: str) -> RateState:
        """After a check was sent. ``salt`` makes the jitter of the pause after it: the same check has the same."""
        pause = 1 / rate.per_second
        after = RateState(self._used(now, rate) + pause)
        if not after.wait(now, rate):
            return after
        return RateState(after.used_until + pause * _JITTER * crc32(salt.encode()) / 2**32)

    def _used(self, now: float, rate: Rate) -> float:
        return max(now, min(self.used_until, now + (rate.burst + _JITTER) / rate.per_second))
