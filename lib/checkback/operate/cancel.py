"""`checkback cancel`: an op of the operator ends a scheduled message before its time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.operate.action import Action
from checkback.operate.operations import CANCEL, Operation
from checkback.operate.rows import op_row
from checkback.operate.rules import judge_cancel

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from checkback.operate.operator_signature import OperatorSignature
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Transaction

#: version of the op's Delta transaction identifier; that of `resolve`, which came before if it came, is 0
_VERSION = 1


def cancelling(signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends an op CANCEL. Of two concurrent operators, one fails because the other's op is there."""

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        now = clock()
        if not store.append("op", op_row(transaction, CANCEL, signed, now), f"operator/{transaction.key}", version):
            return None
        names = (transaction.transaction_id, transaction.producer_group, transaction.real_topic)
        return Operation(now, CANCEL, signed, transaction.place, *names)

    return Action(CANCEL, judge_cancel, lambda _: _VERSION, attempt)
