"""Which batch has read each row of `half` and `op` where `batches` does not tell: an estimate from what batches did.

Pure. A row counts as read by the first batch whose time is not before its store_timestamp, unless what batches did
shows otherwise: a commit may become visible, or a half message be read, later than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import NOT_STATED, Kind
from checkback.reconcile.records.sorted_records import find, first_of_each
from checkback.reconcile.segment import births
from checkback.what_if.records import NEVER, NOT_TOLD, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.what_if.timeline import Timeline


def place(owners: Records, offsets: NDArray[Any]) -> tuple[NDArray[Any], Bits]:
    """Where each offset is among the transactions, and whether it is."""
    return find(owners["offset"], offsets)


def same(owners: Records, at: NDArray[Any], rows: Records) -> Bits:
    """Have the rows group and transaction of the half messages?"""
    if not len(owners):
        return np.zeros(len(rows), bool)
    own = (rows["transaction"] == owners["transaction"][at]) | (rows["transaction"] == NOT_STATED)
    found: Bits = (rows["group"] == owners["group"][at]) & own
    return found


def halves_read(
    halves: Records,
    owners: Records,
    acted: NDArray[Any],
    deciding: NDArray[Any],
    checked: NDArray[Any],
    timeline: Timeline,
) -> NDArray[Any]:
    """By which turn each half message was read; NEVER = by none.

    Not after the first batch that ``acted`` on it; after the last one that ``checked`` others, but not this one, due.
    One that was due when it landed, or whose ``deciding`` op landed (store) before it, was read by the former.
    """
    told = halves["turn"] != NOT_TOLD
    if told.all():
        turns: NDArray[Any] = halves["turn"]
        return turns
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
    read = np.where(own, read, np.maximum(read, first[at]))
    found: NDArray[Any] = np.where(told, halves["turn"], read)
    return found


def _first_checks(halves: Records, read: NDArray[Any], timeline: Timeline) -> NDArray[Any]:
    """When each is due for its first check (rule 4)."""
    due = np.zeros(len(halves), np.int64)
    which = timeline.which[np.minimum(read, len(timeline) - 1)]
    for number in np.unique(which):
        mine = which == number
        due[mine] = births(halves[mine], timeline.rules[number])[1]
    return due


def ops_read(
    ops: Records, owners: Records, outcomes: Records, requests: Records, timeline: Timeline
) -> tuple[NDArray[Any], NDArray[Any]]:
    """By which turn each op was read: one that decided by the batch of the decision, another of the same after it.

    Also, by transaction, when the op that decided landed (store); NEVER = there is none.
    """
    told = ops["turn"] != NOT_TOLD
    read = np.where(told, ops["turn"], timeline.first_turns(_landed(ops)))
    deciding = np.full(len(owners), NEVER)
    at, known = place(owners, ops["offset"])
    fits = known & same(owners, at, ops)
    ends = np.flatnonzero(fits & ((ops["kind"] == Kind.COMMIT) | (ops["kind"] == Kind.ROLLBACK)))
    if len(ends):
        ended = outcomes[at[ends]]
        chosen = first_that_decides(ops[ends], at[ends], read[ends], ended)
        end = np.minimum(ended["turn"], len(timeline) - 1)
        read[ends] = np.where(chosen, end, np.maximum(read[ends], end + 1))
        deciding[at[ends[chosen]]] = ops["store"][ends[chosen]]
    cancels = np.flatnonzero(fits & (ops["kind"] == Kind.CANCEL))
    if len(cancels):
        ended = outcomes[at[cancels]]
        done, end = ended["cancelled"], np.minimum(ended["delivered"], len(timeline) - 1)
        hits = (read[cancels] > ended["turn"]) & (read[cancels] <= end)
        by_it = (done < NEVER) & first_of_each(at[cancels])
        read[cancels] = np.where(by_it, done, np.where(hits, end + 1, read[cancels]))
    receipts = np.flatnonzero(fits & (ops["kind"] == Kind.DELIVERED))
    if len(receipts):
        read[receipts] = _receipts_read(
            ops[receipts], at[receipts], read[receipts], owners, outcomes, requests, timeline
        )
    read = np.where(told, ops["turn"], read)
    return read, deciding


def first_that_decides(ops: Records, at: NDArray[Any], read: NDArray[Any], ended: Records) -> Bits:
    """Mask of the ops that decided: for each transaction ``at`` the first of the decision's state and source."""
    fits = may_have_decided(ops, ended)
    order = np.lexsort((ops["kind"], ops["born"], ops["store"], read, ~fits, at))
    found = np.zeros(len(ops), bool)
    found[order[first_of_each(at[order])]] = True
    found &= fits
    return found


