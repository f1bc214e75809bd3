"""The questions in this process, on DuckDB: over the Parquet files that delta-rs lists. No Spark, no Java.

For folders DuckDB reads the files itself; for object stores, and tables that somebody has altered, delta-rs' dataset.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pyarrow as pa

from checkback.errors import StorageError
from checkback.query.engines.duckdb_database import Database
from checkback.query.engines.engine import PARAMETER, Rows
from checkback.query.engines.topic_log import TopicLog
from checkback.query.engines.valid_copies import ValidCopies
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently, is_registered
from checkback.storage.files.whole_objects import LocalCopies, WholeObjects
from checkback.storage.horizon import horizon
from checkback.storage.log import log_store
from checkback.storage.log.commit_reader import Added, CommitReader, added_by
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.valid_texts import python_values

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from checkback.query.engines.engine import Value, Versions
    from checkback.storage.log.snapshot_files import Span
    from checkback.storage.tables import Tables

_Result = TypeVar("_Result")
#: transactions that a question about all of them takes at a time, and one that keeps few integers of each
_PART, _BRIEF_PART = 200_000, 500_000
#: Bytes below which a file is small, and how many of them in a table are many: a thousand take 0.5 s of CPU, and 1.6 s
#: in an object store with 50 ms a request; all else about an answer takes a second or two.
_SMALL, _MANY = 1 << 20, 1000
#: From how many files of which average size on a table is copied for several questions: it takes as long as two of
#: them, which spend their time on opening the files. In bytes.
_COPIED_FILES, _COPIED_SIZE = 100, 64 << 10
#: Bytes of files from which on an answer is not in memory twice; of fewer, planning it is most of its time.
_MANY_BYTES = 16 << 20
#: tables in a folder that are opened at a time
_AT_ONCE = 4
#: offsets, at random, that tell how to part all
_SAMPLE = 32_768
#: what Arrow says if it cannot compare values of these types
_NO_COMPARISON = "has no kernel matching input types"
_VIEWS = {pa.string(): pa.string_view(), pa.binary(): pa.binary_view()}


class Mark(NamedTuple):
    """The newest version of a table that was read, and what tells its commit from another one (`commit_mark`)."""

    version: int
    commit: log_store.Mark | None


@dataclass(eq=False)
class DuckDBEngine:
    """An `engine.Engine` of its own database in memory: views by table, and relations. A context manager.

    Not for several threads at once, but for the logs in ``tables`` and the ``marks`` of their newest commits, which
    ``lock`` guards. ``shared``: SQL that several questions contain, and that is evaluated once for all of them.
    ``copies``: small files of an object store are read from copies on this machine: for questions that read all rows.
    ``several``: there are several questions: tables of many small files are read once for all of them.
    ``tell``: is given, before they are read, the number of small files of each table, 0 unless they are many.
    """

    tables: Tables
    lock: RLock = field(default_factory=RLock, repr=False)
    marks: dict[str, Mark] = field(default_factory=dict, repr=False)
    shared: tuple[str, ...] = ()
    copies: bool = False
    tell: Callable[[Mapping[str, int]], object] | None = None
    several: bool = False
    _kept: dict[object, str] = field(default_factory=dict, repr=False)
    _logs: dict[str, DeltaLog | TopicLog] = field(default_factory=dict, repr=False)
    _views: dict[object, str] = field(default_factory=dict, repr=False)
    #: by view the function that makes its SQL
    _made_of: dict[str, Callable[[], str]] = field(default_factory=dict, repr=False)
    #: by name the registered datasets to which DuckDB leaves conditions on text
    _datasets: dict[str, Any] = field(default_factory=dict, repr=False)
    _objects: WholeObjects = field(default_factory=WholeObjects, repr=False)
    _read_bytes: int = 0

    def __post_init__(self) -> None:
        """Open the database."""
        self._database = Database(self._mended)
        self._copies = LocalCopies(f"{self._database.folder}/copies")
        self._valid = ValidCopies(f"{self._database.folder}/valid")

    def __enter__(self) -> DuckDBEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, and remove what it has spilled."""
        self._database.close()
        self._objects.close()

    def stop(self, why: StorageError) -> None:
        """End what it evaluates, which raises ``why``, and evaluate nothing more. From any thread."""
        self._database.stop(why)

    @property
    def session(self) -> None:
        """There is no Spark."""
        return

    def exists(self, name: str) -> bool:
        """True if the table exists."""
        return DeltaLog.exists(self.tables.location(name))

    def topics(self) -> list[str]:
        """Names of the topics' tables."""
        found = [TOPIC_PREFIX + name for name in table_files.folders(f"{self.tables.root}/{TOPIC_PREFIX}")]
        with self.lock:
            opened = dict(zip(found, self._each(self._opened, found), strict=True))
            # One that cannot be read is told to whoever reads it.
            return sorted(n for n, read in opened.items() if read is None or (read and self._logs[n].is_topic()))

    def look(self, *turns: Collection[str]) -> Mapping[str, int | None]:
        """See Engine."""
        found: dict[str, int | None] = {}
        with self.lock:
            # Opening a log takes a dozen requests, in any order; whether it goes on, one more tells in its turn.
            names = [name for turn in turns for name in turn]
            there = dict(zip(names, self._each(self._opened, names), strict=True))
            for turn in turns:
                opened = [name for name in turn if there[name]]
                found |= {name: None for name in turn if there[name] is False}
                newest = zip(opened, self._each(self._newest, opened), strict=True)
                found |= {name: version for name, version in newest if version is not None}
            there_now = [name for name, version in found.items() if version is not None]
            self._each(self._mark, there_now)
            logs = {name: self._logs[name] for name in there_now} if self.tell else {}
            many = {name: log.files.small(log.seen_version, _SMALL) for name, log in logs.items()}
        if self.tell is not None:
            self.tell({name: files if files >= _MANY else 0 for name, files in many.items()})
        return found

    def _each(self, function: Callable[[str], _Result], names: Sequence[str]) -> list[_Result]:
        """The function of each table, side by side: in a folder, too, delta-rs opens two in the time of one."""
        if is_registered(self.tables.root) or len(names) < 2:
            return list(concurrently(self.tables.root, function, names))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return list(pool.map(function, names))

    def _opened(self, name: str) -> bool | None:
        """Open the table's log; False if there is no such table, None if it cannot be read."""
        with suppress(Exception):  # told to whoever reads it; a topic's name in a row may be none
            if name not in self._logs and name not in self.marks and not self.exists(name):
                return False
            self._log(name)
            return True
        return None

    def _newest(self, name: str) -> int | None:
        with suppress(StorageError):
            return self._log(name).refresh()
        return None

    def _mark(self, name: str) -> None:
        newest = self._logs[name].seen_version
        if name not in self.marks or self.marks[name].version != newest:
            self.marks[name] = Mark(newest, log_store.commit_mark(self.tables.location(name), newest))

    def versions(self, name: str) -> Versions | None:
        """See Engine."""
        return CommitReader.of(self.tables.location(name))

    def newest(self, name: str) -> int | None:
        """See Engine."""
        versions = self.versions(name)
        return None if versions is None else versions.newest

    def read(
        self,
        name: str,
        version: int | None = None,
        where: str | None = None,
        *,
        file: bool = False,
        within: Span | None = None,
    ) -> str:
        """See Engine."""
        with self.lock:
            log = self._log(name)
            version = log.refresh() if version is None else version
            self._mark(name)
            if version < log.seen_version:
                self._database.old = self.tables.root
            key = name, version, where, file, within
            if key not in self._views:
                source = self._source(name, version, file, within)
                self._views[key] = self._view(name, source, where, file)
        return self._views[key]

    def empty(self, name: str, *, file: bool = False) -> str:
        """See Engine."""
        key = name, file
        if key not in self._views:
            rows = arrow_schema(name).empty_table()
            if file:
                rows = rows.append_column("_file", pa.array([], pa.string()))
            self._views[key] = self._registered(rows)
        return self._views[key]

    def read_topics(
        self,
        versions: Mapping[str, int | None],
        where: str | None = None,
        within: Span | None = None,
        *,
        file: bool = False,
    ) -> str:
        """See Engine. The files of all topics are one scan: DuckDB plans a thousand views in seconds, and 700 MiB."""
        with self.lock:
            read = {name: self._log(name).refresh() if at is None else at for name, at in versions.items()}
            key = tuple(read.items()), where, within, file
            if key not in self._views:
                self._views[key] = f"({self._of_topics(read, where, within, file)})"
            return self._views[key]

    def _of_topics(self, versions: Mapping[str, int], where: str | None, within: Span | None, file: bool) -> str:
        files = {name: self._files(name, version, None) for name, version in versions.items()}
        parts, sizes = [], _merged(files.values())
        copied = self.several and not file and _is_better_copied(sizes)
        if within is not None and not copied:
            sizes = _merged(self._files(name, version, within) for name, version in versions.items())
        for name, version in versions.items():
            if files[name] is None:
                rows = self.read(name, version, where, within=within, file=file)
                parts.append(f"SELECT *, {_quoted(name.removeprefix(TOPIC_PREFIX))} AS topic FROM {rows}")
        if sizes:
            scan = self._scan(sizes, file, tuple(versions.items()) if copied else None, topic=True)
            parts.append(f"SELECT * FROM {self._view(TOPIC_PREFIX, scan, where, file, topic=True)}")
        return " UNION ALL ".join(parts) or f"SELECT *, '' AS topic FROM {self.empty(TOPIC_PREFIX, file=file)}"

    def horizon(self, name: str) -> int | None:
        """See Engine."""
        with self.lock:
            log = self._log(name)
            return log.horizon() if isinstance(log, TopicLog) else horizon(None, self.tables, name)

    def offset_cuts(self, rows: str, brief: bool) -> list[int]:
        """See Engine."""
        ((count,),) = self._database.rows(f"SELECT count(*) FROM {rows}")
        parts = -(-count // (_BRIEF_PART if brief else _PART))
        if parts <= 1:
            return []
        shares = [number / parts for number in range(1, parts)]
        ((cuts,),) = self._database.rows(f"SELECT reservoir_quantile(queue_offset, {shares}, {_SAMPLE}) FROM {rows}")
        return sorted(set(cuts or ()))

    def among(self, rows: str, key: tuple[str, str], transactions: str) -> str:
        """See Engine."""
        queue, offset = key
        return f"""(SELECT s.* FROM {rows} AS s SEMI JOIN {transactions} AS t
            ON t.queue_id IS NOT DISTINCT FROM s.{queue} AND t.queue_offset IS NOT DISTINCT FROM s.{offset})"""

    def keep(self, name: str, rows: pa.Table) -> str:
        """See Engine."""
        self._database.register(name, rows)
        return name

    def added(self, name: str, files: Collection[str]) -> Mapping[str, Added]:
        """See Engine."""
        with self.lock:
            log = self._log(name)
            written = log.files.written(log.seen_version, files)
        return added_by(self.tables.location(name), files, written)

    def _log(self, name: str) -> DeltaLog | TopicLog:
        """The table's log; reopened for a question if the table was recreated."""
        if name not in self._logs:
            known = self.marks.get(name)
            if known is not None and not log_store.is_commit(self.tables.location(name), *known):
                self.tables.forget(name)
                del self.marks[name]
            topic = name.startswith(TOPIC_PREFIX)
            self._logs[name] = TopicLog(self.tables, name) if topic else self.tables.log(name)
        return self._logs[name]

    def _source(self, name: str, version: int, file: bool, within: Span | None) -> Callable[[], str]:
        """What gives the table's rows at a version as something to select from."""
        sizes = self._files(name, version, within)
        if sizes is None:
            self._read_bytes += _MANY_BYTES  # not known
            key = name, version, file, "dataset"
            if key not in self._views:  # it takes 10 ms, and a part of the table the whole of it
                dataset = self._log(name).files.dataset(version, self._objects)
                self._views[key] = self._registered(_with_files(dataset) if file else dataset)
                if not file:
                    self._datasets[self._views[key]] = dataset
            rows = self._views[key]
            return lambda: _file_names(rows) if file else rows
        if not sizes:
            empty = self.empty(name, file=file)
            return lambda: empty
        copied = self.several and not file and within is None and _is_better_copied(sizes)
        return self._scan(sizes, file, (name, version) if copied else None)

    def _files(self, name: str, version: int, within: Span | None) -> dict[str, int] | None:
        """Sizes, by path, of Parquet files on this machine that have the rows; None: only a dataset has them."""
        files = self._log(name).files
        sizes = files.parquet(version, within)
        copies = files.copied(version, self._copies, within) if sizes is None and self.copies else None
        return sizes if copies is None else {path: os.path.getsize(path) for path in copies}

    def _scan(
        self, sizes: Mapping[str, int], file: bool, copied: object = None, topic: bool = False
    ) -> Callable[[], str]:
        """The rows of files; ``copied``: what they are, if they are read once into a table."""
        self._read_bytes += sum(sizes.values())
        listed = list(sizes)
        if copied is None:
            return lambda: self._parquet(listed, file, topic)
        key = "copied", copied
        if key not in self._views:
            self._views[key] = self._database.temporary(lambda: f"SELECT * FROM {self._parquet(listed, file, topic)}")
        rows = self._views[key]
        return lambda: rows

    def _parquet(self, files: Sequence[str], file: bool, topic: bool = False) -> str:
        """The rows of these files, or of their copies, as something to select from; ``topic``: with their topic."""
        paths = ", ".join(_quoted(self._valid.of(path)) for path in files)
        name = ", filename = '__filename'" if file or topic else ""
        rows = f"read_parquet([{paths}], union_by_name = true{name})"
        if topic:
            ours = ", ".join(_quoted(column) for column in (*arrow_schema(TOPIC_PREFIX).names, "__filename"))
            topic_name = "string_split(__filename, '/')[-2] AS topic"
            rows = f"(SELECT COLUMNS(lambda c: lower(c) IN ({ours})), {topic_name} FROM {rows})"
        return _file_names(rows) if file else rows

    def _registered(self, rows: object) -> str:
        name = f"arrow_{len(self._views)}"
        self._views[object()] = name
        self._database.register(name, rows)
        return name

    def _view(self, name: str, source: Callable[[], str], where: str | None, file: bool, topic: bool = False) -> str:
        """A view of the table's columns: those that its files do not have are null."""
        view = f"table_{len(self._views)}"
        columns = [column for column in arrow_schema(name).names if not (file and column == "body")]
        columns += [more for more, has in (("_file", file), ("topic", topic)) if has]
        selected = ", ".join(f'"{column}"' for column in columns)
        rows = f"SELECT * FROM {self.empty(name, file=file)} UNION ALL BY NAME SELECT * FROM"
        condition = "" if where is None else f" WHERE {where}"
        made = f"CREATE OR REPLACE VIEW {view} AS SELECT {selected} FROM"
        self._made_of[view] = lambda: f"{made} ({rows} {source()}) AS rows{condition}"
        self._database.run(self._made_of[view]())
        return view

    def _mended(self, error: Exception) -> bool:
        """Read differently from now on what DuckDB or Arrow refuses; False: it is about something else.

        Of files whose text DuckDB refuses copies are read. Arrow lacks comparisons of text with views, as delta-rs
        rewrites it: conditions on text are then DuckDB's, which leaves Arrow none on columns that are views.
        """
        if _NO_COMPARISON in str(error) and self._datasets:
            while self._datasets:
                name, dataset = self._datasets.popitem()
                self._database.register(name, _with_views(dataset))
            return True
        if not self._valid.refused(error):
            return False
        for made in self._made_of.values():
            self._database.run(made())
        return True

    def select(self, text: str, tables: Mapping[str, Rows]) -> str:
        """See Engine."""
        return f"({_bound(text, tables, {})[0]})"

    def query(self, text: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> pa.Table:
        """See Engine."""
        for part in self.shared:
            if part in text:
                text = text.replace(part, f"SELECT * FROM {self._kept_as(part, tables, values)}")
        return self._database.table(*_bound(text, tables, values), few=self._read_bytes < _MANY_BYTES)

    def _kept_as(self, part: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> str:
        """The name of the temporary table with the rows of an SQL text that several questions contain."""
        text, used = _bound(part, tables, values)
        key = text, *used.items()
        if key not in self._kept:
            self._kept[key] = self._database.temporary(lambda: text, used)
        return self._kept[key]

    def arrow(self, rows: pa.Table) -> pa.Table:
        """See Engine."""
        return python_values(rows)


def _bound(text: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
    """A question's SQL as DuckDB reads it, and its parameters."""
    used = {name: values[name] for name in PARAMETER.findall(text)}
    return PARAMETER.sub(r"$\1", text).format(**tables), used


def _with_files(rows: Any) -> Any:
    """The rows of a dataset with `__filename`, the path of the row's file, and without bodies."""
    return rows.scanner(columns=[*(name for name in rows.schema.names if name != "body"), "__filename"])


def _with_views(dataset: Any) -> Any:
    from pyarrow.dataset import FileSystemDataset  # imports pandas

    schema = pa.schema([each.with_type(_VIEWS.get(each.type, each.type)) for each in dataset.schema])
    return FileSystemDataset(list(dataset.get_fragments()), schema, dataset.format, dataset.filesystem)


def _is_better_copied(sizes: Mapping[str, int]) -> bool:
    return len(sizes) >= _COPIED_FILES and sum(sizes.values()) <= len(sizes) * _COPIED_SIZE


def _merged(files: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    return {path: size for each in files for path, size in (each or {}).items()}


def _file_names(rows: str) -> str:
    return f"(SELECT COLUMNS(lambda c: lower(c) <> '_file'), parse_filename(__filename) AS _file FROM {rows})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
