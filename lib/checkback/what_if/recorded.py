"""One segment as recorded: its transactions, what became of them, and which batch read which row.

Pure. The tables do not say which batch has read a row of `half` or `op`. It is the first batch whose time is not before
the row's store_timestamp, unless what batches did shows otherwise: a commit may become visible, or a half message be
read, later than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records import EVENT, NOT_STATED, Kind, Source
from checkback.reconcile.segment import births
from checkback.reconcile.sorted_records import first_of_each
from checkback.what_if.records import NEVER, OUTCOME, Row, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records import Bits, Records
    from checkback.what_if.timeline import Timeline


@dataclass(frozen=True)
class Recorded:
    """The rows of one segment, RECORDED each.

    ``halves``: of each transaction the half message that counts, by offset; ``outcomes``: what became of it, OUTCOME.
    ``events``: EVENT records of all half messages, and of all ops but those of the check query; ``read``: by which turn
    each was read; NEVER = by none. ``verdicts``: the ops COMMIT and ROLLBACK of the check query; ``receipts``: its
    DELIVERED; ``requests``, ``answers``: sorted by offset. Of transactions that `halves` has.
    """

    halves: Records
    outcomes: Records
    events: Records
    read: NDArray[Any]
    verdicts: Records
    receipts: Records
    requests: Records
    answers: Records
    checked: NDArray[Any]
    delivered: NDArray[Any]

    @classmethod
    def of(cls, rows: Records, timeline: Timeline) -> Recorded:
        """From all rows of the segment, in any order."""
        halves, ops, decisions, requests, answers, deliveries = (_of(rows, row) for row in Row)
        owners = _owners(halves, decisions, requests)
        decisions, requests, answers, deliveries = (
            _about(owners, each) for each in (decisions, requests, answers, deliveries)
        )
        outcomes = _outcomes(owners, decisions, requests, deliveries, timeline)
        by_check = (ops["source"] == Source.CHECK) & (ops["kind"] != Kind.CANCEL)
        told = _about(owners, ops[by_check])
        events = np.concatenate([halves, ops[~by_check]])
        ends = decisions[decisions["kind"] == State.DISCARD]
        checked = np.unique(np.concatenate([requests["turn"], ends["turn"]]))
        ops_read, deciding = _ops_read(ops[~by_check], owners, outcomes, timeline)
        acted = np.minimum(outcomes["turn"], _first_requests(owners, requests))
        read = np.concatenate([_halves_read(halves, owners, acted, deciding, checked, timeline), ops_read])
        return cls(
            owners,
            outcomes,
            _events(events),
            read,
            told[(told["kind"] == Kind.COMMIT) | (told["kind"] == Kind.ROLLBACK)],
            told[told["kind"] == Kind.DELIVERED],
            requests,
            answers,
            checked[checked < NEVER],
            np.unique(deliveries["turn"]),
        )


def _of(rows: Records, row: Row) -> Records:
    """The rows of one table, by offset, then time."""
    found: Records = rows[rows["row"] == row]
    return found[np.lexsort((found["transaction"], found["group"], found["store"], found["turn"], found["offset"]))]


def _events(rows: Records) -> Records:
    events = np.empty(len(rows), EVENT)
    for name in EVENT.names or ():
        events[name] = rows[name]
    return events


def place(owners: Records, offsets: NDArray[Any]) -> tuple[NDArray[Any], Bits]:
    """Where each offset is among the transactions, and whether it is."""
    at = np.minimum(np.searchsorted(owners["offset"], offsets), max(0, len(owners) - 1))
    return at, owners["offset"][at] == offsets if len(owners) else np.zeros(len(offsets), bool)


def _same(owners: Records, at: NDArray[Any], rows: Records) -> Bits:
    """Have the rows group and transaction of the half messages?"""
    if not len(owners):
        return np.zeros(len(rows), bool)
    own = (rows["transaction"] == owners["transaction"][at]) | (rows["transaction"] == NOT_STATED)
    found: Bits = (rows["group"] == owners["group"][at]) & own
    return found


def _owners(halves: Records, *batches: Records) -> Records:
    """By offset the half message that counts: the one that batches acted on, else the first to land."""
    acted = np.concatenate([rows[["offset", "group", "transaction"]] for rows in batches])
    key = ["offset", "group", "transaction"]
    known = np.isin(halves[key], acted) if len(acted) and _ambiguous(halves) else np.zeros(len(halves), bool)
    order = np.lexsort((halves["store"], ~known, halves["offset"]))
    halves = halves[order]
    return halves[first_of_each(halves["offset"])]


def _ambiguous(halves: Records) -> bool:
    return bool((halves["offset"][1:] == halves["offset"][:-1]).any())


def _about(owners: Records, rows: Records) -> Records:
    """The rows that are about one of the transactions."""
    at, known = place(owners, rows["offset"])
    return rows[known & _same(owners, at, rows)]


def _outcomes(
    owners: Records, decisions: Records, requests: Records, deliveries: Records, timeline: Timeline
) -> Records:
    found = np.zeros(len(owners), OUTCOME)
    found["offset"] = owners["offset"]
    for name in ("turn", "cancelled", "delivered"):
        found[name] = NEVER
    cancels = decisions[decisions["kind"] == State.CANCEL]
    ends = decisions[decisions["kind"] != State.CANCEL]
    at, _ = place(owners, ends["offset"])
    found["state"][at], found["turn"][at] = ends["kind"], ends["turn"]
    found["source"][at], found["reason"][at] = ends["source"], ends["reason"]
    found["at"][at] = timeline.times[ends["turn"]]
    at, _ = place(owners, cancels["offset"])
    found["state"][at], found["cancelled"][at] = State.CANCEL, cancels["turn"]
    at, _ = place(owners, deliveries["offset"])
    found["delivered"][at] = deliveries["turn"]
    at, _ = place(owners, requests["offset"])
    found["checks"] = np.bincount(at, minlength=len(owners))
    return found


def _first_requests(owners: Records, requests: Records) -> NDArray[Any]:
    first = np.full(len(owners), NEVER)
    at, _ = place(owners, requests["offset"])
    np.minimum.at(first, at, requests["turn"])
    return first


def _halves_read(
    halves: Records,
    owners: Records,
    acted: NDArray[Any],
    deciding: NDArray[Any],
    checked: NDArray[Any],
    timeline: Timeline,
) -> NDArray[Any]:
    """Not after the first batch that ``acted`` on it; after the last one that checked others, but not this one, due.

    One that was due when it landed, or whose ``deciding`` op landed (store) before it, was read by the former.
    """
    read = timeline.first_turns(_landed(halves))
    at, _ = place(owners, halves["offset"])
    own = halves["store"] == owners["store"][at]
    upper = acted[at]
    read = np.minimum(read, upper)
    message = halves["kind"] == Kind.MESSAGE
    due = _first_checks(halves, read, timeline)
    last = np.searchsorted(checked, np.minimum(upper, len(timeline))) - 1
    if len(checked):
        turn = checked[np.maximum(last, 0)]
        late = own & ~message & (last >= 0) & (turn >= read)
        late[late] = timeline.times[turn[late]] >= due[late]
        read[late] = turn[late] + 1
    by_acting = own & (message | (deciding[at] < halves["store"]))
    inside = own & (read < len(timeline))
    by_acting[inside] |= timeline.times[read[inside]] >= due[inside]
    read[by_acting] = np.maximum(read, upper)[by_acting]
    # Others at the offset come after the one that counts.
    first = np.full(len(owners), NEVER)
    first[at[own]] = read[own]
    found: NDArray[Any] = np.where(own, read, np.maximum(read, first[at]))
    return found


def _first_checks(halves: Records, read: NDArray[Any], timeline: Timeline) -> NDArray[Any]:
    """When each is due for its first check (rule 4)."""
    due = np.zeros(len(halves), np.int64)
    which = timeline.which[np.minimum(read, len(timeline) - 1)]
    for number in np.unique(which):
        mine = which == number
        due[mine] = births(halves[mine], timeline.rules[number])[1]
    return due


def _ops_read(
    ops: Records, owners: Records, outcomes: Records, timeline: Timeline
) -> tuple[NDArray[Any], NDArray[Any]]:
    """An op that decided counts as read by the batch of the decision, another as read after it.

    Also, by transaction, when the op that decided landed (store); NEVER = it is not among these.
    """
    read, deciding = timeline.first_turns(_landed(ops)), np.full(len(owners), NEVER)
    at, known = place(owners, ops["offset"])
    fits = known & _same(owners, at, ops)
    mine = np.flatnonzero(fits & ((ops["kind"] == Kind.COMMIT) | (ops["kind"] == Kind.ROLLBACK)))
    if len(mine):
        ended = outcomes[at[mine]]
        chosen = first_that_decides(ops[mine], at[mine], read[mine], ended)
        end = np.minimum(ended["turn"], len(timeline) - 1)
        read[mine] = np.where(chosen, end, np.maximum(read[mine], end + 1))
        deciding[at[mine[chosen]]] = ops["store"][mine[chosen]]
    cancels = np.flatnonzero(fits & (ops["kind"] == Kind.CANCEL))
    if len(cancels):
        ended = outcomes[at[cancels]]
        done, end = ended["cancelled"], np.minimum(ended["delivered"], len(timeline) - 1)
        hits = (read[cancels] > ended["turn"]) & (read[cancels] <= end)
        by_it = (done < NEVER) & first_of_each(at[cancels])
        read[cancels] = np.where(by_it, done, np.where(hits, end + 1, read[cancels]))
    return read, deciding


def first_that_decides(ops: Records, at: NDArray[Any], read: NDArray[Any], ended: Records) -> Bits:
    """Mask of the ops that decided: for each transaction ``at`` the first of the decision's state and source."""
    state = np.where(ended["state"] == State.CANCEL, State.COMMIT, ended["state"])
    fits = (ops["kind"] == state) & (ops["source"] == ended["source"])
    order = np.lexsort((ops["kind"], ops["born"], ops["store"], read, ~fits, at))
    found = np.zeros(len(ops), bool)
    found[order[first_of_each(at[order])]] = True
    found &= fits
    return found


def _landed(rows: Records) -> NDArray[Any]:
    """store_timestamp in ms, rounded down, as a batch's time."""
    landed: NDArray[Any] = rows["store"] // 1000
    return landed
