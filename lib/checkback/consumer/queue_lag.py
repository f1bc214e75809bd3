"""How far the consumer groups are, by queue, as rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.storage import consumer_tables
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from checkback.consumer.group.group_lag import GroupLag
    from checkback.settings import Settings

_SCHEMA = pa.schema(
    {
        "group": pa.string(),
        "topic": pa.string(),
        "queue_id": pa.int32(),
        "owner": pa.string(),
        "settled_at": pa.timestamp("us", "UTC"),
        "lag_messages": pa.int64(),
        "lag_s": pa.float64(),
        "retries": pa.int64(),
        "next_retry_at": pa.timestamp("us", "UTC"),
        "dead_letters": pa.int64(),
        "damaged": pa.string(),
    }
)


def queue_lag(settings: Settings, now: int, group: str | None = None) -> pa.Table:
    """A row for each queue of the groups, or of this one, at ``now`` (ms).

    Columns: group, topic, queue_id, owner (null = nobody), settled_at (batch time up to which all is consumed),
    lag_messages, lag_s, retries, next_retry_at, dead_letters, damaged (why the topic's table cannot be read:
    lag_messages and lag_s are null then; or the group's: it has one row, of which nothing else is known). Raises
    SettingsError, StorageError.
    """
    tables, _ = consumer_tables(settings)
    found = consumer_lag(tables, now, group)
    return pa.Table.from_pylist([row for each in found for row in _rows(each)], _SCHEMA)


def _rows(group: GroupLag) -> Iterator[dict[str, Any]]:
    if group.written_at is None:
        yield {"group": group.group, "damaged": group.damaged}
        return
    for topic in group.topics:
        for queue in topic.queues:
            yield {
                "group": group.group,
                "topic": topic.topic,
                "queue_id": queue.queue_id,
                "owner": queue.owner,
                "settled_at": _time(queue.position.settled_at),
                "lag_messages": queue.messages,
                "lag_s": queue.seconds,
                "retries": queue.retries,
                "next_retry_at": _time(queue.next_retry_at),
                "dead_letters": queue.dead_letters,
                "damaged": topic.damaged,
            }


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else time_of(ms)
