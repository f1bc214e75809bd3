"""One segment as recorded: its transactions, what became of them, and which batch read which row. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.records import EVENT, Kind, Source
from checkback.reconcile.records.sorted_records import first_of_each
from checkback.what_if.estimated_reads import asked_by, halves_read, ops_read, place, same
from checkback.what_if.records import NEVER, NOT_TOLD, OUTCOME, Row, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records
    from checkback.what_if.timeline import Timeline


@dataclass(frozen=True)
class Recorded:
    """The rows of one segment, RECORDED each.

    ``halves``: of each transaction the half message that counts, by offset; ``outcomes``: what became of it, OUTCOME;
    ``deliver_at``: when it was scheduled for (ms), 0 = it was not; ``told``: is it known which batches read its rows?
    ``events``: EVENT records of all half messages and ops; ``read``: by which turn each was read, NEVER = by none;
    ``restored``: the rebuild before that batch did. ``by_check``: it is an op that a recorded check has brought; of
    these, ``verdicts``: COMMIT and ROLLBACK, ``receipts``: DELIVERED, their turn that of ``read``. ``requests``,
    ``answers``: sorted by offset. Of transactions that `halves` has.
    """

    halves: Records
    outcomes: Records
    deliver_at: NDArray[Any]
    told: Bits
    events: Records
    read: NDArray[Any]
    restored: Bits
    by_check: Bits
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
        deliver_at = np.zeros(len(owners), np.int64)
        scheduled = decisions[(decisions["kind"] == State.COMMIT) & (decisions["delay"] > 0)]
        deliver_at[place(owners, scheduled["offset"])[0]] = scheduled["delay"]
        told = _told(owners, halves, ops)
        ends = decisions[decisions["kind"] == State.DISCARD]
        checked = np.unique(np.concatenate([requests["turn"], ends["turn"]]))
        of_ops, deciding = ops_read(ops, owners, outcomes, requests, timeline)
        acted = np.minimum(outcomes["turn"], _first_requests(owners, requests))
        of_halves = halves_read(halves, owners, acted, deciding, checked, timeline)
        mine = np.flatnonzero(halves["store"] == owners["store"][place(owners, halves["offset"])[0]])[::-1]
        owners["turn"][place(owners, halves["offset"][mine])[0]] = of_halves[mine]
        all_rows = np.concatenate([halves, ops])
        all_rows["turn"] = np.concatenate([of_halves, of_ops])
        by_check = (
            (all_rows["row"] == Row.OP) & (all_rows["source"] == Source.CHECK) & (all_rows["kind"] != Kind.CANCEL)
        )
        by_check[by_check] = ~_unasked(owners, requests, all_rows[by_check], timeline)
        of_check = _about(owners, all_rows[by_check])
        return cls(
            owners,
            outcomes,
            deliver_at,
            told,
            _events(all_rows),
            all_rows["turn"],
            all_rows["reason"] > 0,
            by_check,
            of_check[(of_check["kind"] == Kind.COMMIT) | (of_check["kind"] == Kind.ROLLBACK)],
            of_check[of_check["kind"] == Kind.DELIVERED],
            requests,
            answers,
            checked[checked < NEVER],
            np.unique(deliveries["turn"]),
        )


def _of(rows: Records, row: Row) -> Records:
    """The rows of one table, by offset, then time."""
    found: Records = rows[rows["row"] == row]
    return found[np.lexsort((found["transaction"], found["group"], found["store"], found["turn"], found["offset"]))]


def _unasked(owners: Records, requests: Records, ops: Records, timeline: Timeline) -> Bits:
    """Mask of the verdicts of the check query that are of no recorded check: they come as a producer's ops do."""
    whose, _ = place(owners, requests["offset"])
    at, known = place(owners, ops["offset"])
    checks = whose, requests["number"], timeline.times[requests["turn"]]
    of = asked_by(checks, (at, ops["check"], ops["born"]))
    found: Bits = (ops["kind"] < Kind.DELIVERED) & ~(known & same(owners, at, ops) & (of >= 0))
    return found


def _events(rows: Records) -> Records:
    events = np.empty(len(rows), EVENT)
    for name in EVENT.names or ():
        events[name] = rows[name]
    return events


def _owners(halves: Records, *batches: Records) -> Records:
    """By offset the half message that counts: the one that batches acted on, else the first to be read, or to land."""
    acted = np.concatenate([rows[["offset", "group", "transaction"]] for rows in batches])
    key = ["offset", "group", "transaction"]
    known = np.isin(halves[key], acted) if len(acted) and _ambiguous(halves) else np.zeros(len(halves), bool)
    order = np.lexsort((halves["store"], halves["reason"] == 0, halves["turn"], ~known, halves["offset"]))
    halves = halves[order]
    return halves[first_of_each(halves["offset"])]


def _ambiguous(halves: Records) -> bool:
    return bool((halves["offset"][1:] == halves["offset"][:-1]).any())


def _about(owners: Records, rows: Records) -> Records:
    """The rows that are about one of the transactions."""
    at, known = place(owners, rows["offset"])
    return rows[known & same(owners, at, rows)]


def _told(owners: Records, *tables: Records) -> Bits:
    """By transaction, whether all of its rows say which batch read them."""
    found = np.ones(len(owners), bool)
    for rows in tables:
        at, known = place(owners, rows["offset"])
        found[at[known & (rows["turn"] == NOT_TOLD)]] = False
    return found


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
