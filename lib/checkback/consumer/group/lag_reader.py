"""The lag of consumer groups, from the tables: read only, without Spark."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group.group_lag import GroupLag, damaged_group, group_lag
from checkback.consumer.group.group_reader import StoredGroup, chosen_groups, no_such_group, read_group
from checkback.consumer.group.group_state import MessageQueue
from checkback.consumer.position import floor_of
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import StorageError
from checkback.storage.files.object_store import concurrently

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checkback.consumer.group.group_state import GroupState
    from checkback.consumer.message_rows import Unread
    from checkback.consumer.position import Position
    from checkback.storage.tables import Tables

    _Counted: TypeAlias = Sequence[tuple[Mapping[MessageQueue, Unread], int]]


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
        """As `consumer_lag`. Of all groups, one whose table, or a topic's, cannot be read does not hide the others."""
        names = chosen_groups(self._tables, group)
        if not names:
            return []
        # The positions first: batches that end meanwhile are consumed by nobody yet. Logs may be opened before.
        read = read_group if group is not None else _stored_or_damaged
        _, *found = self._together(self._log.open, *(partial(read, self._tables, name) for name in names))
        damaged = [one for one in found if isinstance(one, GroupLag)]
        stored = {name: one for name, one in zip(names, found, strict=True) if isinstance(one, StoredGroup)}
        stored = {name: one for name, one in stored.items() if not one.state.removed}
        if group is not None and not stored:
            raise no_such_group(self._tables, group)
        states = [one.state for one in stored.values()]
        topics = sorted({queue.topic for state in states for queue in state.queues})
        for topic in topics:
            self._readers.setdefault(topic, TopicReader(self._tables, topic, self._log))
        floor = floor_of(each.position for state in states for each in state.queues.values())
        _, *there = self._together(partial(self._log.refresh, floor), *(self._readers[topic].open for topic in topics))
        missing = {topic for topic, opened in zip(topics, there, strict=True) if not opened}
        count = self._unread if group is not None else self._unread_or_why
        counts = self._together(*(partial(count, topic, list(stored), states) for topic in topics))
        whys = {topic: why for topic, why in zip(topics, counts, strict=True) if isinstance(why, str)}
        counted = {topic: of for topic, of in zip(topics, counts, strict=True) if not isinstance(of, str)}
        known = []
        for at, (name, one) in enumerate(stored.items()):
            unread = {key: each for of in counted.values() for key, each in of[at][0].items()}
            missed = {topic: of[at][1] for topic, of in counted.items()}
            known.append(group_lag(name, one.state, one.written_at, unread, now, whys, missing - whys.keys(), missed))
        return sorted([*known, *damaged], key=lambda one: one.group)

    def _together(self, *steps: Callable[[], Any]) -> list[Any]:
        """What they return; in an object store they run side by side."""
        return list(concurrently(self._tables.root, lambda step: step(), steps))

    def _unread_or_why(self, topic: str, groups: Sequence[str], states: Sequence[GroupState]) -> _Counted | str:
        """`_unread`, or why it is not known."""
        try:
            return self._unread(topic, groups, states)
        except StorageError as error:
            return str(error)

    def _unread(self, topic: str, groups: Sequence[str], states: Sequence[GroupState]) -> _Counted:
        """What each group has not consumed of a topic, and how many messages it has missed."""
        found = []
        for group, state in zip(groups, states, strict=True):
            positions = {queue.queue_id: each.position for queue, each in state.queues.items() if queue.topic == topic}
            reader = self._readers[topic]
            counted = unread_of(self._log, reader, positions)
            unread = {MessageQueue(topic, queue_id): unread for queue_id, unread in counted.items()}
            found.append((unread, reader.missed(group)[1] if positions else 0))
        return found


def unread_of(log: BatchLog, reader: TopicReader, positions: Mapping[int, Position]) -> dict[int, Unread]:
    """By queue what lies behind its position; queues without any are left out. Raises StorageError."""
    first = min(map(log.listed.first_unconsumed, positions.values()), default=len(log))
    batches = log.batches[first:]
    return reader.count(batches, positions) if batches else {}


def _stored_or_damaged(tables: Tables, group: str) -> StoredGroup | GroupLag:
    try:
        return read_group(tables, group)
    except StorageError as error:
        return damaged_group(group, str(error))
