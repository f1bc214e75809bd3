"""The row groups of a topic's files that have wanted messages: which rows, in which order, read whole or in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.consumer.batch_listing import begins_of
from checkback.consumer.message_rows import MessageKeys, MessageRows
from checkback.consumer.position import QUEUES, Position
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema, in_schema
from checkback.storage.timestamps import ms_of, python_times
from checkback.storage.valid_texts import valid_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.filter import MessageSelector
    from checkback.storage.log.snapshot_files import DataFile

    _Found = tuple[NDArray[np.int64], MessageKeys, NDArray[np.int64]]

_SCHEMA = arrow_schema(TOPIC_PREFIX)
_KEY = ["batch_id", "published_at", "queue_id", "half_queue_id", "half_queue_offset"]


@dataclass(frozen=True)
class RowGroup:
    """A row group with wanted messages: which of its rows, in order, their keys, and their batches' times (ms)."""

    file: pq.ParquetFile
    number: int
    places: NDArray[np.int64]
    keys: MessageKeys
    times: NDArray[np.int64]

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


class BatchTimes:
    """When batches and runs were: from the first to the last one's time."""

    def __init__(self, batches: Iterable[ListedBatch]) -> None:
        spans = sorted((batch.first_time, batch.key.batch_time) for batch in batches)
        self._first = np.array([first for first, _ in spans], np.int64)
        self._latest = np.maximum.accumulate(np.array([last for _, last in spans], np.int64))

    @property
    def span(self) -> tuple[int, int]:
        """The first and the last time; there must be a batch."""
        return int(self._first[0]), int(self._latest[-1])

    def any_between(self, least: int, most: int) -> bool:
        """True if one may have been between these times."""
        count = int(np.searchsorted(self._first, most, "right"))
        return count > 0 and int(self._latest[count - 1]) >= least


