"""The row groups of a topic's files that have wanted messages: which rows, in which order, read whole or in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.consumer.message_rows import MessageKeys, MessageRows
from checkback.consumer.position import QUEUES, Position
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema, in_schema
from checkback.storage.timestamps import ms_of, python_times
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.filter import MessageSelector
    from checkback.storage.log.snapshot_files import DataFile

_SCHEMA = arrow_schema(TOPIC_PREFIX)
_KEY = ["batch_id", "published_at", "queue_id", "half_queue_id", "half_queue_offset"]


@dataclass(frozen=True)
class RowGroup:
    """A row group with wanted messages: which of its rows, in order, and their keys."""

    file: pq.ParquetFile
    number: int
    places: NDArray[np.int64]
    keys: MessageKeys

    @property
    def size(self) -> int:
        """Bytes of its rows when they are read."""
        return int(self.file.metadata.row_group(self.number).total_byte_size)

    @property
    def in_order(self) -> bool:
        """True if its rows lie in the order of their keys."""
        return bool((np.diff(self.places) > 0).all())

    def read(self) -> MessageRows:
        """Its wanted messages, in order."""
        rows = self.file.read_row_group(self.number, self._columns())
        return self._wanted(rows, self.places, self.keys)

    def pieces(self, size: int) -> Iterator[MessageRows]:
        """Its wanted messages in pieces of about ``size`` bytes of the row group; it must be in order."""
        count = self.file.metadata.row_group(self.number).num_rows
        most = max(1, min(count, size * count // max(1, self.size)))
        first = 0
        for batch in self.file.iter_batches(most, [self.number], self._columns(), use_threads=False):
            low, high = np.searchsorted(self.places, [first, first + len(batch)])
            if high > low:
                chosen = np.arange(low, high)
                yield self._wanted(
                    pa.Table.from_batches([batch]), self.places[low:high] - first, self.keys.take(chosen)
                )
            first += len(batch)

    def _columns(self) -> list[str]:
        there = set(self.file.schema_arrow.names)
        return [name for name in _SCHEMA.names if name in there]

    def _wanted(self, rows: pa.Table, places: NDArray[np.int64], keys: MessageKeys) -> MessageRows:
        found = python_times(_conform(rows, _SCHEMA.names))
        if len(places) != len(found) or bool((np.diff(places) != 1).any()):
            found = found.take(places)
        return MessageRows(keys, found)


class WantedRows:
    """Which rows are wanted: those of a run's batches that a queue's position does not have."""

    def __init__(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> None:
        self._ids = np.array([batch.key.batch_id for batch in batches], np.int64)
        self._times = np.array([batch.key.batch_time for batch in batches], np.int64)
        self._order = np.argsort(self._ids, kind="stable")
        self._matrix = np.zeros((QUEUES, len(batches)), bool)
        self._parts: list[tuple[int, int, int, int]] = []
        rows: dict[tuple[tuple[tuple[str, int], ...], ...], NDArray[np.bool_]] = {}
        for queue, position in wanted.items():
            consumed = tuple(sorted(position.consumed.items())), tuple(sorted(position.times.items()))
            if consumed not in rows:
                rows[consumed] = np.array([not position.has_batch(batch.key) for batch in batches], bool)
            self._matrix[queue] = rows[consumed]
            if position.part is not None:
                for index, batch in enumerate(batches):
                    if batch.key == position.part.batch:
                        self._parts.append((queue, index, *position.part[1:]))

    def outside(self, group: pq.RowGroupMetaData) -> bool:
        """True if the row group's statistics say that no batch is in it."""
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema == "published_at":
                found = column.statistics
                if found is None or not found.has_min_max:
                    return False
                try:
                    least, most = ms_of(found.min), ms_of(found.max)
                except OverflowError:  # another writer's, beyond the year 9999
                    return False
                return not any_between(np.sort(self._times), least, most)
        return False

    def of(self, rows: pa.Table) -> tuple[NDArray[np.int64], MessageKeys] | None:
        """The places of the wanted rows, and their keys; None if there are none."""
        ids, times = _integers(rows, "batch_id"), _integers(rows, "published_at") // 1000
        batch = np.full(len(ids), -1, np.int64)
        sorted_ids = self._ids[self._order]
        low, high = np.searchsorted(sorted_ids, ids, "left"), np.searchsorted(sorted_ids, ids, "right")
        for more in range(int((high - low).max(initial=0))):
            at = low + more
            there = at < high
            candidate = self._order[np.where(there, at, 0)]
            same = there & (batch < 0) & (self._times[candidate] == times)
            batch[same] = candidate[same]
        queue = np.mod(_integers(rows, "queue_id"), QUEUES)
        mask = batch >= 0
        mask[mask] = self._matrix[queue[mask], batch[mask]]
        half_queue_id, half_queue_offset = _integers(rows, "half_queue_id"), _integers(rows, "half_queue_offset")
        for queue_id, index, part_queue, part_offset in self._parts:
            done = (half_queue_id < part_queue) | ((half_queue_id == part_queue) & (half_queue_offset <= part_offset))
            mask &= ~((queue == queue_id) & (batch == index) & done)
        places = np.flatnonzero(mask)
        if not len(places):
            return None
        columns = (batch, queue, half_queue_id, half_queue_offset)
        return places, MessageKeys(*(column[places] for column in columns))


