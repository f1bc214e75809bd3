"""The messages of a topic's complete batches, in order, without joining a group: nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.consume_from_where import start_position
from checkback.consumer.message import MessageExt, messages_of
from checkback.consumer.position import QUEUES, last_of
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import SettingsError
from checkback.messages.names import reserved
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.consumer.consume_from_where import StartFrom
    from checkback.filter import MessageSelector
    from checkback.storage.tables import Tables

#: batches that a run is chosen from, and messages that are made of rows at once
_BATCHES, _MESSAGES = 4096, 1024


def has_topic(tables: Tables, topic: str) -> bool:
    """Whether the topic has a table. Raises SettingsError if no topic can have this name, StorageError."""
    if not topic or "/" in topic or "\\" in topic or reserved(topic) is not None:
        raise SettingsError("is not the name of a topic", repr(topic)[:80], "name the folder in topics/")
    return DeltaLog.exists(tables.location(TOPIC_PREFIX + topic))


class Browser:
    """Reads a topic from a batch on. Not thread-safe."""

    def __init__(
        self,
        tables: Tables,
        topic: str,
        selector: MessageSelector | None = None,
        start_from: StartFrom = "first",
    ) -> None:
        """``selector``: None = all messages. ``start_from``: a time is that of a batch.

        Raises StorageError, SettingsError if there is no such batch.
        """
        self._topic = topic
        self._log = BatchLog(tables)
        self._reader = TopicReader(tables, topic, self._log, selector)
        self._log.refresh()
        #: behind the batches that were read
        self._position = start_position(self._log, start_from, "--from")
        #: messages behind it that were given out, before an error
        self._given = 0

    def read(self) -> Iterator[MessageExt]:
        """The messages of the batches that are complete now and were not read before.

        Raises StorageError; called again it goes on where that came.
        """
        self._log.refresh()
        while (at := self._log.listed.first_unconsumed(self._position)) < len(self._log):
            ahead = self._log.batches[at : at + _BATCHES]
            batches = ahead[: self._reader.run(ahead)]
            before = 0
            for rows in self._reader.read(batches, dict.fromkeys(range(QUEUES), self._position)):
                for first in range(max(0, self._given - before), len(rows), _MESSAGES):
                    for message in messages_of(self._topic, rows.rows.slice(first, _MESSAGES)):
                        self._given += 1
                        yield message
                before += len(rows)
            self._given = 0
            keys = [batch.key for batch in batches]
            self._position = self._position.after_batches(last_of(keys).values(), keys[-1].batch_time)
