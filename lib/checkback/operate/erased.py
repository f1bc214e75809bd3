"""Records erasures in `operations`: which messages, who and why; nothing of what was in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.errors import FencedError
from checkback.operate.operations import Operation, operation_row, row_of_no_transaction
from checkback.operate.transaction import Key, Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables

ERASE = "ERASE"
#: One for all rows, not one each as of other actions: identifiers stay in the log for ever, and erasures are many.
_APPLICATION = f"operator/{ERASE}"
_KEY = ("queue_id", "queue_offset", "transaction_id", "producer_group")


def record(
    store: OperatorTables, messages: Sequence[Mapping[str, Any]], signed: OperatorSignature, at: datetime
) -> None:
    """Append a row for each message that has none yet: before it is erased, for then it is not selected any more.

    ``messages``: queue_id, queue_offset, transaction_id, producer_group, real_topic. Without any, rows of `rejected`
    are erased, which name no message: one row says so. Raises FencedError, StorageError.
    """
    if not messages:
        _append(store, [row_of_no_transaction(at, ERASE, signed)])
        return
    known = {Key.of(row) for row in store.rows("operations", {"action": [ERASE]}, _KEY).to_pylist()}
    new = [
        Operation(
            at,
            ERASE,
            signed,
            Place(row["queue_id"], row["queue_offset"]),
            row["transaction_id"] or "",
            row["producer_group"] or "",
            row["real_topic"] or "",
        )
        for row in messages
        if None not in (row["queue_id"], row["queue_offset"]) and Key.of(row) not in known
    ]
    for first in range(0, len(new), store.at_once):
        _append(store, list(map(operation_row, new[first : first + store.at_once])))


def _append(store: OperatorTables, rows: Sequence[pa.Table]) -> None:
    last = store.last_version("operations", _APPLICATION)
    if not store.append("operations", pa.concat_tables(rows), _APPLICATION, 0 if last is None else last + 1):
        raise FencedError("another operator has recorded the same erasure", "operations", "run it again")