def groups_of(files: Sequence[DataFile], wanted: WantedRows, selector: MessageSelector | None) -> Iterator[RowGroup]:
    """The row groups of files with wanted messages. Small files of an object store are read ahead."""
    sources = table_files.sources([(file.path, file.size) for file in files])
    for file in files:
        with reading(file.path, but=(FileNotFoundError,)):
            yield from _groups_in(next(sources), wanted, selector)


def _groups_in(source: Any, wanted: WantedRows, selector: MessageSelector | None) -> Iterator[RowGroup]:
    chosen = () if selector is None else selector.columns
    columns = [*_KEY, *chosen]
    file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
    names = set(file.schema_arrow.names)
    for number in range(file.num_row_groups):
        if wanted.outside(file.metadata.row_group(number)):
            continue
        read = file.read_row_group(number, [name for name in columns if name in names])
        conformed = _conform(read, columns)
        found = wanted.of(conformed)
        if found is not None and selector is not None:
            places, keys = found
            selected = conformed.select(list(chosen))
            if len(places) < len(conformed):
                selected = selected.take(places)
            kept = np.flatnonzero(_booleans(selector.mask(selected)))
            found = (places[kept], keys.take(kept)) if len(kept) else None
        if found is not None:
            places, keys = found
            order = keys.order()
            if order is not None:
                places, keys = places[order], keys.take(order)
            yield RowGroup(file, number, places, keys)


def _conform(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    """These columns with the types of a topic's table, `valid_texts`; a missing one is null."""
    return valid_texts(in_schema(rows, pa.schema([_SCHEMA.field(name) for name in columns])))


def _integers(rows: pa.Table, name: str) -> NDArray[np.int64]:
    found: NDArray[np.int64] = pc.fill_null(rows.column(name).cast(pa.int64()), 0).to_numpy()
    return found.astype(np.int64, copy=False)


def _booleans(mask: pa.Array | pa.ChunkedArray) -> NDArray[np.bool_]:
    filled = pc.fill_null(mask, False)
    found: NDArray[np.bool_] = (
        filled.to_numpy() if isinstance(filled, pa.ChunkedArray) else filled.to_numpy(zero_copy_only=False)
    )
    return found


def any_between(times: NDArray[np.int64], least: int, most: int) -> bool:
    """True if one of the sorted times is there."""
    at = int(np.searchsorted(times, least))
    return at < len(times) and int(times[at]) <= most
