"""Consumer groups for notebooks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.storage import consumer_tables
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from datetime import datetime

    import pandas as pd

    from checkback.consumer.group.group_lag import GroupLag
    from checkback.settings import Settings

_COLUMNS = (
    "group",
    "topic",
    "queue_id",
    "owner",
    "settled_at",
    "lag_messages",
    "lag_s",
    "retries",
    "next_retry_at",
    "dead_letters",
    "damaged",
)
#: columns of numbers that may not be known
_NUMBERS = {
    "queue_id": "Int64",
    "lag_messages": "Int64",
    "lag_s": "Float64",
    "retries": "Int64",
    "dead_letters": "Int64",
}


def consumers(storage: Settings | str, group: str | None = None) -> pd.DataFrame:
    """A row for each queue of the groups, or of this one, without Spark; needs pandas.

    Columns: group, topic, queue_id, owner (None = nobody), settled_at (batch time up to which all is consumed, UTC),
    lag_messages, lag_s, retries, next_retry_at (UTC), dead_letters, damaged (why the topic's table cannot be read:
    lag_messages and lag_s are null then; or the group's: it has one row, of which nothing else is known). Raises
    SettingsError, StorageError.
    """
    import pandas as pd

    tables, _ = consumer_tables(storage)
    found = consumer_lag(tables, round(time.time() * 1000), group)
    frame = pd.DataFrame([row for each in found for row in _rows(each)], columns=list(_COLUMNS))
    frame = frame.astype(_NUMBERS)
    times = {name: pd.to_datetime(frame[name], utc=True) for name in ("settled_at", "next_retry_at")}
    return frame.assign(**times)


def _rows(group: GroupLag) -> list[tuple[object, ...]]:
    if group.written_at is None:
        return [(group.group, *(None for _ in _COLUMNS[1:-1]), group.damaged)]
    return [
        (
            group.group,
            topic.topic,
            queue.queue_id,
            queue.owner,
            _time(queue.position.settled_at),
            queue.messages,
            queue.seconds,
            queue.retries,
            _time(queue.next_retry_at),
            queue.dead_letters,
            topic.damaged,
        )
        for topic in group.topics
        for queue in topic.queues
    ]


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else time_of(ms)
