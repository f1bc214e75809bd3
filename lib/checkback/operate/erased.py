"""Records erasures in `operations`: which messages, who and why; nothing of what was in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.errors import FencedError
from checkback.operate.operations import Operation, operation_row
from checkback.operate.transaction import Key, Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from datetime import datetime

    from checkback.operate.operations import OperatorSignature
    from checkback.operate.operator_tables import OperatorTables

ERASE = "ERASE"
_KEY = ("queue_id", "queue_offset", "transaction_id", "producer_group")


def record(
    store: OperatorTables, messages: Iterable[Mapping[str, Any]], signed: OperatorSignature, at: datetime
) -> None:
    """Append a row for each message that has none yet: before it is erased, for then it is not selected any more.

    ``messages``: queue_id, queue_offset, transaction_id, producer_group, real_topic. Raises FencedError, StorageError.
    """
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
        part = new[first : first + store.at_once]
        rows = pa.concat_tables(map(operation_row, part))
        if not store.append_each("operations", rows, [one.application for one in part]):
            raise FencedError("another operator has recorded the same erasure", "operations", "run it again")
