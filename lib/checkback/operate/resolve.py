"""`checkback tx resolve` and `tx cancel`: an op of the operator ends a pending transaction, or a scheduled message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.operate.action import Action
from checkback.operate.operations import ACTIONS, CANCEL, Operation
from checkback.operate.rows import op_row
from checkback.operate.rules import judge_cancel, judge_resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from checkback.operate.operator_signature import OperatorSignature
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Transaction


def ending(state: str, signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends an op; ``state`` is COMMIT, ROLLBACK or CANCEL.

    Each half message's `Key` is an application id of Delta's transaction identifiers, ``operator/<key>``: of two
    concurrent operators, one fails because the other's op is there. The version of a CANCEL is 1: that of the COMMIT
    before it is 0, if an operator gave it. Where they are taken, it is the next: of a table that was restored to an
    older version the op is gone, while the versions stay.
    """
    judge, first = (judge_cancel, 1) if state == CANCEL else (judge_resolve, 0)

    def next_version(store: OperatorTables, refused: Transaction | None) -> int:
        last = None if refused is None else store.last_version("op", f"operator/{refused.key}")
        return first if last is None else max(first, last + 1)

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        now = clock()
        if not store.append("op", op_row(transaction, state, signed, now), f"operator/{transaction.key}", version):
            return None
        return Operation.on(transaction, now, ACTIONS[state], signed)

    return Action(ACTIONS[state], judge, next_version, attempt)
