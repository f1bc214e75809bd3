"""The messages of batches in a topic's table, in order: by batch, then half_queue_id, half_queue_offset.

A batch's rows carry its id and its time, so they are found in whatever files they lie after an OPTIMIZE. Statistics
tell which files may have them. First the columns are read that say which messages are wanted, then all columns of the
row groups that have any.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from checkback.consumer.batch_listing import ListedBatch
from checkback.consumer.message_rows import FetchedMessages, MessageRows, Unread, joined
from checkback.consumer.position import QUEUES, MessageKey, Position
from checkback.consumer.row_groups import BatchTimes, RowGroup, WantedRows, groups_of
from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.followed_log import FollowedLog
from checkback.storage.horizon import missed_of
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.timestamps import ms_of, time_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from checkback.consumer.batch_log import BatchLog
    from checkback.filter import MessageSelector
    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables

#: files, their bytes, and batches that are read together; at least one batch
_RUN_FILES, _RUN_BYTES, _RUN_BATCHES = 256, 256 << 20, 4096
#: batches that are counted together
_COUNTED_BATCHES = 65_536
#: bytes of row groups that are read at once if their keys overlap; larger ones in pieces of so many bytes together
_AT_ONCE, _PIECE = 128 << 20, 32 << 20
#: attempts at reading while VACUUM deletes the files that were listed
_ATTEMPTS = 5


class TopicReader:
    """Reads one topic's table. Not thread-safe."""

    def __init__(self, tables: Tables, topic: str, batches: BatchLog, selector: MessageSelector | None = None) -> None:
        """``batches``: tell whether the table has a batch's rows. ``selector``: None = all messages."""
        self._name = TOPIC_PREFIX + topic
        self._place = tables.location(self._name)
        self._batches = batches
        self._selector = selector
        self._log = FollowedLog(tables, self._name)

    def open(self) -> bool:
        """Open the table's log, which reading does otherwise: in an object store by a dozen requests.

        False if there is no table.
        """
        with suppress(StorageError):  # told to whoever reads it
            return self._log.open() is not None
        return True

    def missed(self, group: str) -> tuple[int, int]:
        """The topic's horizon (ms; 0 = none), and how many messages the group has missed. Raises StorageError."""
        opened = self._log.open()
        return (0, 0) if opened is None else missed_of(opened[0], group)

    def run(self, batches: Sequence[ListedBatch]) -> int:
        """How many of the batches, from the first on, are to be read together. Raises StorageError."""
        files, there = self._look(batches[:_RUN_BATCHES], 1)
        batches = batches[:there]
        spans = [(file.size, *file.spans.get("published_at", (None, None))) for file in files]
        held: set[int] = set()
        size = 0
        for count, batch in enumerate(batches[:_RUN_BATCHES]):
            for number, (bytes_, least, most) in enumerate(spans):
                if number not in held and (
                    least is None or (ms_of(least) <= batch.key.batch_time and batch.first_time <= ms_of(most))
                ):
                    held.add(number)
                    size += bytes_
            if count and (size > _RUN_BYTES or len(held) > _RUN_FILES):
                return count
        return min(len(batches), _RUN_BATCHES)

    def read(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> Iterator[MessageRows]:
        """The messages of these batches that the selector matches, in order.

        ``wanted``: by queue (0 to 63) the position after which it is read. Raises StorageError.
        """
        groups = self._row_groups(batches, wanted, self._selector)
        groups.sort(key=lambda group: group.keys.at(0))
        together: list[RowGroup] = []
        last: tuple[int, ...] = ()
        for group in groups:
            if together and group.keys.at(0) > last:
                yield from self._loaded(together)
                together = []
            together.append(group)
            last = max(last, group.keys.at(-1)) if len(together) > 1 else group.keys.at(-1)
        if together:
            yield from self._loaded(together)

    def _loaded(self, groups: Sequence[RowGroup]) -> Iterator[MessageRows]:
        """The messages of row groups whose keys overlap: at once, or merged piece by piece if they are large."""
        if sum(group.size for group in groups) <= _AT_ONCE or not all(group.in_order for group in groups):
            yield self._load(groups)
            return
        pieces = [(group, group.pieces(_PIECE // len(groups))) for group in groups]
        held = [(pieces_, next(pieces_, None)) for _, pieces_ in pieces]
        while True:
            held = [(more, next(more, None) if rows is None else rows) for more, rows in held]
            held = [(more, rows) for more, rows in held if rows is not None]
            if not held:
                return
            # What is up to the first piece's end is complete: nothing before it can come any more.
            end = min(rows.keys.at(-1) for _, rows in held if rows is not None)
            ready = [(more, rows, rows.keys.up_to(end)) for more, rows in held if rows is not None]
            found = joined([rows.slice(0, count) for _, rows, count in ready if count])
            held = [(more, rows.slice(count, len(rows)) if count < len(rows) else None) for more, rows, count in ready]
            yield found

    def fetch(self, messages: Collection[MessageKey]) -> Iterator[FetchedMessages]:
        """Those of these messages that are there, without the selector, in any order, in parts that fit into memory.

        Raises StorageError.
        """
        wrote = frozenset({self._name})
        batches = [ListedBatch(key, key.batch_time, wrote) for key in sorted({each.batch for each in messages})]
        index = {batch.key: number for number, batch in enumerate(batches)}
        wanted = {(index[each.batch], *each[1:]) for each in messages}
        for group in self._row_groups(batches, dict.fromkeys(range(QUEUES), Position()), None):
            places = [place for place in range(len(group.keys)) if group.keys.at(place) in wanted]
            if not places:
                continue
            kept = np.array(places, np.int64)
            kept = kept[np.argsort(group.places[kept])]
            chosen = RowGroup(group.file, group.number, group.places[kept], group.keys.take(kept), group.times[kept])
            for rows in chosen.pieces(_PIECE):
                keys = (rows.keys.at(place) for place in range(len(rows)))
                yield FetchedMessages(tuple(MessageKey(batches[batch].key, *half) for batch, *half in keys), rows)

    def count(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> dict[int, Unread]:
        """By queue what it has not consumed of these batches, without the selector; queues without any are left out.

        Reads five columns. ``wanted``: as for `read`. Raises StorageError.
        """
        found: dict[int, Unread] = {}
        for first in range(0, len(batches), _COUNTED_BATCHES):
            for queue, more in self._counted(batches[first : first + _COUNTED_BATCHES], wanted).items():
                known = found.get(queue, Unread(0, more.oldest))
                found[queue] = Unread(known.messages + more.messages, min(known.oldest, more.oldest))
        return found

    def _counted(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> dict[int, Unread]:
        matrix = WantedRows(batches, wanted)
        attempts = 0
        while True:
            counts, oldest = np.zeros(QUEUES, np.int64), np.full(QUEUES, np.iinfo(np.int64).max)
            try:
                for group in groups_of(self._files(batches), matrix, None):
                    counts += np.bincount(group.keys.queue, minlength=QUEUES)
                    np.minimum.at(oldest, group.keys.queue, group.times)
            except FileNotFoundError as error:
                attempts += 1
                if attempts == _ATTEMPTS:
                    raise StorageError("a file of the table is missing", self._place, "restore it") from error
            else:
                return {int(queue): Unread(int(counts[queue]), int(oldest[queue])) for queue in np.flatnonzero(counts)}

    def _files(self, batches: Sequence[ListedBatch]) -> list[DataFile]:
        """The files that may have messages of these batches. Raises StorageError if the table may lack some."""
        return self._look(batches, len(batches))[0]

    def _look(self, batches: Sequence[ListedBatch], least: int) -> tuple[list[DataFile], int]:
        """The files that may have messages of these batches, and of how many from the first on the table has them.

        Raises StorageError if those are fewer than ``least``.
        """
        mine = [batch for batch in batches if batch.tables is None or self._name in batch.tables]
        if not mine:
            return [], len(batches)
        opened = self._log.open()
        if opened is None:
            if all(batch.tables is None for batch in mine):
                return [], len(batches)
            raise StorageError(
                f"the topic's table is not there, and batch {mine[-1].key.batch_id} may have messages in it",
                self._place,
                "put it back, or wait until `reconcile` can make it; consumers wait",
            )
        log, new = opened
        if new and not log.is_topic():
            raise self._log.refused(
                "is not the table of a topic: it has no columns half_queue_id and half_queue_offset",
                "move it away: `reconcile` then makes the topic's, with what waits in `unpublished`; consumers wait",
            )
        times = BatchTimes(mine)
        first, last = map(time_of, times.span)
        found = []
        for file in log.data_files({"published_at": (first, last)}):
            span = file.spans.get("published_at")
            if span is None or times.any_between(ms_of(span[0]), ms_of(span[1])):
                found.append(file)
        self._log.seen()
        if not log.readable():
            raise StorageError(
                "the table has a feature that only a Delta reader understands",
                self._place,
                "consume it by Spark (checkback.consumer.read_stream), or rewrite it without the feature",
            )
        return found, self._there(log, batches, least)

    def _there(self, log: DeltaLog, batches: Sequence[ListedBatch], least: int) -> int:
        """How many of the batches, from the first on, the table has the rows of; the log as last read."""
        listed = self._batches.listed
        behind = listed.first_behind(self._name, log.seen_version, log.created_at())
        if behind is None:
            return len(batches)
        first, version = behind
        places = [listed.index_of(batch.key) for batch in batches]
        if first == 0:  # a retry's batch that is left out, for it is consumed, was before all others
            left_out = [listed.floor.has_batch(batch.key) for batch in batches]
            places = [0 if out else place for place, out in zip(places, left_out, strict=True)]
        there = next((at for at, place in enumerate(places) if place is not None and place >= first), len(batches))
        if there < least:
            raise StorageError(
                f"the topic's table has version {log.seen_version}, and `batches` names version {version}: messages of "
                f"batch {batches[there].key.batch_id} may be missing",
                self._place,
                "put the newest table back, or wait until it has arrived; consumers wait",
            )
        return there

    def _row_groups(
        self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position], selector: MessageSelector | None
    ) -> list[RowGroup]:
        matrix = WantedRows(batches, wanted)
        for _ in range(_ATTEMPTS):
            with suppress(FileNotFoundError):
                return list(groups_of(self._files(batches), matrix, selector))
        raise StorageError("a file of the table is missing", self._place, "restore it")

    def _load(self, groups: Sequence[RowGroup]) -> MessageRows:
        with reading(self._place, but=(FileNotFoundError,)):
            return joined([group.read() for group in groups])
