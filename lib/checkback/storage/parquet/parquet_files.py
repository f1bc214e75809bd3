"""Parquet files of Delta tables, in a local folder or an object store, written by the tasks of a Spark job.

A file belongs to its table only once the driver has committed it (`delta_log`). A file that never is, because its task
was retried or its batch failed, is orphaned, and VACUUM removes it, as with every writer of Delta tables.
"""

from __future__ import annotations

import contextlib
import json
import re
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.errors import of_machine
from checkback.storage.files import table_files
from checkback.storage.files.fsync import AT_ONCE, flush_file, flush_folder
from checkback.storage.files.object_store import ObjectWriter, canonical, is_registered, register
from checkback.storage.schemas import arrow_schema, statistics_of
from checkback.storage.timestamps import iso

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


#: timestamps are truncated to milliseconds: a maximum is rounded up, so that data skipping loses no rows
_UP = timedelta(microseconds=999)


class FileStatistics:
    """Minimum, maximum and number of nulls by column, while the file is being written."""

    def __init__(self) -> None:
        self._spans: dict[str, tuple[Any, Any]] = {}
        self._nulls: dict[str, int] = {}

    def add(self, column: str, values: pa.ChunkedArray) -> None:
        """Include these values."""
        self._nulls[column] = self._nulls.get(column, 0) + values.null_count
        found = pc.min_max(values).as_py()
        if found["min"] is not None:
            least, most = self._spans.get(column, (found["min"], found["max"]))
            self._spans[column] = min(least, found["min"]), max(most, found["max"])

    def json(self, rows: int) -> str:
        """As in the log, for a file of this many rows.

        Each column is in ``nullCount``: deltalake's datasets (delta-rs 1.6) take one that is missing there, also from
        empty maps, or has no bounds, for a column without any value, and skip the file.
        """
        most = {column: _greatest(most) for column, (_, most) in self._spans.items()}
        if not self._nulls or None in most.values():
            return json.dumps({"numRecords": rows})
        return json.dumps(
            {
                "numRecords": rows,
                "minValues": {column: _least(least) for column, (least, _) in self._spans.items()},
                "maxValues": most,
                "nullCount": self._nulls,
            }
        )


#: characters of a text in statistics: delta-rs 1.6 cuts longer ones in a log's checkpoint, also a maximum, and readers
#: miss rows then
TEXT_MAX = 32
_LAST = chr(sys.maxunicode)


def _least(value: Any) -> Any:
    return iso(value) if isinstance(value, datetime) else value[:TEXT_MAX] if isinstance(value, str) else value


def _greatest(value: Any) -> Any:
    """A bound that no value exceeds; None = there is none so short."""
    if isinstance(value, datetime):
        return iso(value + _UP)
    if not isinstance(value, str) or len(value) < TEXT_MAX:
        return value
    return None if value[TEXT_MAX - 1] == _LAST else value[: TEXT_MAX - 1] + _LAST


#: bytes of rows that a task buffers before it writes a row group
BUFFER = 64 << 20
#: Maximum rows of a file, by table: a stream reads whole files, so this bounds the size of its batches.
MOST_ROWS = {"check_requests": 10_000}
#: Maximum rows of a row group of `half` with delays, in a folder: whoever needs a row reads its row group, and
#: scheduled messages come due all over `half`. In an object store each column of a row group is a request: there they
#: are large.
_GROUP_ROWS = 2_048
_DELAYS = ("delay_ms", "deliver_at")
#: the name of a file whose row groups are small, with their maximum rows
_GROUPED = re.compile(r"(?:.*/)?part-[0-9a-f-]{36}\.rows-([1-9]\d{0,6})\.[^/]*")
#: Maximum files being written at once: a process's limit of open files may be some hundreds.
_OPEN = 64
#: rows yielded by a task that writes files: a `ParquetFile` each, and optionally a note
FILES_SCHEMA = "name STRING, path STRING, size BIGINT, stats STRING, note BINARY"
_FILES = pa.schema(
    [("name", pa.string()), ("path", pa.string()), ("size", pa.int64()), ("stats", pa.string()), ("note", pa.binary())]
)
# Columns without dictionary encoding: their values are nearly all distinct, so it would only cost time.
_UNIQUE = frozenset({"body", "transaction_id", "keys", "raw", "remark"})


