"""Compares a segment as recorded with the same segment under other rules. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.records.records import Kind
from checkback.what_if.changed_replay import under
from checkback.what_if.figures import Figures, Side
from checkback.what_if.recorded_replay import as_recorded
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import OUTCOME, State

if TYPE_CHECKING:
    from checkback.reconcile.records.records import Bits, Records
    from checkback.what_if.timeline import Cadence, Needs, Timeline

#: A transaction whose state differs: as recorded (was_), and under the other rules.
CHANGE = np.dtype(
    [
        ("group", "<i8"),
        ("store", "<i8"),
        *OUTCOME.descr,
        *((f"was_{name[0]}", name[1]) for name in OUTCOME.descr if name[0] not in ("offset", "assumed")),
    ]
)
_SAME = ("state", "source", "reason", "checks", "turn", "cancelled", "delivered")
_DECIDED = (State.COMMIT, State.ROLLBACK, State.CANCEL)


@dataclass(frozen=True)
class Comparison:
    """Figures by group (hash), and CHANGE records of the transactions whose state differs."""

    figures: dict[int, Figures]
    changes: Records


def needs_of(rows: Records, base: int, size: int, timeline: Timeline) -> Needs:
    """What made batches necessary for a segment: the first pass. ``rows``: RECORDED."""
    return as_recorded(Recorded.of(rows, timeline), base, size, timeline).needs


def compare(rows: Records, base: int, size: int, timeline: Timeline, changed: Timeline, cadence: Cadence) -> Comparison:
    """Replay a segment by the rules in force, and by those of ``changed``: the second pass.

    By the rules in force in both ways: with the recorded visits, and as by those of ``changed``, so that a difference
    comes from the rules only. A transaction that one of the two does not bring to what happened is left out, and
    counted. So is a message without a transaction, which is never pending, but not counted.
    """
    recorded = Recorded.of(rows, timeline)
    first = as_recorded(recorded, base, size, timeline)
    again = under(recorded, base, size, timeline, timeline, first.deferred, cadence)
    same_rules = changed.rules == timeline.rules
    found = again if same_rules else under(recorded, base, size, timeline, changed, first.deferred, cadence)
    was = recorded.outcomes
    wrong = again["assumed"] > 0
    for name in _SAME:
        wrong |= (was[name] != first.outcomes[name]) | (was[name] != again[name])
    transactional = recorded.halves["kind"] != Kind.MESSAGE
    end = int(timeline.times.max(initial=0))
    figures = {
        int(group): _figures(
            recorded.halves, was, found, transactional & ~wrong & (recorded.halves["group"] == group), end
        )
        for group in np.unique(recorded.halves["group"][transactional])
    }
    for group, each in figures.items():
        mine = transactional & (recorded.halves["group"] == group)
        each.not_reproduced, each.estimated = int((mine & wrong).sum()), int((mine & ~recorded.told).sum())
    differs = transactional & ~wrong & (was["state"] != found["state"])
    changes = np.zeros(int(differs.sum()), CHANGE)
    for name in OUTCOME.names or ():
        changes[name] = found[name][differs]
        if f"was_{name}" in (CHANGE.names or ()):
            changes[f"was_{name}"] = was[name][differs]
    for name in ("group", "store"):
        changes[name] = recorded.halves[name][differs]
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
