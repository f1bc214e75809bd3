"""`checkback resolve`: an op of the operator ends a pending transaction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.operate.action import Action
from checkback.operate.operations import RESOLVE, Operation
from checkback.operate.rows import op_row
from checkback.operate.rules import judge_resolve

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from checkback.operate.operator_signature import OperatorSignature
    from checkback.operate.tables import OperatorTables
    from checkback.operate.transaction import Transaction


def resolving(state: str, signed: OperatorSignature, clock: Callable[[], datetime]) -> Action:
    """The action that appends an op; ``state`` is COMMIT or ROLLBACK.

    Each half message's `Key` is an application id of Delta's transaction identifiers, ``operator/<key>``: of two
    concurrent operators, one fails because the other's op is there.
    """

    def attempt(store: OperatorTables, transaction: Transaction, version: int) -> Operation | None:
        now = clock()
        if not store.append("op", op_row(transaction, state, signed, now), f"operator/{transaction.key}", version):
            return None
        names = (transaction.transaction_id, transaction.producer_group, transaction.real_topic)
        return Operation(now, RESOLVE[state], signed, transaction.place, *names)

    return Action(RESOLVE[state], judge_resolve, lambda _: 0, attempt)
