"""The recorded batches in order, and the batches that there would have been besides: virtual time.

Pure: no clock, no I/O. A batch comes when something lands or comes due. Under other rules something may come due when
nothing did: then a *tick*, a batch that there was not, follows after the usual lag.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from checkback.what_if.records import NEVER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from checkback.reconcile.segment import Rules

#: lag in ms if the record has none
_LAG = 1_000


class Step(NamedTuple):
    """A batch of the replay: before or at the recorded batch ``turn``; ``at`` is its time. After the last: turn NEVER.

    ``tick``: it is none of the recorded ones.
    """

    turn: int
    tick: bool
    at: int


@dataclass(frozen=True)
class Cadence:
    """When there would have been ticks. ``idle_until``: by turn, until when no batch was necessary before it.

    ``lag``: how long after something landed or came due its batch came (ms, median).
    """

    idle_until: NDArray[Any]
    lag: int = _LAG

    @classmethod
    def of(cls, timeline: Timeline, needs: NDArray[Any]) -> Cadence:
        """``needs``: by turn, when the first thing came up that made the batch necessary (ms); NEVER = nothing did."""
        known = needs < NEVER
        lags = np.maximum(timeline.times[known] - needs[known], 0)
        return cls(np.minimum(needs, timeline.times), int(np.median(lags)) if len(lags) else _LAG)


@dataclass(frozen=True)
class Timeline:
    """The recorded batches. ``times``: ms. ``which``: of ``rules``, by turn."""

    times: NDArray[Any]
    rules: tuple[Rules, ...]
    which: NDArray[Any]
    _latest: NDArray[Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_latest", np.maximum.accumulate(self.times))

    def __len__(self) -> int:
        return len(self.times)

    def under(self, changes: Mapping[str, Any]) -> Timeline:
        """The same batches, with these rules changed in each of them."""
        return replace(self, rules=tuple(replace(rules, **changes) for rules in self.rules))

    def rules_at(self, turn: int) -> Rules:
        """The rules in force in a batch; before the first and after the last those of the nearest."""
        return self.rules[int(self.which[min(max(turn, 0), len(self) - 1)])]

    def first_turns(self, at: NDArray[Any]) -> NDArray[Any]:
        """For each of these times the first batch at or after it; ``len(self)`` = none."""
        return np.searchsorted(self._latest, at)

    def first_turn(self, at: int, after: int) -> int:
        """The first batch after the turn ``after`` whose time is at or after ``at``; ``len(self)`` = none."""
        found = int(np.searchsorted(self._latest, at))
        if found > after:
            return found
        later = np.flatnonzero(self.times[after + 1 :] >= at)  # the clock was set back
        return after + 1 + int(later[0]) if len(later) else len(self)

    def begins(self, turns: NDArray[Any]) -> NDArray[Any]:
        """The time after which each batch became possible: that of the batch before."""
        found: NDArray[Any] = np.where(turns > 0, self.times[np.maximum(turns - 1, 0)] + 1, 0)
        return found

    def step(self, at: int, after: int, cadence: Cadence | None) -> Step:
        """The batch that does what comes up at ``at``, after the turn ``after``; without ``cadence`` a recorded one."""
        turn = self.first_turn(at, after)
        if turn == len(self):
            return Step(NEVER, True, at)
        time = int(self.times[turn])
        if cadence is not None and turn > 0 and at < cadence.idle_until[turn] and at + cadence.lag < time:
            return Step(turn, True, at + cadence.lag)
        return Step(turn, False, time)

    def at(self, turn: int) -> Step:
        """The recorded batch of a turn."""
        return Step(turn, False, int(self.times[turn]))
