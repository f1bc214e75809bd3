"""What a rebuild restores of a segment: from the rows as a replay has them, by the function that `rebuild` uses. Pure.

As the queries in application/rebuild.py and `reconcile.check_counts`, which find the same in the tables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import EVENT, Kind
from checkback.reconcile.state_restore import ROW, Known, restore
from checkback.what_if.reads import place, same

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Bits, Records
    from checkback.reconcile.segment import Rules, Segment
    from checkback.what_if.recorded import Recorded
    from checkback.what_if.timeline import Timeline

#: names an op that a batch has rejected; unknown: of its state
NAMED = ("offset", "store", "group", "transaction")
REJECTED = np.dtype([*((name, "<i8") for name in NAMED), ("unknown", "?")])


def restored(
    recorded: Recorded, base: int, size: int, turn: int, timeline: Timeline, rejected: Records
) -> Segment | None:
    """The segment with which the batch ``turn``, the first of a rebuilt checkpoint, begins; None = nothing to keep.

    ``rejected``: REJECTED records of the ops that batches before have rejected.
    """
    now, rules = int(timeline.times[turn]), timeline.rules_at(turn)
    there = (recorded.read < turn) | (recorded.restored & (recorded.read == turn))
    events = recorded.events[there]
    is_half = (events["kind"] == Kind.HALF) | (events["kind"] == Kind.MESSAGE)
    halves = _halves(recorded, events[is_half], events[~is_half], turn, timeline)
    recent = (halves["store"] >= (now - rules.reserved) * 1000) | (halves["at"] >= now - rules.reserved)
    halves = halves[(halves["known"] != Known.DECIDED) | recent]
    rows = np.concatenate([halves, _ops(recorded, events[~is_half], turn, rejected)])
    return restore(base, size, rows, now, rules) if len(rows) else None


def counted(number: NDArray[Any], asked: NDArray[Any], received: NDArray[Any], rules: Rules) -> NDArray[Any]:
    """The checks that count, of half messages with that last ``number``, as `check_counts.checks_so_far`."""
    if not rules.count_undelivered:
        least: NDArray[Any] = np.minimum(received, asked)
        return least
    unsent = (number >= rules.check_max) & (received < number)
    found: NDArray[Any] = np.where(unsent, np.maximum(received, rules.check_max - 1), number)
    return found


def _halves(recorded: Recorded, halves: Records, ops: Records, turn: int, timeline: Timeline) -> Records:
    rows = _rows(halves)
    owners, outcomes = recorded.halves, recorded.outcomes
    at, _ = place(owners, halves["offset"])
    own = same(owners, at, halves)
    decided = outcomes["turn"] < turn
    waits = decided & (recorded.deliver_at > 0) & (outcomes["delivered"] >= turn) & (outcomes["cancelled"] >= turn)
    waiting = own & waits[at]
    rows["known"] = np.where(waiting, Known.SCHEDULED, np.where(decided[at], Known.DECIDED, Known.UNDECIDED))
    rows["delay"] = np.where(waiting, recorded.deliver_at[at], halves["delay"])
    asked, number, last = _checks(recorded, turn, timeline)
    times = counted(number, asked, _received(recorded, ops), timeline.rules_at(turn))
    for name, values in (("asked", asked), ("check_times", np.where(asked > 0, times, 0)), ("at", last)):
        rows[name] = np.where(own, values[at], 0)
    rows["at"] = np.where(decided[at], outcomes["at"][at], rows["at"])
    return rows


def _checks(recorded: Recorded, turn: int, timeline: Timeline) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """By transaction, of the checks before that turn: how many, the number of the last one, and its time (ms)."""
    requests = recorded.requests[recorded.requests["turn"] < turn]
    at, _ = place(recorded.halves, requests["offset"])
    times = timeline.times[requests["turn"]]
    order = np.lexsort((requests["number"], times))
    number, last = np.zeros((2, len(recorded.halves)), np.int64)
    number[at[order]], last[at[order]] = requests["number"][order], times[order]
    return np.bincount(at, minlength=len(recorded.halves)), number, last


def _received(recorded: Recorded, ops: Records) -> NDArray[Any]:
    """By transaction the greatest number of a check that somebody has received."""
    mine = ops[ops["kind"] == Kind.DELIVERED]
    at, known = place(recorded.halves, mine["offset"])
    known &= same(recorded.halves, at, mine)
    found = np.zeros(len(recorded.halves), np.int64)
    np.maximum.at(found, at[known], mine["immunity"][known])
    return found


def _ops(recorded: Recorded, ops: Records, turn: int, rejected: Records) -> Records:
    """Those that have neither decided nor been rejected."""
    ops = ops[(ops["kind"] < Kind.UNDELIVERED) | (ops["kind"] == Kind.CANCEL)]
    at, known = place(recorded.halves, ops["offset"])
    own: Bits = known & same(recorded.halves, at, ops)
    if len(recorded.halves):
        ended = np.where(ops["kind"] == Kind.CANCEL, recorded.outcomes["cancelled"][at], recorded.outcomes["turn"][at])
        own &= ended < turn
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
