"""Operator actions: who acts and why, and the rows that they append to `op`, `half` and the ledger `operations`.

The op or half row is committed first, then the ledger's, derived from it: the ledger never has an action that was not
performed (its op may have lost a race), and a row missing after a crash is added by the next action on the transaction,
with the actor, reason and time of the original.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkback import __version__
from checkback.errors import SettingsError
from checkback.messages.half import FIRST_PLACE, RESUMED_BY, RESUMED_FROM
from checkback.operate.transaction import OPERATOR, Key
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from checkback.operate.transaction import Place, Transaction

ACTOR_MAX = 120
REASON_MAX = 500
_BETWEEN = ": "


class OperatorSignature(NamedTuple):
    """Actor and reason; ``remark`` holds both: "ACTOR: REASON"."""

    actor: str
    reason: str

    @property
    def remark(self) -> str:
        """Both as one string, the inverse of ``parse``."""
        return f"{self.actor}{_BETWEEN}{self.reason}"

    @classmethod
    def of(cls, actor: str, reason: str) -> OperatorSignature:
        """Validated: one line of printable text each, the actor without ": ". Raises SettingsError."""
        for option, text, most in (("--actor", actor, ACTOR_MAX), ("--reason", reason, REASON_MAX)):
            if not text.strip():
                raise SettingsError("is empty", option, "say who acts, and why")
            if len(text) > most:
                raise SettingsError(f"{len(text)} characters, over {most}", option, "make it shorter")
            if not text.isprintable():
                raise SettingsError("is not one line of printable text", option, "leave out what cannot be printed")
        if _BETWEEN in actor.strip():
            raise SettingsError('has a ": "', "--actor", "leave it out: what follows it is the reason")
        return cls(actor.strip(), reason.strip())

    @classmethod
    def parse(cls, remark: str | None) -> OperatorSignature:
        """The signature in ``remark``; text in another format is all reason."""
        actor, between, reason = (remark or "").partition(_BETWEEN)
        return cls(actor, reason) if between else cls("", remark or "")


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
            if op is not None and op.source == OPERATOR:
                action, signed = ACTIONS[op.state], OperatorSignature.parse(op.remark)
                found.append(replace(Operation.on(one, op.stored, action, signed), in_vain=op in one.in_vain))
    return sorted(found, key=lambda operation: operation.at)


def op_row(transaction: Transaction, state: str, signed: OperatorSignature, now: datetime) -> pa.Table:
    """The op that ends a pending transaction: source operator, with the half's own group and transaction id."""
    return _one(
        "op",
        {
            "queue_id": transaction.place.queue_id,
            "queue_offset": transaction.place.queue_offset,
            "transaction_id": transaction.transaction_id,
            "producer_group": transaction.producer_group,
            "state": state,
            "source": OPERATOR,
            "remark": signed.remark,
            "born_timestamp": now,
            "store_timestamp": now,
        },
    )


def half_row(
    discarded: Mapping[str, Any], place: Place, signed: OperatorSignature, now: datetime, *, again: bool = False
) -> pa.Table:
    """The new half message for a row of `discarded`: the same message, born now, with its origin in properties.

    ``again``: it had been resumed before. Else such properties are a producer's own, or those of another message that
    it has forwarded: the place that its producer knows is that of the row.
    """
    queue_id, queue_offset = discarded["queue_id"], discarded["queue_offset"]
    properties = dict(discarded["properties"] or ())
    if again:
        properties.setdefault(FIRST_PLACE, properties[RESUMED_FROM])
    else:
        properties.pop(FIRST_PLACE, None)
    properties |= {RESUMED_FROM: f"{queue_id}/{queue_offset}", RESUMED_BY: signed.remark}
    new = {
        "queue_id": place.queue_id,
        "queue_offset": place.queue_offset,
        "properties": list(properties.items()),
        "born_timestamp": now,
        "store_timestamp": now,
    }
    return _one("half", {name: new.get(name, discarded[name]) for name in arrow_schema("half").names})


def operation_row(operation: Operation) -> pa.Table:
    """The ledger's row."""
    new = operation.new_place
    return _one(
        "operations",
        {
            "at": operation.at,
            "action": operation.action,
            "actor": operation.signed.actor,
            "reason": operation.signed.reason,
            "queue_id": operation.place.queue_id,
            "queue_offset": operation.place.queue_offset,
            "transaction_id": operation.transaction_id,
            "producer_group": operation.producer_group,
            "real_topic": operation.real_topic,
            "new_queue_id": None if new is None else new.queue_id,
            "new_queue_offset": None if new is None else new.queue_offset,
            "checkback_version": __version__,
        },
    )


def row_of_no_transaction(at: datetime, action: str, signed: OperatorSignature, topic: str = "") -> pa.Table:
    """The ledger's row of an action on something else."""
    return _one(
        "operations",
        {
            "at": at,
            "action": action,
            "actor": signed.actor,
            "reason": signed.reason,
            "real_topic": topic,
            "checkback_version": __version__,
        },
    )


def _one(name: str, row: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(row)], schema=arrow_schema(name))
