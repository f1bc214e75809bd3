"""The table `dead_letters`: messages that a group could not consume, appended once each.

Each given-up message has a number in its queue, kept in the group's state before it is appended. The append has the
highest number as Delta's application version: after a crash it is known which ones are in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.consumer.times import time_of
from checkback.storage.delta_log import DeltaLog
from checkback.storage.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.consumer.group_state import MessageQueue
    from checkback.consumer.position import MessageKey
    from checkback.consumer.retry import DeadLetter
    from checkback.consumer.topic_reader import TopicReader
    from checkback.storage.tables import Tables

TABLE = "dead_letters"


class DeadLetters:
    """Appends a group's dead letters. Not thread-safe."""

    def __init__(self, tables: Tables, group: str) -> None:
        self._tables = tables
        self._group = group
        self._log: DeltaLog | None = None

    def append(self, state_id: str, queue: MessageQueue, dead: Mapping[int, DeadLetter], reader: TopicReader) -> None:
        """Append those that are not in the table yet; ``dead``: by number, kept before. Raises StorageError.

        ``state_id``: identifies what counts the queue's dead letters.
        """
        app = f"{TABLE}/{state_id}/{queue.topic}/{queue.queue_id}"
        log = self._open()
        last = log.versions([app])[app] or 0
        new = {number: letter for number, letter in dead.items() if number > last}
        if not new:
            return
        rows = self._rows(queue, new, reader)
        with FileWriter(self._tables.root, sync=self._tables.sync) as writer:
            writer.write(TABLE, rows)
            log.commit(writer.close(), app, max(new))

    def _open(self) -> DeltaLog:
        if self._log is None:
            place = self._tables.location(TABLE)
            DeltaLog.create(TABLE, place, self._tables.sync)
            self._log = DeltaLog(TABLE, place, self._tables.sync)
        return self._log

    def _rows(self, queue: MessageQueue, dead: Mapping[int, DeadLetter], reader: TopicReader) -> pa.Table:
        found: dict[MessageKey, dict[str, Any]] = reader.fetch([each.message for each in dead.values()]).by_key()
        rows = []
        for letter in dead.values():
            key = letter.message
            bare = {
                "half_queue_id": key.half_queue_id,
                "half_queue_offset": key.half_queue_offset,
                "batch_id": key.batch.batch_id,
                "committed_at": time_of(key.batch.batch_time),
            }
            about = {
                "consumer_group": self._group,
                "topic": queue.topic,
                "reconsume_times": letter.times,
                "reason": letter.reason,
                "dead_at": time_of(letter.dead_at),
            }
            rows.append(found.get(key, bare) | about)
        return pa.Table.from_pylist(rows, arrow_schema(TABLE))
