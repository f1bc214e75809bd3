"""`checkback resume`: a discarded message becomes a new half message, in the queue reserved for resumed messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc

from checkback.operate.action import Action
from checkback.operate.operations import RESUME, Operation
from checkback.operate.rows import half_row
from checkback.operate.rules import RefusedError, judge_resume
from checkback.operate.transaction import Place

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from checkback.operate.operator_signature import OperatorSignature
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Transaction


def resuming(queue: int, signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends a half message to the queue.

    The queue is an application id of Delta's transaction identifiers, ``operator/<queue>``, the offset its version: of
    two concurrent operators, one finds the offset taken and retries with the next.
    """

    def next_offset(store: OperatorTables) -> int:
        last = pc.max(store.rows("half", {"queue_id": [queue]}, ["queue_offset"]).column("queue_offset")).as_py()
        return 0 if last is None else int(last) + 1

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        here = {"queue_id": [transaction.place.queue_id], "queue_offset": [transaction.place.queue_offset]}
        messages = store.rows("discarded", here).to_pylist()
        if not messages:
            raise RefusedError(
                "its message is not in `discarded`",
                f"transaction {transaction.place}",
                "run `checkback reconcile`, which finishes its last batch, then again",
            )
        place = Place(queue, version)
        now = clock()
        if not store.append("half", half_row(messages[0], place, signed, now), f"operator/{queue}", version):
            return None
        names = (transaction.transaction_id, transaction.producer_group, transaction.real_topic)
        return Operation(now, RESUME, signed, transaction.place, *names, place)

    return Action(RESUME, judge_resume, next_offset, attempt)
