"""Rows of `operations`, the ledger of operator actions: each is derived from the op or half row of the action.

That row is committed first, then the ledger's, derived from it: the ledger never has an action that was not performed
(its op may have lost a race), and a row missing after a crash is added by the next action on the transaction, with the
actor, reason and time of the original.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from checkback.operate.operator_signature import OperatorSignature
from checkback.operate.transaction import Key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from checkback.operate.transaction import Place, Transaction

RESUME, CANCEL = "RESUME", "CANCEL"
#: by state of the operator's op
ACTIONS = {"COMMIT": "RESOLVE_COMMIT", "ROLLBACK": "RESOLVE_ROLLBACK", CANCEL: CANCEL}


def application_of(action: str, key: Key) -> str:
    """The application, of Delta's transaction identifiers, of an action on a half message."""
    return f"operator/{action}/{key}"


@dataclass(frozen=True)
class Operation:
    """One operator action. ``place``: the transaction acted on, ``new_place``: the resumed message.

    ``in_vain``: its op was rejected, and another may be given.
    """

    at: datetime
    action: str
    signed: OperatorSignature
    place: Place
    transaction_id: str
    producer_group: str
    real_topic: str
    new_place: Place | None = None
    in_vain: bool = False

    @classmethod
    def on(
        cls, one: Transaction, at: datetime, action: str, signed: OperatorSignature, new_place: Place | None = None
    ) -> Operation:
        """An action on a half message."""
        names = (one.transaction_id, one.producer_group, one.real_topic)
        return cls(at, action, signed, one.place, *names, new_place)

    @property
    def key(self) -> Key:
        """What names the half message acted on."""
        return Key(self.place, self.transaction_id, self.producer_group)

    @property
    def name(self) -> tuple[str, Key, Place | None]:
        """What tells it from the others in the ledger."""
        return self.action, self.key, self.new_place

    @property
    def application(self) -> str:
        """That of its row, of Delta's transaction identifiers."""
        return application_of(self.action, self.key)


def operations_of(family: Iterable[Transaction]) -> list[Operation]:
    """The operator actions derived from the half messages and their ops, oldest first."""
    found = []
    for one in family:
        if one.resumed_from is not None:
            origin, signed = replace(one, place=one.resumed_from), OperatorSignature.parse(one.resumed_by)
            found.append(Operation.on(origin, one.stored, RESUME, signed, one.place))
        for op in (one.operators_op, *one.cancels[:1], *one.in_vain):
            if op is not None:
                action, signed = ACTIONS[op.state], OperatorSignature.parse(op.remark)
                found.append(replace(Operation.on(one, op.stored, action, signed), in_vain=op in one.in_vain))
    return sorted(found, key=lambda operation: operation.at)
