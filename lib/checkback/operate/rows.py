"""The rows that operator actions append: to `op`, `half` and `operations`. Pure; one row each, as Arrow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback import __version__
from checkback.messages.half import FIRST_PLACE, RESUMED_BY, RESUMED_FROM
from checkback.operate.transaction import OPERATOR
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from checkback.operate.operations import Operation
    from checkback.operate.operator_signature import OperatorSignature
    from checkback.operate.transaction import Place, Transaction


def op_row(transaction: Transaction, state: str, signed: OperatorSignature, now: datetime) -> pa.Table:
    """The op that ends a pending transaction: source operator, with the half's own group and transaction id."""
    return _one(
        "op",
        {
            "queue_id": transaction.place.queue_id,
            "half_offset": transaction.place.queue_offset,
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


def _one(name: str, row: Mapping[str, Any]) -> pa.Table:
    return pa.Table.from_pylist([dict(row)], schema=arrow_schema(name))
