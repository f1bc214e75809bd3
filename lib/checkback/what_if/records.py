"""The NumPy records that a replay reads and writes. Times are ms, except ``store``: µs.

A *turn* is a batch's place among the recorded batches, from 0. A transaction is told by its offset within a segment.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from checkback.reconcile.records.segment_records import EVENT


class Row(IntEnum):
    """The table that a RECORDED record is from."""

    HALF = 0
    OP = 1
    DECISION = 2
    REQUEST = 3
    ANSWER = 4


class State(IntEnum):
    """What became of a transaction. COMMIT includes scheduled messages; CANCEL: committed, then cancelled."""

    PENDING = 0
    ROLLBACK = 1
    COMMIT = 2
    DISCARD = 3
    CANCEL = 4


class Answered(IntEnum):
    """The outcome of a check."""

    NONE = 0  # no row tells
    ROLLBACK = 1
    COMMIT = 2
    UNKNOWN = 3
    NO_ANSWER = 4
    SKIPPED = 5


#: no batch: of a turn, later than any
NEVER = np.iinfo(np.int64).max
#: One row of a table. HALF, OP: an EVENT.
#: DECISION: kind is a State, source a Source, number the checks before it, reason a Reason. REQUEST: number. ANSWER:
#: kind is an Answered, number, at when it was answered; source 1 = an endpoint received the check. turn: of the batch
#: that wrote a DECISION or REQUEST.
RECORDED = np.dtype(
    [
        ("row", "u1"),
        *EVENT.descr,
        ("number", "<i4"),
        ("reason", "u1"),
        ("at", "<i8"),
        ("turn", "<i8"),
    ]
)
#: What became of one transaction. at, turn: of the decision; turn NEVER: of a batch that there was not. checks: asked
#: for until then; assumed: of these, those whose answer was never asked for. reason: of a DISCARD.
OUTCOME = np.dtype(
    [
        ("offset", "<i8"),
        ("state", "u1"),
        ("source", "u1"),
        ("reason", "u1"),
        ("checks", "<i4"),
        ("assumed", "<i4"),
        ("at", "<i8"),
        ("turn", "<i8"),
    ]
)