@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file: its table's ``name``, ``path`` relative to its folder, bytes, Delta's statistics as JSON."""

    name: str
    path: str
    size: int
    stats: str

    @property
    def rows(self) -> int:
        """The number of its rows."""
        return int(json.loads(self.stats)["numRecords"])

    def add_action(self, now: int) -> dict[str, object]:
        """The action that adds it to its table (PROTOCOL.md of delta-io/delta, Add File). ``now``: ms."""
        return {
            "path": self.path,
            "partitionValues": {},
            "size": self.size,
            "modificationTime": now,
            "dataChange": True,
            "stats": self.stats,
        }


@dataclass
class _Open:
    """A table's file while it is being written."""

    path: str
    schema: pa.Schema
    parts: list[pa.Table] = field(default_factory=list)
    waiting: int = 0
    writer: pq.ParquetWriter | None = None
    sink: str | ObjectWriter = ""
    rows: int = 0
    group_rows: int | None = None
    statistics: FileStatistics = field(default_factory=FileStatistics)


@dataclass(frozen=True)
class TableRoot:
    """The parent of the tables' folders, or its URI, for a task: with what an executor needs to write there.

    ``options``: those of the object store (`object_store`). ``sync``: see FileWriter.
    """

    uri: str
    sync: bool = True
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def writer(self, most_rows: Mapping[str, int] | None = None, apart: str | None = None) -> FileWriter:
        """A FileWriter of tables here."""
        if canonical(self.uri) is not None:
            register(self.uri, self.options)
        return FileWriter(self.uri, most_rows=most_rows, apart=apart, sync=self.sync)


class FileWriter:
    """Writes rows of several tables, one file for each table. A context manager: an error removes the files.

    ``folder``: parent of the tables' folders, or its URI. ``buffer``: bytes of rows in a row group. ``most_rows``:
    maximum rows of a file, by table; more rows make more files. ``apart``: name prefix of tables that are isolated from
    the others: if such a table's file cannot be written (errors of the machine excepted), the error is recorded in
    ``failed``. ``sync``: `close` flushes the files and their directory entries to disk. ``added``: columns of the rows
    that are written besides those of the tables.
    """

    def __init__(
        self,
        folder: str,
        buffer: int = BUFFER,
        most_rows: Mapping[str, int] | None = None,
        apart: str | None = None,
        sync: bool = True,
        added: Iterable[pa.Field] = (),
    ) -> None:
        self._folder = folder
        self._added = tuple(added)
        self._buffer = buffer
        self._most_rows = most_rows or {}
        self._apart = apart
        self._sync = sync and not is_registered(folder)  # an object is durable when it is there
        self._files: dict[str, _Open] = {}
        self._done: list[ParquetFile] = []
        self.failed: dict[str, Exception] = {}

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self._remove()

    def write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows to the table's file. Columns are matched by name and cast to the table's types.

        Raises ArrowInvalid if a value cannot be cast, OSError if the file cannot be written.
        """
        most = self._most_rows.get(name)
        if most is None:
            self._write(name, rows)
            return
        for start in range(0, rows.num_rows, most):
            part = rows.slice(start, most)
            if name in self._files and self._files[name].rows + part.num_rows > most:
                self._finish(name)
            self._write(name, part)

    def _write(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        if not rows.num_rows or name in self.failed:
            return
        with self._alone(name):
            self._add(name, rows)
        while sum(file.waiting for file in self._files.values()) > self._buffer:
            largest = max(self._files.items(), key=lambda item: item[1].waiting)[0]
            with self._alone(largest):
                if sum(file.writer is not None for file in self._files.values()) < _OPEN:
                    self._flush(largest)
                else:
                    self._finish(largest)

    @contextlib.contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Isolate a table that matches ``apart``: record its error in ``failed`` and abandon its file."""
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            if self._apart is None or not name.startswith(self._apart) or of_machine(error):
                raise
            self.failed[name] = error
            file = self._files.pop(name, None)
            if file is None:  # finished, but it could not be flushed: nothing will commit it
                return
            with contextlib.suppress(Exception):
                if file.writer is not None:
                    file.writer.close()
            with contextlib.suppress(OSError):
                table_files.remove(f"{self._folder}/{name}/{file.path}")

    def _add(self, name: str, rows: pa.Table | pa.RecordBatch) -> None:
        group_rows = None if is_registered(self._folder) or not _has_delays(name, rows) else _GROUP_ROWS
        if name not in self._files:
            grouped = "" if group_rows is None else f".rows-{group_rows}"
            schema = pa.schema([*arrow_schema(name), *self._added])
            self._files[name] = _Open(f"part-{uuid.uuid4()}{grouped}.{_codec(name)}.parquet", schema)
            self._files[name].sink = table_files.sink(self._folder, f"{name}/{self._files[name].path}")
        file = self._files[name]
        file.group_rows = file.group_rows or group_rows
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        table = table.select(file.schema.names).cast(file.schema)
        file.parts.append(table)
        file.waiting += table.nbytes
        file.rows += table.num_rows
        for column in statistics_of(name):
            file.statistics.add(column, table.column(column))

    def close(self) -> list[ParquetFile]:
        """Finish all files. Raises OSError if one cannot be written or flushed."""
        # Uploads in parallel: each is a request or more.
        with ThreadPoolExecutor(max_workers=AT_ONCE if is_registered(self._folder) else 1) as pool:
            list(pool.map(self._finish_alone, list(self._files)))
        if self._sync:
            self._flush_to_disk()
        return [file for file in self._done if file.name not in self.failed]

    def _flush_to_disk(self) -> None:
        """Flush all files and folders, in parallel: file systems group concurrent flushes."""
        paths: dict[str, list[str]] = {}
        for file in self._done:
            paths.setdefault(file.name, []).append(f"{self._folder}/{file.name}/{file.path}")

        def flush(name: str) -> None:
            with self._alone(name):
                for path in paths[name]:
                    flush_file(path)
                flush_folder(f"{self._folder}/{name}")

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            list(pool.map(flush, paths))

    def _finish_alone(self, name: str) -> None:
        with self._alone(name):
            self._finish(name)

    def _finish(self, name: str) -> None:
        self._flush(name)
        file = self._files[name]
        if file.writer is not None:
            file.writer.close()
        if isinstance(file.sink, ObjectWriter):
            file.sink.close()
            size = file.sink.size
        else:
            size = table_files.size(file.sink)
        self._done.append(ParquetFile(name, file.path, size, file.statistics.json(file.rows)))
        del self._files[name]

    def _flush(self, name: str) -> None:
        file = self._files[name]
        if not file.parts:
            return
        if file.writer is None:
            repeating = [column for column in file.schema.names if column not in _UNIQUE]
            repeating += ["properties.key_value.key", "properties.key_value.value"]
            file.writer = pq.ParquetWriter(
                file.sink,
                file.schema,
                compression=_codec(name),
                use_dictionary=repeating,
                write_statistics=list(statistics_of(name)),
                store_schema=False,
            )
        file.writer.write_table(pa.concat_tables(file.parts), file.group_rows)
        file.parts, file.waiting = [], 0

    def _remove(self) -> None:
        for file in self._files.values():
            with contextlib.suppress(Exception):
                if file.writer is not None:
                    file.writer.close()
        written = [(name, file.path) for name, file in self._files.items()]
        for name, path in [*written, *((file.name, file.path) for file in self._done)]:
            with contextlib.suppress(OSError):
                table_files.remove(f"{self._folder}/{name}/{path}")


