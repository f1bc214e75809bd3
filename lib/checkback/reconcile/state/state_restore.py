"""Restores a segment from the tables: the lost state, as far as decisions depend on it.

Pure: no Spark, no clock, no I/O. `rebuild` passes the rows of one segment.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import EARLY, EVENT, PENDING, SCHEDULED, Kind, first_of_each
from checkback.reconcile.segment import Rules, Segment, births, next_check, places

if TYPE_CHECKING:
    from checkback.reconcile.records.segment_records import Records


class Known(IntEnum):
    """The type of a row."""

    UNDECIDED = 0  # a half message without a decision
    DECIDED = 1  # a half message with one
    OP = 2  # an unprocessed op, or one that waits for its half
    SCHEDULED = 3  # a half message that is committed and scheduled: its delay is the time of delivery (ms)


#: One row of the tables: an event, and what the tables know of it. kind and source: for ops. For half messages,
#: check_times: checks that count; requested: all; at: time of the last check, or of the decision (ms); 0 = none.
ROW = np.dtype(
    [
        EVENT.descr[0],
        ("known", "u1"),
        *EVENT.descr[1:],
        ("check_times", "<i4"),
        ("requested", "<i4"),
        ("at", "<i8"),
    ]
)


def restore(base: int, size: int, rows: Records, now: int, rules: Rules) -> Segment | None:
    """The segment that results from these ROW records at the time ``now`` (ms); None if it can be evicted.

    The ops are restored as waiting for their half: the segment's next batch applies them, those of pending half
    messages first. Of several half messages at one offset the first to land counts, as in `segment`.
    """
    rows = rows[np.lexsort((rows["transaction"], rows["group"], rows["store"], rows["offset"]))]
    halves = rows[rows["known"] != Known.OP]
    segment = Segment(
        base=base,
        seen=_seen(size, halves),
        pending=_pending(halves, rules),
        early=_early(_with_own_commits(rows[rows["known"] == Known.OP], halves), now),
        seen_until=_seen_until(halves, now, rules),
        scheduled=_scheduled(halves),
    )
    return None if segment.forgettable(now) else segment


def _seen(size: int, halves: Records) -> Any:
    seen = np.zeros(size, bool)
    seen[places(halves["offset"], size)] = True
    return seen


def _seen_until(halves: Records, now: int, rules: Rules) -> int:
    """The latest possible value of the lost segment: a half message may have landed long before its batch."""
    if not len(halves):
        return 0
    taken = np.maximum(halves["store"] // 1000, np.where(halves["known"] == Known.UNDECIDED, now, halves["at"]))
    return int(taken.max()) + rules.max_age


def _pending(halves: Records, rules: Rules) -> Records:
    undecided = first_of_each(halves["offset"]) & (halves["known"] == Known.UNDECIDED)
    taken = halves[undecided]
    pending = np.zeros(len(taken), PENDING)
    for name in ("offset", "store", "group", "transaction", "check_times", "requested", "delay"):
        pending[name] = taken[name]
    pending["repeated"] = _repeated(halves)[undecided]
    pending["born"], first_check = births(taken, rules)
    pending["due"] = np.where(taken["at"] > 0, next_check(pending, taken["at"], rules), first_check)
    return pending


def _scheduled(halves: Records) -> Records:
    mine = np.flatnonzero(halves["known"] == Known.SCHEDULED)
    mine = mine[first_of_each(halves["offset"][mine])]
    scheduled = np.zeros(len(mine), SCHEDULED)
    for name in ("offset", "store", "group", "transaction"):
        scheduled[name] = halves[name][mine]
    scheduled["due"], scheduled["check_times"] = halves["delay"][mine], halves["check_times"][mine]
    scheduled["repeated"] = _repeated(halves)[mine]
    return scheduled


def _repeated(halves: Records) -> Any:
    """Mask of the rows at whose offset several have the same store: publishing must distinguish them by identity."""
    first = first_of_each(halves["offset"])
    again = np.zeros(len(halves), bool)
    again[1:] = ~first[1:] & (halves["store"][1:] == halves["store"][:-1])
    starts = np.flatnonzero(first)
    by_offset = np.logical_or.reduceat(again, starts) if len(starts) else again
    return np.repeat(by_offset, np.diff(np.append(starts, len(halves))))


def _with_own_commits(ops: Records, halves: Records) -> Records:
    """The ops, and before them the COMMITs that messages without a transaction are: the first op counts."""
    first = first_of_each(halves["offset"]) & (halves["known"] == Known.UNDECIDED)
    own = halves[first & (halves["kind"] == Kind.MESSAGE)]
    own["kind"], own["store"] = Kind.COMMIT, np.iinfo(np.int64).min
    return np.concatenate([own, ops])


def _early(ops: Records, now: int) -> Records:
    ops = ops[np.lexsort((ops["kind"], ops["born"], ops["store"], ops["offset"]))]
    early = np.zeros(len(ops), EARLY)
    for name in ("offset", "kind", "source", "store", "group", "transaction"):
        early[name] = ops[name]
    early["since"] = now  # its batch is not in the tables, and may have been the last one
    # Of a producer's ops for one offset the first waits, as in `segment`. Ops that never wait do not count.
    apart = np.isin(early["kind"], (Kind.UNKNOWN, Kind.CANCEL))
    _, first = np.unique(early[["offset", "group", "transaction"]][~apart], return_index=True)
    kept: Records = early[np.sort(np.concatenate([np.flatnonzero(~apart)[first], np.flatnonzero(apart)]))]
    return kept
