"""Copies of data files with text that is not UTF-8, which DuckDB refuses to read: nothing else is lost with it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from checkback.storage.failure_scope import reading
from checkback.storage.valid_texts import is_valid, valid_texts

#: rows that are read at once, and bytes of them
_ROWS, _BYTES = 10_000, 32 << 20
_REFUSED = re.compile(r'Invalid string encoding found in Parquet file "(.+?)": value', re.DOTALL)


@dataclass
class ValidCopies:
    """The copies in ``folder``, which belongs to them, of the tables' files that need one. A data file never changes.

    A table's files are checked once DuckDB has refused one of them: it takes as long as a question about its texts.
    """

    folder: str
    _copies: dict[str, str] = field(default_factory=dict)
    _tables: set[str] = field(default_factory=set)

    def refused(self, error: Exception) -> bool:
        """Whether DuckDB refuses the text of a file, of a table whose files were not checked: from now on they are."""
        found = _REFUSED.search(str(error))
        table = None if found is None else os.path.dirname(found[1])
        if table is None or table in self._tables:
            return False
        self._tables.add(table)
        return True

    def of(self, path: str) -> str:
        """The copy of a file, or the file itself if its text is UTF-8, or not checked. Raises StorageError."""
        if os.path.dirname(path) not in self._tables:
            return path
        if path not in self._copies:
            with reading(path):
                self._copies[path] = path if _has_valid_texts(path) else self._copied(path)
        return self._copies[path]

    def _copied(self, path: str) -> str:
        """Under the same name, and that of its folder: rows tell which file, and topic, they are of."""
        folder = f"{self.folder}/{len(self._copies)}/{os.path.basename(os.path.dirname(path))}"
        os.makedirs(folder)
        copy = f"{folder}/{os.path.basename(path)}"
        with (
            pq.ParquetFile(path, coerce_int96_timestamp_unit="us") as file,
            pq.ParquetWriter(copy, file.schema_arrow) as writer,
        ):
            for batch in file.iter_batches(_rows_at_once(file.metadata)):
                writer.write_table(valid_texts(pa.Table.from_batches([batch])))
        return copy


def _has_valid_texts(path: str) -> bool:
    with pq.ParquetFile(path) as file:
        names = [
            each.name for each in file.schema_arrow if not pa.types.is_primitive(each.type) and each.name != "body"
        ]
        batches = file.iter_batches(_rows_at_once(file.metadata), columns=names)
        return all(is_valid(column) for batch in batches for column in batch.columns)


def _rows_at_once(metadata: pq.FileMetaData) -> int:
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    size: int = sum(group.total_byte_size for group in groups)
    return max(1, min(_ROWS, _BYTES * int(metadata.num_rows) // max(1, size)))
