"""One segment as recorded: its transactions, what became of them, and when its batches checked. Pure.

Which batch read a row is not recorded: the first one whose time is not before its store_timestamp counts, but of the
op that decided the batch of the decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import EVENT, NOT_STATED, Kind, Source, find, first_of_each
from checkback.reconcile.segment import births
from checkback.what_if.records import NEVER, OUTCOME, Row, State

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.segment_records import Bits, Records
    from checkback.what_if.timeline import Timeline


@dataclass(frozen=True)
class Recorded:
    """The rows of one segment, RECORDED each.

    ``halves``: of each transaction the half message that counts, by offset; ``outcomes``: what became of it, OUTCOME.
    ``events``: EVENT records of all half messages and ops but those of recorded checks; ``read``: by which turn each
    was read. ``received_ops``: ops of recorded checks. ``requests``, ``answers``: those of transactions in ``halves``.
    ``deferred``: by turn, whether a check was due that the batch did not make. ``needs``: by turn, when the first thing
    came up that made the batch necessary (ms); NEVER = nothing did.
    """

    halves: Records
    outcomes: Records
    events: Records
    read: NDArray[Any]
    verdicts: Records
    requests: Records
    answers: Records
    deferred: Bits
    needs: NDArray[Any]

    @classmethod
    def of(cls, rows: Records, timeline: Timeline) -> Recorded:
        """From all rows of the segment, in any order."""
        halves, ops, decisions, requests, answers = (_of(rows, row) for row in Row)
        owners = _owners(halves, decisions, requests)
        decisions, requests, answers = (_about(owners, each) for each in (decisions, requests, answers))
        outcomes = _outcomes(owners, decisions, requests, timeline)
        by_check = _by_check(owners, requests, ops)
        own = ops[~by_check]
        landed = np.concatenate([halves, ops])["store"] // 1000
        needs = np.full(len(timeline), NEVER)
        first = timeline.first_turns(landed)
        known = first < len(timeline)
        np.minimum.at(needs, first[known], np.maximum(landed[known], timeline.begins(first[known])))
        deferred = _deferred(owners, outcomes, requests, timeline, needs)
        read = timeline.first_turns(np.concatenate([halves, own])["store"] // 1000)
        cancels = decisions[decisions["kind"] == State.CANCEL]
        read[: len(halves)] = _halves_read(halves, owners, outcomes, requests, timeline)
        read[len(halves) :] = _ops_read(own, owners, outcomes, cancels, read[len(halves) :])
        events = np.concatenate([halves, own])[list(EVENT.names or ())].astype(EVENT)
        return cls(owners, outcomes, events, read, _about(owners, ops[by_check]), requests, answers, deferred, needs)


def place(owners: Records, offsets: NDArray[Any]) -> tuple[NDArray[Any], Bits]:
    """Where each offset is among the transactions, and whether it is."""
    return find(owners["offset"], offsets)


def _same(owners: Records, at: NDArray[Any], rows: Records) -> Bits:
    """Have the rows group and transaction of the half messages?"""
    if not len(owners):
        return np.zeros(len(rows), bool)
    own = (rows["transaction"] == owners["transaction"][at]) | (rows["transaction"] == NOT_STATED)
    found: Bits = (rows["group"] == owners["group"][at]) & own
    return found


def _of(rows: Records, row: Row) -> Records:
    """The rows of one table, by offset, then time."""
    found: Records = rows[rows["row"] == row]
    return found[np.lexsort((found["transaction"], found["group"], found["store"], found["turn"], found["offset"]))]


def _owners(halves: Records, *batches: Records) -> Records:
    """By offset the half message that counts: the one that batches acted on, else the first to land."""
    key = ["offset", "group", "transaction"]
    known = np.ones(len(halves), bool)
    if (halves["offset"][1:] == halves["offset"][:-1]).any():
        known = np.isin(halves[key], np.concatenate([rows[key] for rows in batches]))
    halves = halves[np.lexsort((halves["store"], ~known, halves["offset"]))]
    return halves[first_of_each(halves["offset"])]


def _about(owners: Records, rows: Records) -> Records:
    """The rows that are about one of the transactions."""
    at, known = place(owners, rows["offset"])
    return rows[known & _same(owners, at, rows)]


def _by_check(owners: Records, requests: Records, ops: Records) -> Bits:
    """Mask of the ops that a recorded check has brought; those of no such check come as a producer's do."""
    at, known = place(owners, ops["offset"])
    asked = np.isin(ops["offset"] * (1 << 32) + ops["check"], requests["offset"] * (1 << 32) + requests["number"])
    of_check = (ops["source"] == Source.CHECK) & (ops["kind"] != Kind.CANCEL)
    found: Bits = of_check & ((ops["kind"] >= Kind.COUNTED) | (known & _same(owners, at, ops) & asked))
    return found


def _outcomes(owners: Records, decisions: Records, requests: Records, timeline: Timeline) -> Records:
    found = np.zeros(len(owners), OUTCOME)
    found["offset"], found["turn"] = owners["offset"], NEVER
    ends = decisions[decisions["kind"] != State.CANCEL]
    at, _ = place(owners, ends["offset"])
    for name, field in (("state", "kind"), ("turn", "turn"), ("source", "source"), ("reason", "reason")):
        found[name][at] = ends[field]
    found["at"][at] = timeline.times[ends["turn"]]
    found["state"][place(owners, decisions["offset"][decisions["kind"] == State.CANCEL])[0]] = State.CANCEL
    found["checks"] = np.bincount(place(owners, requests["offset"])[0], minlength=len(owners))
    return found


