"""What is known of endpoints and groups from one batch to the next: their breakers and paces.

The driver keeps it and gives it to the tasks of each batch; each task gives back what it has learned, as one row beside
its answers. So it lives as long as the check query runs, whichever worker process a task happens to run in.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.check.circuit_breaker import CircuitBreaker
from checkback.check.rate_limit import RateState

if TYPE_CHECKING:
    from collections.abc import Mapping

#: an endpoint of a group: groups that share a URL do not share its breaker, so none suffers for another
Place = tuple[str, str]


@dataclass(frozen=True)
class EndpointHealth:
    """Breakers by (producer group, URL), and paces by group. What is missing is as new."""

    breakers: Mapping[Place, CircuitBreaker] = field(default_factory=dict)
    paces: Mapping[str, RateState] = field(default_factory=dict)

    def to_json(self) -> str:
        """As a task gives it back."""
        breakers = [
            [*place, known.failed, known.until, known.asked_for, known.changed]
            for place, known in self.breakers.items()
            if known.changed
        ]
        return json.dumps({"breakers": breakers, "paces": {name: pace.used_until for name, pace in self.paces.items()}})

    @classmethod
    def from_json(cls, text: str) -> EndpointHealth:
        """What ``to_json`` wrote. A trial is not handed on: it ended with its task."""
        fields = json.loads(text)
        return cls(
            {
                (group, url): CircuitBreaker(failed, until, asked_for=asked_for, changed=changed)
                for group, url, failed, until, asked_for, changed in fields["breakers"]
            },
            {name: RateState(used_until) for name, used_until in fields["paces"].items()},
        )

    def and_then(self, later: EndpointHealth) -> EndpointHealth:
        """Both together: of a breaker what was learned last, of a pace the one that has used more."""
        breakers, paces = dict(self.breakers), dict(self.paces)
        for place, known in later.breakers.items():
            breakers[place] = max(breakers.get(place, known), known, key=lambda breaker: breaker.changed)
        for name, pace in later.paces.items():
            paces[name] = max(paces.get(name, pace), pace, key=lambda pace: pace.used_until)
        return EndpointHealth(breakers, paces)
