"""State of endpoints and groups across batches: circuit breakers, and use of rate limits (paces).

The driver keeps it and passes it to the tasks of each batch; each task returns its update as a row besides its
answers. It thus lives as long as the check query runs, regardless of worker processes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import CircuitBreaker
from checkback.check.rate_limit import RateState

if TYPE_CHECKING:
    from collections.abc import Mapping

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
