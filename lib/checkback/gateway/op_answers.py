"""The answers to ops. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.gateway.deduplication.verdicts import Verdict
from checkback.gateway.problems import Problem
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.gateway.problems import Answer
    from checkback.messages.op import Op

_DETAILS = {
    Verdict.UNKNOWN_OFFSET: "queue_id, half_offset: no half message of a gateway is there",
    Verdict.WRONG_GROUP: "producer_group: the half message is another group's",
    Verdict.WRONG_TRANSACTION_ID: "transaction_id: the half message at queue_id, half_offset has another",
}


def ended(op: Op, repeated: bool) -> Answer:
    """The transaction has ended with the op, or had before: ``repeated``."""
    return {
        "transaction_id": op.transaction_id,
        "queue_id": op.queue_id,
        "queue_offset": op.half_offset,
        "state": op.state,
        "repeated": repeated,
    }


def judged(op: Op, verdict: Verdict, known: RememberedHalf | None) -> Answer:
    """What a verdict other than NEW says of the op; ``known``: its half message."""
    if verdict is Verdict.REPEATED:
        return ended(op, repeated=True)
    if verdict is Verdict.CONTRADICTION and known is not None:
        return contradiction(str(known.state), known.reason, known.decided_at)
    return Problem(verdict.value, _DETAILS[verdict])


def contradiction(first: str, reason: str | None = None, decided_at: int | None = None) -> Problem:
    """The transaction has ended with another state, ``first``; ``decided_at`` (ms): once `reconcile` has decided it."""
    why, when = f" ({reason})" if reason else "", "" if decided_at is None else f", decided at {iso(decided_at)}"
    more = {"first_state": first, "reason": reason, "decided_at": decided_at}
    return Problem("contradiction", f"the transaction has ended with {first}{why}{when}", more)
