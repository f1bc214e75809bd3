"""Ops that were received and are in flight, the verdicts on them, and the answers to them. No I/O, no clock.

The rules are those of RocketMQ's EndTransactionProcessor, plus one: the first op stands.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.remembered_half import name_of, short, whose
from checkback.gateway.problems import Problem
from checkback.messages.limits import LONG_MAX
from checkback.storage.first_op import misfit
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.problems import Answer
    from checkback.messages.op import Op, RemarkedOp


class Verdict(Enum):
    """The gateway's verdict on a message."""

    NEW = "new"
    REPEATED = "repeated"
    CONTRADICTION = "contradiction"
    UNKNOWN_OFFSET = "unknown_offset"
    WRONG_GROUP = "wrong_group"
    WRONG_TRANSACTION_ID = "wrong_transaction_id"


def judge_op(known: RememberedHalf | None, op: Op) -> Verdict:
    """The verdict on an op for the half message that it names; ``known`` None = there is no such half message."""
    if known is None:
        return Verdict.UNKNOWN_OFFSET
    # Fast path: most match.
    if op.transaction_id is None or known.name != name_of(op.producer_group, op.transaction_id):
        wrong = misfit(op.producer_group, short(op.transaction_id), *whose(known))
        if wrong is not None:
            return Verdict.WRONG_GROUP if wrong == "producer_group" else Verdict.WRONG_TRANSACTION_ID
    if known.state is None or (op.state == "CANCEL" and known.state == "COMMIT"):
        return Verdict.NEW
    return Verdict.REPEATED if known.state == op.state else Verdict.CONTRADICTION


_DETAILS = {
    Verdict.UNKNOWN_OFFSET: "queue_id, queue_offset: no half message of a gateway is there; it may have ended before "
    "retention.history",
    Verdict.WRONG_GROUP: "producer_group: the half message is another group's",
    Verdict.WRONG_TRANSACTION_ID: "transaction_id: the half message at queue_id, queue_offset has another",
}


@dataclass(eq=False)
class ReceivedOp:
    """An in-flight op, and the half message that it was checked against; None = unverified."""

    op: Op
    remark: str | None
    groups: Groups
    #: the (queue_id, queue_offset) of its half message
    place: Place
    half: RememberedHalf | None = None
    done: asyncio.Future[None] | None = None
    problem: Problem | None = None
    #: It is stored, but the decision was another: its answer.
    refused: Problem | None = None


@dataclass(eq=False)
class ReceivedOps:
    """In-flight ops of one request, each of another recent half message that had none.

    ``halves``: their cache entries (`DeduplicationCache.pending`); ``firsts``: by queue, their first offset; ``size``:
    approximate memory in bytes; ``done``: when they are committed, or failed with ``problem``.
    """

    ops: Sequence[RemarkedOp]
    places: Sequence[Place]
    halves: Sequence[RememberedHalf]
    firsts: dict[int, int]
    size: int
    done: asyncio.Future[None] | None = field(default=None, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.ops)


def firsts_of(places: Iterable[Place]) -> dict[int, int]:
    """By queue, the first offset of these places."""
    firsts: dict[int, int] = {}
    for queue_id, offset in places:
        if offset < firsts.get(queue_id, LONG_MAX):
            firsts[queue_id] = offset
    return firsts


def ended(op: Op, repeated: bool) -> Answer:
    """The transaction has ended with the op, or had before: ``repeated``."""
    return {
        "transaction_id": op.transaction_id,
        "queue_id": op.queue_id,
        "queue_offset": op.queue_offset,
        "state": op.state,
        "repeated": repeated,
    }


def judged(op: Op, verdict: Verdict) -> Answer:
    """What a verdict other than NEW and CONTRADICTION says of the op."""
    if verdict is Verdict.REPEATED:
        return ended(op, repeated=True)
    return Problem(verdict.value, _DETAILS[verdict])


def contradiction(first: str, reason: str | None = None, decided_at: int | None = None) -> Problem:
    """The transaction has ended with another state, ``first``; ``decided_at`` (ms): once `reconcile` has decided it."""
    why, when = f" ({reason})" if reason else "", "" if decided_at is None else f", decided at {iso(decided_at)}"
    more = {"first_state": first, "reason": reason, "decided_at": decided_at}
    return Problem("contradiction", f"the transaction has ended with {first}{why}{when}", more)
