"""The recorded batches in order, and the batches that there would have been besides: virtual time.

Pure: no clock, no I/O. A batch comes when something lands or comes due. Under other rules something may come due when
nothing did: then a *tick*, a batch that there was not, follows after the usual lag.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
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
class Needs:
    """By turn, when the first thing came up that made the batch necessary (ms); NEVER = nothing did.

    ``due``: a check, discard or delivery came due. ``answer``: an answer landed. ``landed``: other rows landed.
    """

    due: NDArray[Any]
    answer: NDArray[Any]
    landed: NDArray[Any]

    @classmethod
    def none(cls, turns: int) -> Needs:
        """Nothing came up."""
        return cls(*(np.full(turns, NEVER) for _ in range(3)))

    def join(self, other: Needs) -> None:
        """Take in those of another segment."""
        for name in ("due", "answer", "landed"):
            mine = getattr(self, name)
            np.minimum(mine, getattr(other, name), out=mine)

    @property
    def first(self) -> NDArray[Any]:
        """The first of all."""
        found: NDArray[Any] = np.minimum(np.minimum(self.due, self.answer), self.landed)
        return found


@dataclass(frozen=True)
class Cadence:
    """When there would have been ticks. ``idle_until``: by turn, until when no batch was necessary before it.

    ``due_lag``, ``answer_lag``: how long after something came due, or an answer landed, its batch came (ms, median).
    """

    idle_until: NDArray[Any]
    due_lag: int = _LAG
    answer_lag: int = _LAG

    @classmethod
    def of(cls, timeline: Timeline, needs: Needs) -> Cadence:
        """From what made the recorded batches necessary."""
        first, times = needs.first, timeline.times
        lags: list[int | None] = []
        for kind in (needs.due, needs.answer, needs.landed):
            known = (kind == first) & (kind < NEVER)
            lags.append(int(np.median(np.maximum(times[known] - kind[known], 0))) if known.any() else None)
        due, answer, landed = lags
        usual = next(lag for lag in (landed, _LAG) if lag is not None)
        due = due if due is not None else usual
        return cls(np.minimum(first, times), due, answer if answer is not None else due)


@dataclass(frozen=True)
class Timeline:
    """The recorded batches. ``times``: ms. ``application``: which checkpoint's, ascending. ``which``: of ``rules``.

    ``finished``: turns of batches that a rebuild has finished; ``restored``: of those before which one restored all.
    """

    times: NDArray[Any]
    application: NDArray[Any]
    rules: tuple[Rules, ...]
    which: NDArray[Any]
    finished: frozenset[int] = frozenset()
    restored: frozenset[int] = frozenset()
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

    def step(self, at: int, after: int, cadence: Cadence | None, lag: int) -> Step:
        """The batch that does what comes up at ``at``, after the turn ``after``. None is a tick without ``cadence``."""
        turn = self.first_turn(at, after)
        if turn == len(self):
            return Step(NEVER, True, at + lag)
        time = int(self.times[turn])
        if cadence is not None and turn > 0 and at < cadence.idle_until[turn] and at + lag < time:
            return Step(turn, True, at + lag)
        return Step(turn, False, time)

    def at(self, turn: int) -> Step:
        """The recorded batch of a turn."""
        return Step(turn, False, int(self.times[turn]))

    @cached_property
    def broken_off(self) -> NDArray[Any]:
        """The turns of batches that died before their end: after them counted what the tables held."""
        return np.array(sorted(self.finished & {int(turn) - 1 for turn in self.rebuilt}), np.int64)

    @cached_property
    def rebuilt(self) -> NDArray[Any]:
        """The turns that begin another checkpoint, made by `rebuild`."""
        begun = np.flatnonzero(np.diff(self.application) != 0) + 1
        return np.union1d(begun, np.array(sorted(self.restored), np.int64))


def has(turns: NDArray[Any], turn: int) -> bool:
    """Is the turn one of these, in order?"""
    at = int(np.searchsorted(turns, turn))
    return at < len(turns) and int(turns[at]) == turn
