"""Rows of `batches` that are not consumed yet, read in bounded memory: old ones as runs of several batches."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.consumer.position import BatchKey
from checkback.storage.batch_runs import ambiguous, runs_of
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.parquet.parquet_files import TEXT_MAX
from checkback.storage.schemas import arrow_schema, in_schema
from checkback.storage.timestamps import ms_of
from checkback.storage.valid_texts import python_values

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from checkback.consumer.position import Position

_COLUMNS = (
    "application",
    "batch_id",
    "batch_time",
    "finished_at",
    "committed",
    "scheduled",
    "delivered",
    "table_versions",
    "first_batch_id",
    "first_batch_time",
)
_SCHEMA = pa.schema([arrow_schema("batches").field(column) for column in _COLUMNS])
#: rows that are read at once, and rows in memory from which on old ones are made runs
_AT_ONCE, _PRESSED = 16_384, 32_768


def passed(floor: Position, spans: Mapping[str, tuple[Any, Any]], without_nulls: Collection[str]) -> bool:
    """True if by their statistics rows are of batches before the last one that ``floor`` has of their application.

    ``spans``: (min, max) by column; ``without_nulls``: columns without nulls.
    """
    if not {"application", "batch_id", "batch_time"} <= spans.keys() or "application" not in without_nulls:
        return False
    # A query's id is random: its beginning, which the statistics have, tells it.
    starts = {bound[: TEXT_MAX - 1] for bound in spans["application"]}
    application = next((name for name in floor.consumed if {name[: TEXT_MAX - 1]} == starts), None)
    if application is None or spans["batch_id"][1] >= floor.consumed[application]:
        return False
    return floor.has_batch(BatchKey(application, spans["batch_id"][1], ms_of(spans["batch_time"][1])))


class UnreadBatches:
    """Reads the rows of files, paths and sizes in bytes, that ``floor`` lacks, or is at.

    ``within``: only those of batches of these times (ms).
    """

    def __init__(
        self,
        place: str,
        floor: Position,
        files: Sequence[tuple[str, int]],
        within: tuple[int, int] | None = None,
    ) -> None:
        self._place = place
        self._floor = floor
        self._files = files
        self._within = within

    def read(self, alone: int | None = None) -> pa.Table:
        """The rows, columns _COLUMNS; all but the newest ``alone`` are made runs, None = none are.

        Raises StorageError, FileNotFoundError.
        """
        parts: list[pa.Table] = []
        count, most = 0, _PRESSED
        for rows in self._parts():
            parts.append(rows)
            count += len(rows)
            if alone is not None and count > most:
                parts = [_pressed(pa.concat_tables(parts), alone)]
                count = len(parts[0])
                most = max(_PRESSED, 2 * count)
        rows = pa.concat_tables(parts) if parts else _SCHEMA.empty_table()
        if alone is None or len(rows) <= alone:
            return rows
        pressed = _pressed(rows, alone)
        # After a clock set back a run cannot be told from another application's batches: then none are made.
        return self.read() if ambiguous(pressed) else pressed

    def _parts(self) -> Iterator[pa.Table]:
        with reading(self._place, but=(FileNotFoundError,)):
            for source in table_files.sources(self._files):
                file = pq.ParquetFile(source, coerce_int96_timestamp_unit="us", pre_buffer=False)
                columns = [name for name in _COLUMNS if name in file.schema_arrow.names]
                metadata = file.metadata
                groups = [at for at in range(metadata.num_row_groups) if not self._passed(metadata.row_group(at))]
                for batch in file.iter_batches(_AT_ONCE, groups, columns) if groups else ():
                    yield self._unread(python_values(in_schema(pa.Table.from_batches([batch]), _SCHEMA)))

    def _passed(self, group: pq.RowGroupMetaData) -> bool:
        spans, without_nulls = {}, []
        for place in range(group.num_columns if self._floor.consumed else 0):
            column = group.column(place)
            found = column.statistics
            if column.path_in_schema in ("application", "batch_id", "batch_time") and found and found.has_min_max:
                with suppress(OverflowError):  # another writer's, beyond the year 9999
                    spans[column.path_in_schema] = found.min, found.max
                if found.has_null_count and not found.null_count:
                    without_nulls.append(column.path_in_schema)
        return passed(self._floor, spans, without_nulls)

    def _unread(self, rows: pa.Table) -> pa.Table:
        rows = rows.filter(pc.and_(pc.is_valid(rows.column("batch_id")), pc.is_valid(rows.column("batch_time"))))
        ids = rows.column("batch_id").to_numpy()
        times = rows.column("batch_time").cast(pa.int64()).to_numpy() // 1000
        kept = np.ones(len(rows), bool)
        if self._within is not None:
            kept &= (times >= self._within[0]) & (times <= self._within[1])
        for application, last in self._floor.consumed.items():
            mine = pc.equal(pc.fill_null(rows.column("application"), ""), application)
            consumed = (ids < last) & (times <= self._floor.times[application])
            kept &= ~(consumed & mine.to_numpy())
        return rows if kept.all() else rows.filter(pa.array(kept))


def _pressed(rows: pa.Table, alone: int) -> pa.Table:
    """The rows with all but the newest made runs."""
    order = np.argsort(rows.column("batch_time").cast(pa.int64()).to_numpy(), kind="stable")
    old, new = (rows.take(pa.array(np.sort(part))) for part in (order[:-alone], order[-alone:]))
    return pa.concat_tables([runs_of(old), new])
