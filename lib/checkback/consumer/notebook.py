"""Consumer groups for notebooks."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from checkback.consumer.group.lag import consumer_lag
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
)


def consumers(storage: Settings | str, group: str | None = None) -> pd.DataFrame:
    """A row for each queue of the groups, or of this one, without Spark; needs pandas.

    Columns: group, topic, queue_id, owner (None = nobody), settled_at (batch time up to which all is consumed, UTC),
    lag_messages, lag_s, retries, next_retry_at (UTC), dead_letters. Raises SettingsError, StorageError.
    """
    import pandas as pd

    tables, _ = consumer_tables(storage)
    found = consumer_lag(tables, round(time.time() * 1000), group)
    frame = pd.DataFrame([row for each in found for row in _rows(each)], columns=list(_COLUMNS))
    times = {name: pd.to_datetime(frame[name], utc=True) for name in ("settled_at", "next_retry_at")}
    return frame.assign(**times)


def _rows(group: GroupLag) -> list[tuple[object, ...]]:
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
        )
        for topic in group.topics
        for queue in topic.queues
    ]


def _time(ms: int | None) -> datetime | None:
    return None if ms is None else time_of(ms)
