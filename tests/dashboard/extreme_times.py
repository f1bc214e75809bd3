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

#: us since the epoch: null, the least and the most, the years 1, 9999 (its last us) and 10000
EXTREMES = (None, -(1 << 63), (1 << 63) - 1, -62_135_596_800_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000)
_QUEUE = 5


def build(root: Path, extreme: int | None) -> None:
    """Write an evening's tables into a folder, and rows with an extreme time into each of them."""
    now = incident.build(root)
    for name, row in _rows(now):
        schema = arrow_schema(name)
        times = [field.name for field in schema if pa.types.is_timestamp(field.type)]
        content = [_with(row, schema, {at: extreme}, offset) for offset, at in enumerate(times)]
        table(root, name)
        # Not by FileWriter: Python does not have these times, for statistics.
        write_deltalake(f"{root}/{name}", pa.concat_tables(content), mode="append")


def _with(row: dict[str, Any], schema: pa.Schema, times: dict[str, int | None], offset: int) -> pa.Table:
    """A table of the row at another offset, with times in us that Python does not have."""
    named = {"queue_offset": offset, "half_queue_offset": offset, "batch_id": 50 + offset}
    row = row | {name: value for name, value in named.items() if name in row}
    columns = [
        pa.array([times[field.name]], pa.int64()).cast(field.type)
        if field.name in times
        else pa.array([row.get(field.name)], field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _rows(now: datetime) -> list[tuple[str, dict[str, Any]]]:
    """A row of each table, as it might have been written."""
    one, pending = Transaction(_QUEUE, 0, now), Transaction(_QUEUE + 1, 0, now)
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
        batch(50, now, "q"),
    ]