def _halves_read(
    halves: Records, owners: Records, outcomes: Records, requests: Records, timeline: Timeline
) -> NDArray[Any]:
    """Not after the first batch that acted on it; by that one, if it was due at once; after others that checked."""
    read = timeline.first_turns(halves["store"] // 1000)
    acted = outcomes["turn"].copy()
    at, _ = place(owners, requests["offset"])
    np.minimum.at(acted, at, requests["turn"])
    at, _ = place(owners, halves["offset"])
    upper = np.minimum(acted[at], len(timeline))
    read = np.minimum(read, upper)
    due = _first_checks(halves, timeline, read)
    checked = np.unique(np.concatenate([requests["turn"], outcomes["turn"][outcomes["state"] == State.DISCARD]]))
    if len(checked):
        last = np.searchsorted(checked, upper) - 1
        turn = checked[np.maximum(last, 0)]
        late = (last >= 0) & (turn >= read)
        late[late] = timeline.times[turn[late]] >= due[late]
        read[late] = turn[late] + 1
    inside = read < len(timeline)
    at_once = inside.copy()
    at_once[inside] = timeline.times[read[inside]] >= due[inside]
    own = halves["store"] == owners["store"][at]
    found: NDArray[Any] = np.where(at_once & own, upper, read)
    return found


def _first_checks(halves: Records, timeline: Timeline, turns: NDArray[Any]) -> NDArray[Any]:
    """When each is due for its first check (rule 4), by the rules of these turns."""
    due = np.zeros(len(halves), np.int64)
    which = timeline.which[np.minimum(turns, len(timeline) - 1)]
    for number, rules in enumerate(timeline.rules):
        due[which == number] = births(halves[which == number], rules)[1]
    return due


def _ops_read(ops: Records, owners: Records, outcomes: Records, cancels: Records, read: NDArray[Any]) -> NDArray[Any]:
    """The op that decided was read by the batch of the decision, others after it; likewise of one that cancelled."""
    found: NDArray[Any] = read.copy()
    at, known = place(owners, ops["offset"])
    known &= _same(owners, at, ops)
    ended, state = outcomes["turn"], np.where(outcomes["state"] == State.CANCEL, State.COMMIT, outcomes["state"])
    mine = np.flatnonzero(known & (ops["kind"] < Kind.UNKNOWN))
    which = at[mine]
    fits = (ops["kind"][mine] == state[which]) & (ops["source"][mine] == outcomes["source"][which])
    _read_by(found, mine, which, fits, ended)
    cancelled = np.full(len(owners), NEVER)
    cancelled[place(owners, cancels["offset"])[0]] = cancels["turn"]
    mine = np.flatnonzero(known & (ops["kind"] == Kind.CANCEL))
    _read_by(found, mine, at[mine], np.ones(len(mine), bool), cancelled)
    return found


def _read_by(read: NDArray[Any], ops: NDArray[Any], at: NDArray[Any], fits: Bits, ended: NDArray[Any]) -> None:
    """Of each transaction ``at`` the first op that ``fits`` was read by the turn that ``ended`` it, others after."""
    there = ended[at] < NEVER
    ops, at, fits = ops[there], at[there], fits[there]
    read[ops] = np.maximum(read[ops], ended[at] + 1)
    ops, at = ops[fits], at[fits]
    first = first_of_each(at)
    read[ops[first]] = ended[at[first]]


def _deferred(owners: Records, outcomes: Records, requests: Records, timeline: Timeline, needs: NDArray[Any]) -> Bits:
    """By turn, whether a check or discard was due that the batch did not make. Adds to ``needs`` when they came due."""
    turns = len(timeline)
    offset = np.concatenate([requests["offset"], outcomes["offset"]])
    turn = np.concatenate([requests["turn"], np.minimum(outcomes["turn"], turns)])
    order = np.lexsort((turn, offset))
    offset, turn = offset[order], turn[order]
    due = _first_checks(owners[place(owners, offset)[0]], timeline, turn)
    # Where it was checked before: by the rules of that batch. A jitter makes it due later than that.
    again = np.flatnonzero(~first_of_each(offset))
    before = turn[again - 1]
    intervals = np.array([rules.check_interval for rules in timeline.rules], np.int64)
    due[again] = timeline.times[before] + intervals[timeline.which[before]]
    first = timeline.first_turns(due)
    first[again] = np.maximum(first[again], before + 1)
    first, turn, due = (each[first <= turn] for each in (first, turn, due))
    inside = first < turns
    np.minimum.at(needs, first[inside], np.maximum(due[inside], timeline.begins(first[inside])))
    deferred = np.zeros(turns, bool)
    for begin, end in set(zip(first[first < turn].tolist(), turn[first < turn].tolist(), strict=True)):
        deferred[begin:end] = True
        later = np.arange(begin + 1, min(end + 1, turns))
        needs[later] = np.minimum(needs[later], timeline.begins(later))
    deferred[requests["turn"]] = False
    deferred[outcomes["turn"][outcomes["state"] == State.DISCARD]] = False
    return deferred