def most_group_rows(path: str) -> int | None:
    """Maximum rows of a row group of a file of `half`, by its name; None = unknown."""
    found = _GROUPED.fullmatch(path)
    return None if found is None else int(found[1])


def _has_delays(name: str, rows: pa.Table | pa.RecordBatch) -> bool:
    return name == "half" and any(rows.column(column).null_count < rows.num_rows for column in _DELAYS)


def to_files(name: str, root: TableRoot) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """A function for mapInArrow that writes all rows into files of one table and yields FILES_SCHEMA."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with root.writer() as writer:
            for batch in batches:
                writer.write(name, batch)
            yield file_rows(writer.close())

    return write


def file_rows(files: Iterable[ParquetFile], note: bytes | None = None) -> pa.RecordBatch:
    """FILES_SCHEMA: one row for each file, and one without a name for the note, if any."""
    rows: list[dict[str, Any]] = [vars(file) for file in files]
    if note is not None:
        rows.append({"note": note})
    return pa.RecordBatch.from_pylist(rows, schema=_FILES)


def files_of(rows: pa.Table) -> tuple[list[ParquetFile], list[bytes]]:
    """The files and notes yielded by a job's tasks."""
    found = rows.to_pylist()
    files = [
        ParquetFile(row["name"], row["path"], row["size"], row["stats"]) for row in found if row["name"] is not None
    ]
    return files, [row["note"] for row in found if row["note"] is not None]


def _codec(name: str) -> str:
    """The table's compression codec.

    `rejected` keeps refused input in full, even megabytes of repetition: snappy compresses that 20 times, zstd
    thousands of times, to about the size it was sent in.
    """
    return "zstd" if name == "rejected" else "snappy"
