"""The NumPy records of a segment's events, state and actions, and searching and numbering those sorted by offset.

Times are milliseconds since the epoch, except ``store``: microseconds, because it identifies a row of ``half``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Records: TypeAlias = NDArray[np.void]
Bits: TypeAlias = NDArray[np.bool_]


class Kind(IntEnum):
    """The type of an event. ROLLBACK sorts before COMMIT: rule 1's order on an exact tie."""

    HALF = 0
    ROLLBACK = 1
    COMMIT = 2
    UNKNOWN = 3  # an op whose state is neither: never applied
    COUNTED = 4  # no op: the check with this number counts
    CANCEL = 5  # an op of an operator or the producer: ends a scheduled message
    MESSAGE = 6  # a half message without a transaction: its own COMMIT


class Source(IntEnum):
    """Who sent an op."""

    PRODUCER = 0
    CHECK = 1
    OPERATOR = 2
    CHECKBACK = 3  # no sender: a discard


class Action(IntEnum):
    """The type of an action. COMMIT, ROLLBACK, DISCARD and SCHEDULE: exactly one of them for each transaction.

    SCHEDULE: a decision COMMIT whose message is published later; then one of DELIVER and CANCEL follows.
    """

    COMMIT = 0
    ROLLBACK = 1
    DISCARD = 2
    CHECK = 3
    REJECT_OP = 4  # the op is not applied: detail is a Reason
    REJECT_HALF = 5  # a half message whose offset was seen before
    LATE_OP = 6  # its half is already decided: only the tables can tell whether op and half match
    SCHEDULE = 7
    DELIVER = 8
    CANCEL = 9
    PENDING = 10  # nothing is done: how many half messages of a group are pending in the segment, for the metrics


class Reason(IntEnum):
    """The detail of DISCARD and REJECT_OP."""

    CHECK_MAX = 0
    EXPIRED = 1
    WRONG_GROUP = 2
    WRONG_TRANSACTION_ID = 3
    NO_HALF = 4
    UNKNOWN_STATE = 5
    TOO_MANY = 6
    NOT_SCHEDULED = 7
    CANCELLED = 8


#: longest delay after a decision, in ms: a century
LONGEST_DELAY = 100 * 366 * 86_400_000

#: the reason in `rejected`
REJECTION = {
    Reason.WRONG_GROUP: "wrong producer_group: not that of the half message",
    Reason.WRONG_TRANSACTION_ID: "wrong transaction_id: not that of the half message",
    Reason.NO_HALF: "no half message with this offset came within transaction.max_age",
    Reason.TOO_MANY: "too many ops of this group wait for half messages that have not come",
    Reason.UNKNOWN_STATE: "unknown state: neither COMMIT nor ROLLBACK",
    Reason.NOT_SCHEDULED: "not scheduled: nothing to cancel, or it was published or cancelled before",
}


#: One half message or op in a batch. group and transaction are 64-bit hashes. Of a half message: immunity, < 0 = not
#: set; delay: 0 = none, > 0: its deliver_at (ms), < 0: minus the ms from COMMIT to delivery. Of an op of source check:
#: check, the number of the check that it answers or counts, -1 = none.
EVENT = np.dtype(
    [
        ("offset", "<i8"),
        ("kind", "u1"),
        ("source", "u1"),
        ("born", "<i8"),
        ("store", "<i8"),
        ("immunity", "<i8"),
        ("group", "<i8"),
        ("transaction", "<i8"),
        ("delay", "<i8"),
        ("check", "<i4"),
    ]
)
#: One pending half message. due: time of its next check. check_times: checks that count; requested: all
#: check requests. repeated: `half` holds a second row with this store.
PENDING = np.dtype(
    [
        ("offset", "<i8"),
        ("born", "<i8"),
        ("due", "<i8"),
        ("store", "<i8"),
        ("group", "<i8"),
        ("transaction", "<i8"),
        ("check_times", "<i4"),
        ("requested", "<i4"),
        ("repeated", "u1"),
        ("delay", "<i8"),
    ]
)
#: One scheduled message. due: time of its delivery. check_times: checks that counted before its decision.
SCHEDULED = np.dtype(
    [
        ("offset", "<i8"),
        ("due", "<i8"),
        ("store", "<i8"),
        ("group", "<i8"),
        ("transaction", "<i8"),
        ("check_times", "<i4"),
        ("repeated", "u1"),
    ]
)
#: One op waiting for its half. since: time of the batch in which it arrived. Kept in order of arrival.
EARLY = np.dtype(
    [
        ("offset", "<i8"),
        ("kind", "u1"),
        ("source", "u1"),
        ("since", "<i8"),
        ("store", "<i8"),
        ("group", "<i8"),
        ("transaction", "<i8"),
    ]
)
#: One action. check_times: of a CHECK its number, of a decision the checks that counted before it. detail: Source of a
#: COMMIT, SCHEDULE, ROLLBACK or CANCEL, Reason of a DISCARD or REJECT_OP. due: time of delivery, of SCHEDULE, DELIVER
#: and CANCEL. PENDING: check_times is how many, due the oldest one's born time. offset, store, group and transaction
#: identify its row in `half`, or in `op` for REJECT_OP and LATE_OP.
ACTION = np.dtype(
    [
        ("action", "<i4"),
        ("offset", "<i8"),
        ("check_times", "<i4"),
        ("detail", "<i4"),
        ("repeated", "<i4"),
        ("store", "<i8"),
        ("group", "<i8"),
        ("transaction", "<i8"),
        ("due", "<i8"),
    ]
)

#: transaction of an op without a transaction id (RocketMQ's batched op form): only its group must match.
NOT_STATED = 0


def sort(records: Records, offset: str, *then: str) -> Records:
    """Records sorted by these fields (stable); unchanged if the offsets are strictly increasing."""
    if (records[offset][1:] > records[offset][:-1]).all():
        return records
    return records[np.lexsort([records[name] for name in (*reversed(then), offset)])]


def first_of_each(offsets: NDArray[Any]) -> Bits:
    """Mask of the first of each distinct offset; ``offsets`` are sorted."""
    first = np.ones(len(offsets), bool)
    first[1:] = offsets[1:] != offsets[:-1]
    return first


def only(rows: NDArray[Any], wanted: Bits) -> NDArray[Any]:
    """The wanted rows; no copy if that is all of them."""
    return rows if wanted.all() else rows[wanted]


def find(offsets: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.intp], Bits]:
    """The index of each wanted offset in the sorted offsets, and whether it is present."""
    at = np.searchsorted(offsets, wanted)
    if not len(offsets):
        return at, np.zeros(len(wanted), bool)
    at = np.minimum(at, len(offsets) - 1)
    return at, offsets[at] == wanted


def occurrence(ops: Records, *names: str) -> NDArray[Any]:
    """Number the ops that are equal in these fields: 0, 1, ... ``ops`` are sorted by offset."""
    if (ops["offset"][1:] > ops["offset"][:-1]).all():
        return np.zeros(len(ops), np.int64)
    order = np.lexsort([ops[name] for name in reversed(names)])  # stable: equal ops stay in order of arrival
    other = np.ones(len(ops), bool)
    other[1:] = np.logical_or.reduce([ops[name][order][1:] != ops[name][order][:-1] for name in names])
    turns = np.empty(len(ops), np.int64)
    starts = np.flatnonzero(other)
    turns[order] = np.arange(len(ops)) - np.repeat(starts, np.diff(np.append(starts, len(ops))))
    return turns
