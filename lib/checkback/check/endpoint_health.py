"""State of endpoints and groups across batches: circuit breakers, and use of rate limits (paces).

The driver keeps it and passes it to the tasks of each batch; each task returns its update as a row besides its
answers. It thus lives as long as the check query runs, regardless of worker processes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from zlib import crc32

from checkback.check.circuit_breaker import CircuitBreaker

if TYPE_CHECKING:
    from collections.abc import Mapping


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


#: an endpoint of a group: groups that share a URL have separate breakers, which isolates them from each other
Place = tuple[str, str]


@dataclass(frozen=True)
class EndpointHealth:
    """Breakers by (producer group, URL), and paces by group. Missing entries are in the initial state."""

    breakers: Mapping[Place, CircuitBreaker] = field(default_factory=dict)
    paces: Mapping[str, RateState] = field(default_factory=dict)

    def to_json(self) -> str:
        """Serialise it, for a task to return."""
        breakers = [
            [*place, known.failed, known.until, known.asked_for, known.changed]
            for place, known in self.breakers.items()
            if known.changed
        ]
        return json.dumps({"breakers": breakers, "paces": {name: pace.used_until for name, pace in self.paces.items()}})

    @classmethod
    def from_json(cls, text: str) -> EndpointHealth:
        """Deserialise what ``to_json`` wrote. Probes in flight are not kept: they ended with their task."""
        fields = json.loads(text)
        return cls(
            {
                (group, url): CircuitBreaker(failed, until, asked_for=asked_for, changed=changed)
                for group, url, failed, until, asked_for, changed in fields["breakers"]
            },
            {name: RateState(used_until) for name, used_until in fields["paces"].items()},
        )

    def and_then(self, later: EndpointHealth) -> EndpointHealth:
        """Merge both: of each breaker the one updated last, of each pace the one that has used more."""
        breakers, paces = dict(self.breakers), dict(self.paces)
        for place, known in later.breakers.items():
            breakers[place] = max(breakers.get(place, known), known, key=lambda breaker: breaker.changed)
        for name, pace in later.paces.items():
            paces[name] = max(paces.get(name, pace), pace, key=lambda pace: pace.used_until)
        return EndpointHealth(breakers, paces)
