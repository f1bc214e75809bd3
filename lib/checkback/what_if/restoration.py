"""What a rebuild restores of a segment: from the rows as a replay has them, by the function that `rebuild` uses. Pure.

As the queries in application/rebuild.py and `check_counts`, which find the same in the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import EVENT, Kind
from checkback.reconcile.state.state_restore import ROW, Known, restore
from checkback.what_if.estimated_reads import place, same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.reconcile.segment import Rules, Segment
    from checkback.what_if.recorded_segment import Recorded
    from checkback.what_if.timeline import Timeline

#: names an op that a batch has rejected; unknown: of its state
NAMED = ("offset", "store", "group", "transaction")
REJECTED = np.dtype([*((name, "<i8") for name in NAMED), ("unknown", "?")])


@dataclass(frozen=True)
class Held:
    """What the tables hold of each transaction when a rebuild begins. ``at``: of its decision, ms.

    ``deliver_at``: for when it is scheduled and neither cancelled nor delivered (ms), else 0. ``asked``: number of its
    checks; ``number``, ``last``: the number that the last one had, and its time (ms).
    """

    decided: Bits
    cancelled: Bits
    at: NDArray[Any]
    deliver_at: NDArray[Any]
    asked: NDArray[Any]
    number: NDArray[Any]
    last: NDArray[Any]

    @classmethod
    def before(cls, recorded: Recorded, turn: int, timeline: Timeline) -> Held:
        """What the batches before that turn have written, by the record."""
        outcomes = recorded.outcomes
        decided = outcomes["turn"] < turn
        waits = decided & (outcomes["delivered"] >= turn) & (outcomes["cancelled"] >= turn)
        deliver_at = np.where(waits, recorded.deliver_at, 0)
        requests = recorded.requests[recorded.requests["turn"] < turn]
        at, _ = place(recorded.halves, requests["offset"])
        times = timeline.times[requests["turn"]]
        order = np.lexsort((requests["number"], times))
        number, last = np.zeros((2, len(recorded.halves)), np.int64)
        number[at[order]], last[at[order]] = requests["number"][order], times[order]
        asked = np.bincount(at, minlength=len(recorded.halves))
        return cls(decided, outcomes["cancelled"] < turn, outcomes["at"], deliver_at, asked, number, last)


def restored(
    recorded: Recorded, events: Records, held: Held, rejected: Records, base: int, size: int, now: int, rules: Rules
) -> Segment | None:
    """The segment with which the first batch of a rebuilt checkpoint begins, at ``now``; None = nothing to keep.

    ``events``: EVENT records of the half messages and ops in the tables; ``held``: what they hold of transactions;
    ``rejected``: REJECTED records of the ops that batches before have rejected.
    """
    is_half = (events["kind"] == Kind.HALF) | (events["kind"] == Kind.MESSAGE)
    halves = _halves(recorded, events[is_half], events[~is_half], held, rules)
    recent = (halves["store"] >= (now - rules.reserved) * 1000) | (halves["at"] >= now - rules.reserved)
    halves = halves[(halves["known"] != Known.DECIDED) | recent]
    rows = np.concatenate([halves, _ops(recorded, events[~is_half], held, rejected)])
    return restore(base, size, rows, now, rules) if len(rows) else None


def counted(number: NDArray[Any], asked: NDArray[Any], received: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """The checks that count, of half messages with that last ``number``, as `check_counts.checks_so_far`."""
    if not rules.count_undelivered:
        least: NDArray[Any] = np.minimum(received, asked)
        return least
    unsent = (number >= rules.check_max) & (received < number)
    found: NDArray[Any] = np.where(unsent, np.maximum(received, rules.check_max - 1), number)
    return found


def _halves(recorded: Recorded, halves: Records, ops: Records, held: Held, rules: Rules) -> Records:
    rows = _rows(halves)
    owners = recorded.halves
    at, _ = place(owners, halves["offset"])
    own, decided = same(owners, at, halves), held.decided[at]
    waiting = own & (held.deliver_at[at] > 0)
    rows["known"] = np.where(waiting, Known.SCHEDULED, np.where(decided, Known.DECIDED, Known.UNDECIDED))
    rows["delay"] = np.where(waiting, held.deliver_at[at], halves["delay"])
    times = counted(held.number, held.asked, _received(recorded, ops), rules)
    times = np.where(held.asked > 0, times, 0)
    for name, values in (("asked", held.asked), ("check_times", times), ("at", held.last)):
        rows[name] = np.where(own, values[at], 0)
    rows["at"] = np.where(decided, held.at[at], rows["at"])
    return rows


def _received(recorded: Recorded, ops: Records) -> NDArray[Any]:
    """By transaction the greatest number of a check that somebody has received."""
    mine = ops[ops["kind"] == Kind.DELIVERED]
    at, known = place(recorded.halves, mine["offset"])
    known &= same(recorded.halves, at, mine)
    found = np.zeros(len(recorded.halves), np.int64)
    np.maximum.at(found, at[known], mine["check"][known])
    return found


def _ops(recorded: Recorded, ops: Records, held: Held, rejected: Records) -> Records:
    """Those that have neither decided nor been rejected."""
    ops = ops[(ops["kind"] < Kind.DELIVERED) | (ops["kind"] == Kind.CANCEL)]
    at, known = place(recorded.halves, ops["offset"])
    own: Bits = known & same(recorded.halves, at, ops)
    if len(recorded.halves):
        own &= np.where(ops["kind"] == Kind.CANCEL, held.cancelled[at], held.decided[at])
    named = np.empty(len(ops), REJECTED)
    for name in NAMED:
        named[name] = ops[name]
    named["unknown"] = ops["kind"] == Kind.UNKNOWN
    rows = _rows(ops[~own & ~np.isin(named, rejected)])
    rows["known"] = Known.OP
    return rows


def _rows(events: Records) -> Records:
    rows = np.zeros(len(events), ROW)
    for name in EVENT.names or ():
        rows[name] = events[name]
    return rows
