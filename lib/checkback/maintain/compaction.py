"""Compaction of small files into one: the same rows; those of `half` and `op` are sorted by offset.

A file is rewritten only together with others that are in total at least as large. A row is therefore rewritten some ten
times in all, however often `maintain` runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema, in_schema, statistics_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.settings import Maintain
    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.parquet.parquet_files import ParquetFile

#: tables whose files, and the rows in them, are sorted by offset, by which rows are looked up
BY_OFFSET = ("half", "op")
#: most files in a group: a commit lists each of them
MOST_FILES = 10_000


@dataclass(frozen=True)
class Candidate:
    """A file: path, size in bytes, in-memory size of its rows, (min, max) of the columns with statistics."""

    path: str
    size: int
    memory: int
    spans: Mapping[str, tuple[Any, Any]]


def order_of(name: str) -> tuple[str, ...]:
    """The columns by whose min values the files of a table are ordered: the time, for most tables."""
    columns = statistics_of(name)
    return columns[:2] if name in BY_OFFSET else columns[-1:]


def groups(
    files: Sequence[Candidate], order: Sequence[str], target: int, least: int, memory: int
) -> list[list[Candidate]]:
    """Groups of files to compact into one each, in order: at most ``target`` bytes, and ``memory`` bytes in memory.

    Empty if fewer than ``least`` files are smaller than ``target``. Files of ``target`` bytes and more stay as they
    are.
    """
    small = [file for file in files if file.size < target]
    if len(small) < least:
        return []
    small.sort(key=lambda file: [_first(file, column) for column in order])
    found: list[list[Candidate]] = []
    group: list[Candidate] = []
    size = unpacked = 0
    for file in small:
        size += file.size
        unpacked += file.memory
        if group and (size > target or unpacked > memory or len(group) == MOST_FILES):
            found.append(group)
            group, size, unpacked = [], file.size, file.memory
        group.append(file)
    found.append(group)
    return [worth for group in found if len(worth := _worth(group)) > 1]


def _worth(group: list[Candidate]) -> list[Candidate]:
    """Without the files that are larger than all smaller ones of the group together."""
    total = 0
    largest = 0
    for file in sorted(group, key=lambda file: file.size):
        if file.size <= total:
            largest = file.size
        total += file.size
    return [file for file in group if file.size <= largest]


def _first(file: Candidate, column: str) -> tuple[bool, Any]:
    """Sort key by the min value; files without statistics come first."""
    span = file.spans.get(column)
    return (False, 0) if span is None else (True, span[0])


#: in-memory bytes of a group's rows: sorting takes some three times as much
MEMORY = 256 << 20
#: bytes per row group: a lookup by offset reads whole row groups
_ROW_GROUP = 16 << 20


def planned(name: str, log: DeltaLog, place: str, settings: Maintain) -> list[list[Candidate]]:
    """The groups of small files of the table to compact into one each. Raises StorageError."""
    target, least = settings.target_file_size, settings.min_files
    small = [file for file in log.data_files() if file.size < target]
    if len(small) < least:
        return []
    # The log lists the newest file first; unless statistics say otherwise, older files come first.
    candidates = [
        Candidate(file.path.removeprefix(f"{place}/"), file.size, _memory(file.path), file.spans)
        for file in reversed(small)
    ]
    return groups(candidates, order_of(name), target, least, MEMORY)


def compact(name: str, log: DeltaLog, root: str, group: Sequence[Candidate]) -> list[ParquetFile] | None:
    """Replace a group by one file, or by none if it has no rows.

    None: another writer has removed a file of the group; nothing is changed then. A crash leaves at most an orphaned
    file, as with any writer. Raises StorageError.
    """
    paths = [one.path for one in group]
    files = rewritten(name, root, paths)
    return files if log.replace(paths, files) else None


def rewritten(
    name: str, root: str, paths: Sequence[str], left: Mapping[str, pa.Array] = MappingProxyType({})
) -> list[ParquetFile]:
    """A new file with the rows of all these, not yet committed; none if there are no rows. Raises StorageError.

    ``left``: masks of the rows that stay, by path.
    """
    parts = [rows_of(f"{root}/{name}/{path}", name) for path in paths]
    rows = pa.concat_tables(
        [part.filter(left[path]) if path in left else part for path, part in zip(paths, parts, strict=True)],
        promote_options="default",  # some are from before a column was added
    )
    if name in BY_OFFSET:
        rows = _sorted(rows, order_of(name))
    return write_rows(name, root, rows)


def write_rows(name: str, root: str, rows: pa.Table) -> list[ParquetFile]:
    """A new file of the table, not yet committed; none if there are no rows. Raises StorageError.

    ``rows``: with the columns that somebody has added to the table.
    """
    own = arrow_schema(name).names
    added = [field for field in rows.schema if field.name not in own]
    share = max(1, rows.nbytes // _ROW_GROUP)
    step = max(1, -(-rows.num_rows // share))
    try:
        with FileWriter(root, buffer=0, added=added) as writer:
            for first in range(0, rows.num_rows, step):
                writer.write(name, rows.slice(first, step))
            return writer.close()
    except OSError as error:
        raise StorageError(f"a file cannot be written: {error.strerror or error}", f"{root}/{name}") from error


def _sorted(rows: pa.Table, columns: Sequence[str]) -> pa.Table:
    order = np.lexsort([rows.column(column).to_numpy() for column in reversed(columns)])
    return rows if np.array_equal(order, np.arange(len(order))) else rows.take(pa.array(order))


def rows_of(path: str, name: str, columns: Sequence[str] = ()) -> pa.Table:
    """The rows of a file, in its order, with these columns: one that an old file lacks is null.

    By default with all columns of its table, and those that somebody has added.
    """
    schema = arrow_schema(name)
    schema = pa.schema([schema.field(column) for column in columns or schema.names])
    with reading(path), pq.ParquetFile(table_files.source(path), coerce_int96_timestamp_unit="us") as file:
        found = file.read(schema.names if columns else None)
    added = [pa.field(one.name, _usual(one.type)) for one in found.schema if one.name not in schema.names]
    return in_schema(found, pa.schema([*schema, *added]))


def _usual(kind: pa.DataType) -> pa.DataType:
    """The type of a column that somebody has added, as pyarrow reads it where no other writer has noted his own."""
    if pa.types.is_dictionary(kind):
        return _usual(kind.value_type)
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    texts = pa.types.is_string_view(kind) or pa.types.is_large_string(kind)
    raw = pa.types.is_binary_view(kind) or pa.types.is_large_binary(kind)
    return pa.string() if texts else pa.binary() if raw else kind


def _memory(path: str) -> int:
    """In-memory size of a file's rows. Parquet stores repeated values once: a tiny file may expand enormously."""
    with reading(path):
        source = table_files.source(path)
        metadata = pq.read_metadata(source)
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
        repeating = sorted({chunk.path_in_schema for chunk in chunks if _repeats(chunk)})
        # Read as dictionaries, they stay as small as in the file.
        with pq.ParquetFile(source, read_dictionary=repeating) as file:
            columns = sorted({name.partition(".")[0] for name in repeating})
            rows = [file.read_row_group(number, columns).columns for number in range(len(groups)) if columns]
    decoded = sum(_decoded(chunk) for columns in rows for column in columns for chunk in column.chunks)
    return decoded + int(sum(group.total_byte_size for group in groups))


def _repeats(chunk: pq.ColumnChunkMetaData) -> bool:
    """Whether the column chunk holds dictionary-encoded strings or bytes."""
    found: bool = chunk.physical_type == "BYTE_ARRAY" and chunk.has_dictionary_page
    return found


def _decoded(values: pa.Array) -> int:
    """Size of the dictionary-encoded strings when decoded, also in maps."""
    if isinstance(values, pa.MapArray):
        return _decoded(values.keys) + _decoded(values.items)
    if not isinstance(values, pa.DictionaryArray):
        return 0
    lengths = pc.binary_length(values.dictionary).take(values.indices)
    total: int | None = pc.sum(lengths.cast(pa.int64())).as_py()
    return total or 0