def may_have_decided(ops: Records, ended: Records) -> Bits:
    """Mask of the ops of the state and source of these decisions."""
    state = np.where(ended["state"] == State.CANCEL, State.COMMIT, ended["state"])
    found: Bits = (ops["kind"] == state) & (ops["source"] == ended["source"])
    return found


def _receipts_read(
    ops: Records,
    at: NDArray[Any],
    read: NDArray[Any],
    owners: Records,
    outcomes: Records,
    requests: Records,
    timeline: Timeline,
) -> NDArray[Any]:
    """A receipt was read after the last check of its number, and before one of a greater number or a discard."""
    whose, _ = place(owners, requests["offset"])
    turns = requests["turn"]
    of = asked_by((whose, requests["number"], timeline.times[turns]), (at, ops["check"], ops["born"]))
    mine = np.flatnonzero(of >= 0)
    number = requests["number"].astype(np.int64)
    key = whose * (1 << 32) + number
    by_number = np.lexsort((turns, key))
    following = np.searchsorted(key[by_number], key[of[mine]], side="right")
    last = by_number[following - 1]
    ended = outcomes[at[mine]]
    upper = np.where(ended["state"] == State.DISCARD, ended["turn"], NEVER)
    other = by_number[np.minimum(following, len(requests) - 1)]
    inside = (following < len(requests)) & (whose[other] == at[mine])
    upper = np.where(inside, np.minimum(upper, turns[other]), upper)
    found: NDArray[Any] = read.copy()
    found[mine] = np.minimum(np.maximum(read[mine], turns[last] + 1), upper)
    return found


def asked_by(
    checks: tuple[NDArray[Any], NDArray[Any], NDArray[Any]], rows: tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
) -> NDArray[Any]:
    """For each row the check that it is about: the last of its number asked for by then, else the first; -1 = none.

    Both have transaction, number and time (ms).
    """
    number = len(checks[0])
    at, numbers, times = (np.concatenate(both) for both in zip(checks, rows, strict=True))
    keys = at * (1 << 32) + numbers
    is_row = np.arange(len(keys)) >= number
    order = np.lexsort((is_row, times, keys))
    found = np.full(len(rows[0]), -1)
    sorted_keys, sorted_row = keys[order], is_row[order]
    last = np.maximum.accumulate(np.where(~sorted_row, np.arange(len(order)), -1))
    there = (last >= 0) & (sorted_keys[np.maximum(last, 0)] == sorted_keys)
    following = np.minimum.accumulate(np.where(~sorted_row, np.arange(len(order)), len(order))[::-1])[::-1]
    next_there = (following < len(order)) & (sorted_keys[np.minimum(following, len(order) - 1)] == sorted_keys)
    of = np.where(
        there, order[np.maximum(last, 0)], np.where(next_there, order[np.minimum(following, len(order) - 1)], -1)
    )
    found[order[sorted_row] - number] = of[sorted_row]
    return found


def _landed(rows: Records) -> NDArray[Any]:
    """store_timestamp in ms, rounded down, as a batch's time."""
    landed: NDArray[Any] = rows["store"] // 1000
    return landed