class WantedRows:
    """Which rows are wanted: those of a run's batches that a queue's position does not have.

    A batch's index, in the keys of messages, is that among all batches, those within runs of several included.
    """

    def __init__(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> None:
        self._batches = batches
        self._begins = begins_of(batches)
        self._ids = np.array([batch.key.batch_id for batch in batches], np.int64)
        self._times = np.array([batch.key.batch_time for batch in batches], np.int64)
        self._spans = BatchTimes(batches)
        single = np.array([batch.first is None for batch in batches], bool)
        order = np.argsort(self._ids, kind="stable")
        self._order = order[single[order]]
        applications = {batch.key.application: 0 for batch in batches}
        applications = {name: place for place, name in enumerate(applications)}
        self._application = np.array([applications[batch.key.application] for batch in batches], np.int64)
        #: of each application the runs in order: their first ids, and their places
        self._runs = []
        for place in applications.values():
            mine = np.flatnonzero(~single & (self._application == place))
            if len(mine):
                firsts = np.array([batches[at].first_id for at in mine.tolist()], np.int64)
                self._runs.append((np.sort(firsts), mine[np.argsort(firsts, kind="stable")]))
        self._first_ids = np.array([batch.first_id for batch in batches], np.int64)
        self._first_times = np.array([batch.first_time for batch in batches], np.int64)
        #: by queue and application: the last batch consumed whole, and the latest time of those. Queues that are not
        #: wanted have consumed all
        self._last = np.full((QUEUES, len(applications)), np.iinfo(np.int64).max)
        self._until = self._last.copy()
        self._parts: list[tuple[int, int, int, int]] = []
        for queue, position in wanted.items():
            for name, place in applications.items():
                self._last[queue, place] = position.consumed.get(name, np.iinfo(np.int64).min)
                self._until[queue, place] = position.times.get(name, np.iinfo(np.int64).min)
            if position.part is None:
                continue
            (application, batch_id, time), half_queue_id, offset = position.part
            for at, batch in enumerate(batches):
                if batch.key.application == application and batch.of(batch_id, time):
                    index = int(self._begins[at]) + batch_id - batch.first_id
                    self._parts.append((queue, index, half_queue_id, offset))

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
                return not self._spans.any_between(least, most)
        return False

    def of(self, rows: pa.Table) -> tuple[NDArray[np.int64], MessageKeys, NDArray[np.int64]] | None:
        """The places of the wanted rows, their keys, and their batches' times (ms); None if there are none."""
        ids, times = _integers(rows, "batch_id"), _integers(rows, "published_at") // 1000
        batch = self._found(ids, times)
        queue = np.mod(_integers(rows, "queue_id"), QUEUES)
        mask = batch >= 0
        of = queue[mask], self._application[batch[mask]]
        mask[mask] = (ids[mask] > self._last[of]) | (times[mask] > self._until[of])
        half_queue_id, half_queue_offset = _integers(rows, "half_queue_id"), _integers(rows, "half_queue_offset")
        index = self._begins[batch] + np.where(mask, ids - self._first_ids[batch], 0)
        for queue_id, part_index, part_queue, part_offset in self._parts:
            done = (half_queue_id < part_queue) | ((half_queue_id == part_queue) & (half_queue_offset <= part_offset))
            mask &= ~((queue == queue_id) & (index == part_index) & done)
        places = np.flatnonzero(mask)
        if not len(places):
            return None
        columns = (index, queue, half_queue_id, half_queue_offset)
        return places, MessageKeys(*(column[places] for column in columns)), times[places]

    def _found(self, ids: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of the batch or run of each row; -1 = none."""
        batch = np.full(len(ids), -1, np.int64)
        sorted_ids = self._ids[self._order]
        low, high = np.searchsorted(sorted_ids, ids, "left"), np.searchsorted(sorted_ids, ids, "right")
        for more in range(int((high - low).max(initial=0))):
            at = low + more
            there = at < high
            candidate = self._order[np.where(there, at, 0)]
            same = there & (batch < 0) & (self._times[candidate] == times)
            batch[same] = candidate[same]
        for firsts, places in self._runs:
            at = np.searchsorted(firsts, ids, "right") - 1
            candidate = places[np.maximum(at, 0)]
            same = (at >= 0) & (batch < 0) & (ids <= self._ids[candidate])
            same &= (self._first_times[candidate] <= times) & (times <= self._times[candidate])
            batch[same] = candidate[same]
        return batch


def groups_of(files: Sequence[DataFile], wanted: WantedRows, selector: MessageSelector | None) -> Iterator[RowGroup]:
    """The row groups of files with wanted messages. Small files of an object store are read ahead."""
    sources = table_files.sources([(file.path, file.size) for file in files])
    for file in files:
        with reading(file.path, but=(FileNotFoundError,)):
            yield from _groups_in(next(sources), wanted, selector)


def _groups_in(source: Any, wanted: WantedRows, selector: MessageSelector | None) -> Iterator[RowGroup]:
    chosen = () if selector is None else selector.columns
    columns = [*_KEY, "erased_at", *chosen]
    file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
    names = set(file.schema_arrow.names)
    for number in range(file.num_row_groups):
        if wanted.outside(file.metadata.row_group(number)):
            continue
        read = file.read_row_group(number, [name for name in columns if name in names])
        conformed = _conform(read, columns)
        found = _left(wanted.of(conformed), conformed)
        if found is not None and selector is not None:
            places, keys, times = found
            selected = conformed.select(list(chosen))
            if len(places) < len(conformed):
                selected = selected.take(places)
            found = _kept(found, _booleans(selector.mask(selected)))
        if found is not None:
            places, keys, times = found
            order = keys.order()
            if order is not None:
                places, keys, times = places[order], keys.take(order), times[order]
            yield RowGroup(file, number, places, keys, times)


def _left(found: _Found | None, rows: pa.Table) -> _Found | None:
    """Those of the rows that are not erased."""
    erased = rows.column("erased_at")
    if found is None or erased.null_count == len(erased):
        return found
    return _kept(found, _booleans(erased.is_null())[found[0]])


def _kept(found: _Found, mask: NDArray[np.bool_]) -> _Found | None:
    places, keys, times = found
    kept = np.flatnonzero(mask)
    return (places[kept], keys.take(kept), times[kept]) if len(kept) else None


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
