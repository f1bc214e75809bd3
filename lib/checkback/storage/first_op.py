"""Which rows of `op` a half message is decided by, and in which order: rules 1 and 2 of docs/protocol.md.

`segment.decide` decides by hashes of them; whoever says beforehand what it will decide, or may not append an op where
one is, goes by this. A test holds both together. Pure; a row is a mapping with the columns of `op`.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, Literal

from checkback.messages import STATES

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]

#: the columns that it goes by, beside the half message's place
COLUMNS = ("producer_group", "transaction_id", "state", "born_timestamp", "store_timestamp")
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def misfit(
    op_group: str | None, op_transaction_id: str | None, group: str | None, transaction_id: str | None
) -> Literal["producer_group", "transaction_id"] | None:
    """What of an op is not the half message's (rule 2); None: it is its own. No transaction id = not stated."""
    if op_group != group:
        return "producer_group"
    return None if op_transaction_id in (None, transaction_id) else "transaction_id"


def is_own(op: Row, group: str | None, transaction_id: str | None) -> bool:
    """Is the op obeyed for the half message, if it is the first?"""
    return op["state"] in STATES and misfit(op["producer_group"], op["transaction_id"], group, transaction_id) is None


def turn(op: Row) -> tuple[int, int, bool]:
    """The order of the ops of one batch (rule 1): store_timestamp (us), born_timestamp (ms), ROLLBACK before COMMIT.

    Which batch takes an op, only `reconcile` knows. What is null counts as `event_columns.op_events` has it.
    """
    stored = op["store_timestamp"] or _EPOCH
    return _us(stored), _us(op["born_timestamp"] or stored) // 1000, op["state"] != "ROLLBACK"


def _us(time: datetime) -> int:
    return (time - _EPOCH) // timedelta(microseconds=1)
