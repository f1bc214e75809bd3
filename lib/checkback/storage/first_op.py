"""Which op decides a half message: rules 1 and 2 of docs/protocol.md, on rows of `op`.

`segment.decide` applies the same rules to hashes of the columns; this is for code that predicts its decision, or must
not append an op where one exists. A test keeps both consistent. Pure; a row is a mapping with the columns of `op`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from checkback.messages.op import STATES
from checkback.storage.timestamps import EPOCH, us_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    Row = Mapping[str, Any]

#: the columns used, besides queue_id and queue_offset
COLUMNS = ("producer_group", "transaction_id", "state", "born_timestamp", "store_timestamp")


def misfit(
    op_group: str | None, op_transaction_id: str | None, group: str | None, transaction_id: str | None
) -> Literal["producer_group", "transaction_id"] | None:
    """The column in which an op does not match the half message (rule 2); None if it matches.

    An op without a transaction id matches any.
    """
    if op_group != group:
        return "producer_group"
    return None if op_transaction_id in (None, transaction_id) else "transaction_id"


def is_own(op: Row, group: str | None, transaction_id: str | None) -> bool:
    """True if the op, when it is the first, decides the half message."""
    return op["state"] in STATES and misfit(op["producer_group"], op["transaction_id"], group, transaction_id) is None


def turn(op: Row) -> tuple[int, int, bool]:
    """Sort key of the ops of one batch (rule 1): store_timestamp (us), born_timestamp (ms), ROLLBACK before COMMIT.

    Only `reconcile` knows which batch reads an op. Nulls are handled as in `event_columns.op_events`.
    """
    stored = op["store_timestamp"] or EPOCH
    return us_of(stored), us_of(op["born_timestamp"] or stored) // 1000, op["state"] != "ROLLBACK"
