"""Ops that were received and are in flight, and the answers to them. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from checkback.gateway.deduplication.verdicts import Verdict
from checkback.gateway.problems import Problem
from checkback.messages.limits import LONG_MAX
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.problems import Answer
    from checkback.messages.op import Op, RemarkedOp

_DETAILS = {
    Verdict.UNKNOWN_OFFSET: "queue_id, half_offset: no half message of a gateway is there",
    Verdict.WRONG_GROUP: "producer_group: the half message is another group's",
    Verdict.WRONG_TRANSACTION_ID: "transaction_id: the half message at queue_id, half_offset has another",
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
        "queue_offset": op.half_offset,
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
