"""Compares a segment as recorded with the same segment under other rules. Pure.

Figures are by producer group: they add up over segments, in memory that does not grow with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import Kind
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import OUTCOME, State
from checkback.what_if.replay import SegmentAnswers, replayed

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from checkback.reconcile.records.segment_records import Bits, Records
    from checkback.what_if.timeline import Cadence, Timeline

#: buckets of a distribution for each doubling of a duration: a quantile is right to within 5 %
_PER_DOUBLING = 8
#: number of buckets: up to 2^48 ms
_BUCKETS = 48 * _PER_DOUBLING


@dataclass
class Side:
    """What became of some transactions: as recorded, or under other rules.

    ``states``: by name of a State. ``longest``: ms pending, from landing to decision. ``pending``: distribution.
    """

    transactions: int = 0
    checks: int = 0
    longest: int = 0
    states: dict[str, int] = field(default_factory=dict)
    pending: NDArray[Any] = field(default_factory=lambda: np.zeros(_BUCKETS, np.int64))

    @classmethod
    def of(cls, states: NDArray[Any], checks: NDArray[Any], pending: NDArray[Any]) -> Side:
        """Of these transactions; ``pending``: ms."""
        counts = np.bincount(states, minlength=len(State))
        found = {state.name: int(counts[state]) for state in State if counts[state]}
        longest = int(pending.max(initial=0))
        return cls(len(states), int(checks.sum()), longest, found, np.bincount(buckets(pending), minlength=_BUCKETS))

    def add(self, other: Side) -> None:
        """Add those of another segment."""
        self.transactions += other.transactions
        self.checks += other.checks
        self.longest = max(self.longest, other.longest)
        for state, count in other.states.items():
            self.states[state] = self.states.get(state, 0) + count
        self.pending = self.pending + other.pending

    def quantile(self, share: float) -> int:
        """The ms that this share of the transactions was pending at most, to within 5 %."""
        if not self.transactions:
            return 0
        bucket = int(np.searchsorted(np.cumsum(self.pending), share * self.transactions))
        return min(self.longest, bucket_end(bucket))

    def count(self, state: State) -> int:
        """How many ended so."""
        return self.states.get(state.name, 0)


def buckets(pending: NDArray[Any]) -> NDArray[Any]:
    """The bucket of each duration (ms)."""
    found: NDArray[Any] = np.minimum(np.log2(np.maximum(pending, 1)) * _PER_DOUBLING, _BUCKETS - 1).astype(np.int64)
    return found


def bucket_end(bucket: int) -> int:
    """The duration (ms) at the end of a bucket."""
    return round(2 ** ((bucket + 1) / _PER_DOUBLING))


@dataclass
class Figures:
    """Both sides of a group's transactions, and how they differ.

    ``saved``: discarded as recorded, and here decided; ``lost``: the other way round, or pending as recorded;
    ``otherwise``: any other difference of state. ``assumed``: checks whose answer was never asked for.
    ``not_reproduced``: transactions left out.
    """

    recorded: Side = field(default_factory=Side)
    what_if: Side = field(default_factory=Side)
    saved: int = 0
    lost: int = 0
    otherwise: int = 0
    assumed: int = 0
    not_reproduced: int = 0

    def add(self, other: Figures) -> None:
        """Add those of another segment."""
        self.recorded.add(other.recorded)
        self.what_if.add(other.what_if)
        for name in ("saved", "lost", "otherwise", "assumed", "not_reproduced"):
            setattr(self, name, getattr(self, name) + getattr(other, name))


def total(figures: Iterable[Figures]) -> Figures:
    """The sum over groups."""
    found = Figures()
    for each in figures:
        found.add(each)
    return found


#: A transaction whose state differs: as recorded (was_), and under the other rules.
CHANGE = np.dtype(
    [
        ("group", "<i8"),
        ("store", "<i8"),
        *OUTCOME.descr,
        *((f"was_{name[0]}", name[1]) for name in OUTCOME.descr if name[0] not in ("offset", "assumed")),
    ]
)
_SAME = ("state", "source", "reason", "checks")
_DECIDED = (State.COMMIT, State.ROLLBACK, State.CANCEL)


@dataclass(frozen=True)
class Comparison:
    """Figures by group (hash), and CHANGE records of the transactions whose state differs."""

    figures: dict[int, Figures]
    changes: Records


def compare(rows: Records, base: int, size: int, timeline: Timeline, changed: Timeline, cadence: Cadence) -> Comparison:
    """Replay a segment by the rules in force, and by those of ``changed``. ``rows``: RECORDED.

    A transaction that the rules in force do not bring to what happened, with the checks of the record, is left out, and
    counted. So is a message without a transaction, which is never pending, but not counted.
    """
    recorded = Recorded.of(rows, timeline)
    answers = SegmentAnswers(recorded, timeline)
    again = replayed(recorded, answers, base, size, timeline, cadence)
    same_rules = changed.rules == timeline.rules
    found = again if same_rules else replayed(recorded, answers, base, size, changed, cadence)
    was, halves = recorded.outcomes, recorded.halves
    wrong = again["assumed"] > 0
    for name in _SAME:
        wrong |= was[name] != again[name]
    transactional = halves["kind"] != Kind.MESSAGE
    end = int(timeline.times.max(initial=0))
    figures = {}
    for group in np.unique(halves["group"][transactional]):
        mine = transactional & (halves["group"] == group)
        figures[int(group)] = _figures(halves, was, found, mine & ~wrong, end)
        figures[int(group)].not_reproduced = int((mine & wrong).sum())
    differs = transactional & ~wrong & (was["state"] != found["state"])
    changes = np.zeros(int(differs.sum()), CHANGE)
    for name in OUTCOME.names or ():
        changes[name] = found[name][differs]
        if f"was_{name}" in (CHANGE.names or ()):
            changes[f"was_{name}"] = was[name][differs]
    for name in ("group", "store"):
        changes[name] = halves[name][differs]
    return Comparison(figures, changes)


def _figures(halves: Records, was: Records, found: Records, mine: Bits, end: int) -> Figures:
    halves, was, found = halves[mine], was[mine], found[mine]
    landed = halves["store"] // 1000
    discarded, now = was["state"] == State.DISCARD, found["state"]
    saved = discarded & np.isin(now, _DECIDED)
    lost = ~discarded & (now == State.DISCARD)

    def summed(side: Records) -> Side:
        # What is pending has been so until the last recorded batch.
        until = np.where(side["state"] == State.PENDING, end, side["at"])
        return Side.of(side["state"], side["checks"], np.maximum(until - landed, 0))

    return Figures(
        recorded=summed(was),
        what_if=summed(found),
        saved=int(saved.sum()),
        lost=int(lost.sum()),
        otherwise=int(((was["state"] != now) & ~saved & ~lost).sum()),
        assumed=int(found["assumed"].sum()),
    )
