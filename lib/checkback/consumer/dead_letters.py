"""The table `dead_letters`: messages that a group could not consume, appended once each.

Each given-up message has a number in its queue, kept in the group's state before it is appended, with SqlPositions also
in the queue's row. The append has the highest number as Delta's application version: after a crash it is known which
ones are in the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from checkback.errors import StorageError
from checkback.storage.followed_log import FollowedLog
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.parquet.parquet_reader import read_rows
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import ms_of, time_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from checkback.consumer.group.group_state import MessageQueue
    from checkback.consumer.position import MessageKey
    from checkback.consumer.retry_or_dead_letter import DeadLetter
    from checkback.consumer.topic_reader import TopicReader
    from checkback.storage.tables import Tables

TABLE = "dead_letters"


class DeadLetters:
    """Appends a group's dead letters. Not thread-safe."""

    def __init__(self, tables: Tables, group: str) -> None:
        self._tables = tables
        self._group = group
        self._log = FollowedLog(tables, TABLE, tables.sync)

    def append(self, state_id: str, queue: MessageQueue, dead: Mapping[int, DeadLetter], reader: TopicReader) -> int:
        """Append those that are not in the table yet; ``dead``: by number, kept before. Raises StorageError.

        ``state_id``: identifies what counts the queue's dead letters. Returns the last number that is taken. What
        counts them may have been restored from a backup: those whose number is taken are looked up in the table.
        """
        app = f"{TABLE}/{state_id}/{queue.topic}/{queue.queue_id}"
        log = self._open()
        last = log.versions([app])[app] or 0
        taken = {number: letter for number, letter in dead.items() if number <= last}
        there = self._there(log, queue, taken) if taken else set()
        new = [letter for number, letter in dead.items() if number > last or letter not in there]
        if not new:
            return last
        if not log.appendable():
            raise StorageError(
                "somebody has clustered, partitioned or altered the table: dead letters wait in the group's table",
                self._tables.location(TABLE),
                "undo it, or move the table away: it is recreated",
            )
        version = max(last + 1, *dead)
        with FileWriter(self._tables.root, sync=self._tables.sync) as writer:
            for rows in self._rows(queue, new, reader):
                writer.write(TABLE, rows)
            files = writer.close()
        # Outside the writer's context, which removes the files on an error: they may be committed by then.
        log.commit(files, app, version)
        self._log.seen()
        return version

    def _there(self, log: DeltaLog, queue: MessageQueue, dead: Mapping[int, DeadLetter]) -> set[DeadLetter]:
        """Those of the dead letters that the table has."""
        offsets = [letter.message.half_queue_offset for letter in dead.values()]
        mine = (pc.field("consumer_group") == self._group) & (pc.field("topic") == queue.topic)
        columns = ["half_queue_id", "half_queue_offset", "dead_at"]
        found: set[tuple[int, int, int]] = set()
        for file in log.data_files({"half_queue_offset": (min(offsets), max(offsets))}):
            rows = read_rows(file.path, TABLE, columns, mine & pc.field("half_queue_offset").isin(offsets))
            found |= {
                (row["half_queue_id"], row["half_queue_offset"], ms_of(row["dead_at"])) for row in rows.to_pylist()
            }
        return {letter for letter in dead.values() if (*letter.message[1:], letter.dead_at) in found}

    def _open(self) -> DeltaLog:
        opened = self._log.open()
        while opened is None:
            DeltaLog.create(TABLE, self._log.place, self._tables.sync)
            opened = self._log.open()
        return opened[0]

    def _rows(self, queue: MessageQueue, dead: Sequence[DeadLetter], reader: TopicReader) -> Iterator[pa.Table]:
        """Their rows in parts; of a message that is no longer in its topic only the key is known."""
        letters: dict[MessageKey, list[DeadLetter]] = {}
        for letter in dead:
            letters.setdefault(letter.message, []).append(letter)
        schema = arrow_schema(TABLE)
        for part in reader.fetch(list(letters)):
            found = part.by_key()
            rows = [found[key] | self._about(queue, letter) for key in found for letter in letters.pop(key, ())]
            yield pa.Table.from_pylist(rows, schema)
        yield pa.Table.from_pylist(
            [_bare(queue, key) | self._about(queue, letter) for key, those in letters.items() for letter in those],
            schema,
        )

    def _about(self, queue: MessageQueue, letter: DeadLetter) -> dict[str, Any]:
        return {
            "consumer_group": self._group,
            "topic": queue.topic,
            "reconsume_times": letter.times,
            "reason": letter.reason,
            "dead_at": time_of(letter.dead_at),
        }


def _bare(queue: MessageQueue, key: MessageKey) -> dict[str, Any]:
    return {
        "queue_id": queue.queue_id,
        "half_queue_id": key.half_queue_id,
        "half_queue_offset": key.half_queue_offset,
        "batch_id": key.batch.batch_id,
        "published_at": time_of(key.batch.batch_time),
    }
