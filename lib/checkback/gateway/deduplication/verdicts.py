"""The gateway's verdicts on half messages and ops. No I/O, no clock.

The rules are those of RocketMQ's EndTransactionProcessor, plus two: retries of a half message are idempotent, and the
first op stands.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.remembered_half import name_of, short, whose
from checkback.storage.first_op import misfit

if TYPE_CHECKING:
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.messages.op import Op


class Verdict(Enum):
    """The gateway's verdict on a message."""

    NEW = "new"
    REPEATED = "repeated"
    CONTRADICTION = "contradiction"
    UNKNOWN_OFFSET = "unknown_offset"
    WRONG_GROUP = "wrong_group"
    WRONG_TRANSACTION_ID = "wrong_transaction_id"


def judge_half(known: RememberedHalf | None, content: int) -> Verdict:
    """NEW, REPEATED (same content), or CONTRADICTION (same name, other content)."""
    if known is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.fingerprint == content else Verdict.CONTRADICTION


def judge_op(known: RememberedHalf | None, op: Op) -> Verdict:
    """The verdict on an op for the half message that it names; ``known`` None = there is no such half message."""
    if known is None:
        return Verdict.UNKNOWN_OFFSET
    # Fast path: most match.
    if op.transaction_id is None or known.name != name_of(op.producer_group, op.transaction_id):
        wrong = misfit(op.producer_group, short(op.transaction_id), *whose(known))
        if wrong is not None:
            return Verdict.WRONG_GROUP if wrong == "producer_group" else Verdict.WRONG_TRANSACTION_ID
    if known.state is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.state == op.state else Verdict.CONTRADICTION
