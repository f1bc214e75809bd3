"""Tables whose timestamps are at the ends of their range, or null: in each column of each table in turn."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import write_deltalake

from checkback.storage.schemas import arrow_schema
from dashboard import incident
from support.query_times import table
from support.stories import Transaction, batch

if TYPE_CHECKING:
    from pathlib import Path

#: By folder, in us since the epoch: null, the least and the most; the years 1 and 9999 (its last us); the year 10000.
#: None hides another one: each is once the earliest or the latest of all.
EXTREMES = (
    (None, -(1 << 63), (1 << 63) - 1),
    (-62_135_596_800_000_000, 253_402_300_799_999_999),
    (253_402_300_800_000_000,),
)
_BATCH = 50


def queues(number: int) -> tuple[int, int]:
    """The queues of the half messages with a folder's extreme time of this number: of decided and of pending ones."""
    return 5 + 2 * number, 6 + 2 * number


def build(root: Path, *extremes: int | None) -> None:
    """Write an evening's tables into a folder, and rows with extreme times into each of them."""
    now = incident.build(root)
    of_table: dict[str, list[pa.Table]] = {}
    for number, extreme in enumerate(extremes):
        for name, row in _rows(now, number):
            schema = arrow_schema(name)
            times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
            content = [
                _with(row, schema, {at: extreme}, offset, _BATCH + 10 * number) for offset, at in enumerate(times)
            ]
            of_table.setdefault(name, []).extend(content)
    for name, tables in of_table.items():
        table(root, name)
        # Not by FileWriter: Python does not have these times, for statistics.
        write_deltalake(f"{root}/{name}", pa.concat_tables(tables), mode="append")


def _with(row: dict[str, Any], schema: pa.Schema, times: dict[str, int | None], offset: int, batch_id: int) -> pa.Table:
    """A table of the row at another offset, with times in us that Python does not have."""
    named = {"queue_offset": offset, "half_queue_offset": offset, "batch_id": batch_id}
    row = row | {name: value for name, value in named.items() if name in row}
    columns = [
        pa.array([times[field.name]], pa.int64()).cast(field.type)
        if field.name in times
        else pa.array([row.get(field.name)], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _rows(now: datetime, number: int) -> list[tuple[str, dict[str, Any]]]:
    """A row of each table, as it might have been written."""
    one, pending = (Transaction(queue, 0, now) for queue in queues(number))
    scheduled = one.decision(decided_at=now, deliver_at=now)[1]
    published = one.published("payments", published_at=now)
    delivered = {name: value for name, value in scheduled.items() if name in arrow_schema("deliveries").names}
    operation = one.key | {"action": "RESUME", "actor": "ann", "reason": "why", "at": now, "real_topic": "payments"}
    dead = published[1] | {"consumer_group": "ledger", "topic": "payments", "reconsume_times": 16, "reason": "why"}
    return [
        one.half(),
        pending.half(deliver_at=now),
        one.op(),
        published,
        one.unpublished("refunds", unpublished_at=now),
        ("decisions", scheduled),
        one.check(),
        ("deliveries", delivered | {"delivered_at": now}),
        incident._answer(one, 1, now, "NO_ANSWER", "http://x"),
        incident._answer(pending, 1, now, "COMMIT", "http://x"),
        pending.check(),
        one.discarded(discarded_at=now),
        one.rejected_half(),
        ("operations", operation),
        ("dead_letters", dead | {"dead_at": now}),
        batch(_BATCH, now, "q"),
    ]
