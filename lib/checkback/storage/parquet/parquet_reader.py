"""The rows of one Parquet file of a table, by whichever writer: whole or in pieces of bounded memory."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.acero import Declaration, ProjectNodeOptions, TableSourceNodeOptions
from pyarrow.dataset import ParquetFileFormat
from pyarrow.fs import LocalFileSystem

from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.schemas import arrow_schema, in_schema
from checkback.storage.valid_texts import python_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: what a scan raises that has no comparison for the types in a file (delta-rs rewrites text as views), or no cast
_OTHER_TYPES = (pa.ArrowNotImplementedError, pa.ArrowInvalid)
#: For `row_batches`: bytes of a piece, the rows that are read at once (a repeated body is small in the file but not in
#: memory) and those that make a piece, and the read buffer in bytes.
_PIECE, _READ_ROWS, _PIECE_ROWS, _STREAMED = 4 << 20, 2048, 16_384, 1 << 20


def read_rows(
    path: str, name: str, columns: Sequence[str] | None, wanted: pc.Expression, source: Any = None
) -> pa.Table:
    """The rows of one file of table ``name`` that match ``wanted``, with `python_values`; any writer's file will do.

    ``columns``: None = all. ``source``: the file's `table_files.source`, if there is one. Raises StorageError if the
    file cannot be read.
    """
    schema = arrow_schema(name)
    names = list(columns or schema.names)
    with reading(path):
        read = source or table_files.source(path)
        try:
            found = pq.read_table(
                read, columns=names, schema=schema, filters=wanted, partitioning=None, coerce_int96_timestamp_unit="us"
            )
        except _OTHER_TYPES:
            found = pa.concat_tables([schema.empty_table(), *row_batches(path, name, schema.names, wanted, read)])
        return python_values(found.select(names))


def row_batches(
    path: str, name: str, columns: Sequence[str], wanted: pc.Expression, source: Any = None
) -> Iterator[pa.Table]:
    """Like `read_rows`, in pieces of some megabytes, so that memory stays bounded. Raises StorageError."""
    schema = pa.schema([arrow_schema(name).field(column) for column in columns])
    with reading(path):
        read = source or table_files.source(path)
        file_system = (LocalFileSystem(),) if read == path else ()
        fragment = ParquetFileFormat().make_fragment(read, *file_system)
        with suppress(*_OTHER_TYPES):
            fragment = fragment.subset(wanted, schema=arrow_schema(name))
        with pq.ParquetFile(read, coerce_int96_timestamp_unit="us", buffer_size=_STREAMED, pre_buffer=False) as file:
            for number in (group.id for group in fragment.row_groups):
                group = file.metadata.row_group(number)
                rows = min(max(1, group.num_rows * _PIECE // max(1, group.total_byte_size)), _READ_ROWS)
                for batches in _pieces(file.iter_batches(rows, [number], columns, use_threads=False)):
                    piece = _filtered(in_schema(pa.Table.from_batches(batches).combine_chunks(), schema), wanted)
                    if piece.num_rows:
                        yield python_values(piece)


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[list[pa.RecordBatch]]:
    """Batches together: each piece costs its reader some calls, however many rows it has."""
    piece: list[pa.RecordBatch] = []
    size = rows = 0
    for batch in batches:
        piece.append(batch)
        size += batch.nbytes
        rows += batch.num_rows
        if size >= _PIECE or rows >= _PIECE_ROWS:
            yield piece
            piece, size, rows = [], 0, 0
    if piece:
        yield piece


def _filtered(rows: pa.Table, wanted: pc.Expression) -> pa.Table:
    """As `Table.filter`, whose threads take longer to start than a small piece takes; all rows are not copied."""
    source = Declaration("table_source", TableSourceNodeOptions(rows))
    found = Declaration("project", ProjectNodeOptions([wanted], ["wanted"]), [source]).to_table(use_threads=False)
    mask = found.column(0)
    return rows if pc.all(mask, skip_nulls=False).as_py() else rows.filter(mask)
