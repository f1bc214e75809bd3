"""Reads the rows of `half` that a batch acts on from the table's files, with data skipping by file and row group."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from checkback.storage.files import table_files
from checkback.storage.parquet.parquet_files import most_group_rows
from checkback.storage.schemas import arrow_schema, in_schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from checkback.reconcile.publish.half_lookup import HalfLookup
    from checkback.storage.log.snapshot_files import DataFile

#: maximum rows, and on average bytes, of a decoded Arrow batch: a large body that repeats itself is small in the file
_BATCH, _BATCH_BYTES = 25_000, 32 << 20
#: of files larger than this the wanted row groups are found out first, and distributed among tasks
_LARGE = 64 << 20
#: wanted rows, and bytes of files, per task: fewer tasks write fewer files
ROWS_A_TASK = 50_000
_BYTES_A_TASK = 32 << 20
#: A byte of a row that is only read counts as this part of one that is also written: writing takes most of the time.
_READ_ONLY = 1 / 3


@dataclass(frozen=True)
class RowGroups:
    """A file, or some of its row groups; ``size``: bytes that are written of it, and _READ_ONLY of those only read."""

    path: str
    size: int
    row_groups: tuple[int, ...] | None = None


def pieces(files: Sequence[DataFile], wanted: HalfLookup) -> list[list[RowGroups]]:
    """The files that may hold wanted rows, bin-packed into one list per task."""
    found = [piece for file in files if wanted.most_in(file.spans) for piece in _pieces_of(file, wanted)]
    size = sum(piece.size for piece in found)
    tasks = max(-(-len(wanted.records) // ROWS_A_TASK), -(-size // _BYTES_A_TASK))
    lists: list[list[RowGroups]] = [[] for _ in range(min(tasks, len(found)))]
    sizes = [0] * len(lists)
    for piece in sorted(found, key=lambda piece: -piece.size):
        least = sizes.index(min(sizes))
        lists[least].append(piece)
        sizes[least] += piece.size
    return lists


def read(piece: RowGroups, source: Any, wanted: HalfLookup, with_body: bool) -> Iterator[pa.RecordBatch]:
    """The rows of a piece, as Arrow in the columns of `half`. Row groups without wanted rows are skipped.

    ``source``: the `table_files.source` of its file. Bodies are null, and not read, unless ``with_body``. Raises
    OSError if the file cannot be read.
    """
    schema = arrow_schema("half")
    with pq.ParquetFile(source, coerce_int96_timestamp_unit="us") as file:
        mine = piece.row_groups or range(file.metadata.num_row_groups)
        groups = _wanted_groups(file.metadata, mine, wanted)
        names = [name for name in schema.names if with_body or name != "body"]
        for batch in file.iter_batches(_rows_at_once(file.metadata, groups), groups, names) if groups else ():
            yield in_schema(batch, schema)


def _rows_at_once(metadata: pq.FileMetaData, groups: Sequence[int]) -> int:
    rows: int = sum(metadata.row_group(group).num_rows for group in groups)
    size: int = sum(metadata.row_group(group).total_byte_size for group in groups)
    return min(_BATCH, max(1, rows * _BATCH_BYTES // max(1, size)))


def _pieces_of(file: DataFile, wanted: HalfLookup) -> list[RowGroups]:
    if file.size <= _LARGE:
        # Of a few wanted rows each is in a row group of its own at worst.
        most, size = most_group_rows(file.path), file.size
        if file.rows and most is not None:
            rows = min(file.rows, wanted.most_in(file.spans))
            read = min(file.rows, rows * most)
            size = math.ceil(size * (rows + (read - rows) * _READ_ONLY) / file.rows)
        return [RowGroups(file.path, size)]
    metadata = pq.read_metadata(table_files.source(file.path))
    found: list[RowGroups] = []
    for group in _wanted_groups(metadata, range(metadata.num_row_groups), wanted):
        size = metadata.row_group(group).total_byte_size
        if found and found[-1].size + size <= _BYTES_A_TASK:
            found[-1] = RowGroups(file.path, found[-1].size + size, (*(found[-1].row_groups or ()), group))
        else:
            found.append(RowGroups(file.path, size, (group,)))
    return found


def _wanted_groups(metadata: pq.FileMetaData, mine: Sequence[int], wanted: HalfLookup) -> list[int]:
    """The row groups that may hold wanted rows, by their statistics of queue_id and queue_offset, if they have any."""
    names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
    keys = [(name, names.index(name)) for name in ("queue_id", "queue_offset") if name in names]
    found = []
    for number in mine:
        group, spans = metadata.row_group(number), {}
        for name, index in keys:
            known = group.column(index).statistics
            if known is not None and known.has_min_max:
                spans[name] = (known.min, known.max)
        if wanted.most_in(spans):
            found.append(number)
    return found
