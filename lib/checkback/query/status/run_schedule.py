"""The rhythm of a scheduled `reconcile`, as its last runs tell: when the next one is overdue. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

#: while only one run is known
_FIRST_MS = 3_600_000
#: what a run may be late besides half of the rhythm
_LATE_MS = 60_000


@dataclass(frozen=True)
class RunSchedule:
    """When the last runs ended (ms), in order: at least one."""

    runs: tuple[int, ...]

    @property
    def last(self) -> int:
        """When the last run ended (ms)."""
        return self.runs[-1]

    @property
    def every(self) -> int | None:
        """The longest pause between two of the runs (ms); None = not known.

        If the clock was set back, either the runs before that were by a wrong clock, or those after it until it was
        set forward: without them. Both would make the pause too long.
        """
        ahead = [run for place, run in enumerate(self.runs) if run <= min(self.runs[place:])]
        behind = [run for place, run in enumerate(self.runs) if run >= max(self.runs[: place + 1])]
        pauses = ([later - run for run, later in pairwise(runs)] for runs in (ahead, behind))
        return min((max(found) for found in pauses if found), default=None)

    @property
    def next_by(self) -> int:
        """Without another run by then (ms) the job is overdue."""
        every = self.every
        return self.last + (_FIRST_MS if every is None else every * 3 // 2 + _LATE_MS)
