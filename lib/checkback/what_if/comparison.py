"""Compares a segment as recorded with the same segment under other rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.records.records import Kind
from checkback.what_if.answers import Answers
from checkback.what_if.figures import Figures, Side
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import OUTCOME, State
from checkback.what_if.replay import replayed

if TYPE_CHECKING:
    from checkback.reconcile.records.records import Bits, Records
    from checkback.what_if.timeline import Cadence, Timeline

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
    answers = Answers(recorded, timeline)
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
