"""The lag of consumer groups, from the tables: read only, without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group_lag import GroupLag, MemberState, QueueLag, TopicLag, group_lag
from checkback.consumer.group_reader import chosen_groups, read_group
from checkback.consumer.group_state import MessageQueue
from checkback.consumer.topic_reader import TopicReader

if TYPE_CHECKING:
    from checkback.consumer.group_state import GroupState
    from checkback.consumer.message_rows import Unread
    from checkback.consumer.position import Position
    from checkback.storage.tables import Tables

__all__ = ["GroupLag", "LagReader", "MemberState", "QueueLag", "TopicLag", "consumer_lag"]


def consumer_lag(tables: Tables, now: int, group: str | None = None) -> list[GroupLag]:
    """The groups by name, or this one. ``now``: ms. Raises SettingsError if there is no such group, StorageError."""
    return LagReader(tables).read(now, group)


class LagReader:
    """Reads the lag repeatedly: logs that it has read are only followed. Not thread-safe."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._log = BatchLog(tables)
        self._readers: dict[str, TopicReader] = {}

    def read(self, now: int, group: str | None = None) -> list[GroupLag]:
        """As `consumer_lag`."""
        found = []
        for name in chosen_groups(self._tables, group):
            # The positions first: batches that end meanwhile are consumed by nobody yet.
            stored = read_group(self._tables, name)
            self._log.refresh()
            found.append(group_lag(name, stored.state, stored.written_at, self._unread(stored.state), now))
        return found

    def _unread(self, state: GroupState) -> dict[MessageQueue, Unread]:
        by_topic: dict[str, dict[int, Position]] = {}
        for queue, each in state.queues.items():
            by_topic.setdefault(queue.topic, {})[queue.queue_id] = each.position
        found: dict[MessageQueue, Unread] = {}
        for topic, positions in by_topic.items():
            batches = self._log.batches[min(map(self._log.first_unconsumed, positions.values())) :]
            reader = self._readers.setdefault(topic, TopicReader(self._tables, topic))
            counted = reader.count(batches, positions) if batches else {}
            found |= {MessageQueue(topic, queue_id): unread for queue_id, unread in counted.items()}
        return found
