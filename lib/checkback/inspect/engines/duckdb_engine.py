"""The questions in this process, on DuckDB: over the Parquet files that delta-rs lists. No Spark, no Java.

For folders DuckDB reads the files itself; for object stores, and tables that somebody has altered, delta-rs' dataset.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from threading import RLock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import duckdb
import pyarrow as pa
from duckdb.func import ARROW, SPECIAL

from checkback.errors import SettingsError, StorageError, printable
from checkback.inspect.engines.check_jitter import NAME, own_jitter
from checkback.inspect.engines.engine import PARAMETER, Rows
from checkback.inspect.engines.rejected_names import NAMES, REJECTED_NAMES, rejected_names
from checkback.inspect.engines.valid_copies import ValidCopies
from checkback.inspect.engines.version_at import TOO_LONG_AGO
from checkback.storage.files import table_files
from checkback.storage.files.local_copies import LocalCopies
from checkback.storage.files.object_store import concurrently
from checkback.storage.files.whole_objects import WholeObjects
from checkback.storage.followed_log import commit_mark
from checkback.storage.log.commit_reader import Added, CommitReader, added_by
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.row_texts import NOT_TRIED
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import LEAST, MOST
from checkback.storage.valid_texts import python_values
from checkback.urls import MASK, SECRETS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from checkback.inspect.engines.engine import Value, Versions
    from checkback.storage.parquet.column_span import Span
    from checkback.storage.tables import Tables

_Result = TypeVar("_Result")
#: bytes that DuckDB keeps in memory; beyond it sorts, groups and joins spill to a temporary folder
_MEMORY = "512MiB"
#: transactions that a question about all of them takes at a time, and one that keeps few integers of each
_PART, _BRIEF_PART = 200_000, 500_000
#: Bytes below which a file is small, and how many of them in a table are many: a thousand take 0.5 s of CPU, and 1.6 s
#: in an object store with 50 ms a request; all else about an answer takes a second or two.
_SMALL, _MANY = 1 << 20, 1000
#: From how many files of which average size on a table is copied for several questions: it takes as long as two of
#: them, which spend their time on opening the files. In bytes.
_COPIED_FILES, _COPIED_SIZE = 100, 64 << 10
#: offsets, at random, that tell how to part all
_SAMPLE = 32_768
#: seconds after which DuckDB is interrupted again: it may not have begun
_AGAIN_S = 0.1
#: What Spark SQL names so. Integers of times are clamped to Python's range: others overflow when they are subtracted.
_MACROS = rf"""
    unix_micros(t) AS CASE WHEN t < make_timestamptz({LEAST}) THEN {LEAST} \
        WHEN t > make_timestamptz({MOST}) THEN {MOST} ELSE epoch_us(t) END
    unix_millis(t) AS (unix_micros(t) - (unix_micros(t) % 1000 + 1000) % 1000) // 1000
    timestamp_micros(us) AS make_timestamptz(CAST(us AS BIGINT))
    timestamp_millis(ms) AS make_timestamptz(CAST(ms AS BIGINT) * 1000)
    collect_set(v) AS list(DISTINCT v)
    explode(v) AS unnest(v)
    size(v) AS len(v)
    array_position(l, v) AS list_position(l, v)
    get_json_object(t, path) AS CASE WHEN json_valid(t) THEN json_extract_string(t, path) END
    date_format(t, form) AS strftime(t, '%Y-%m-%d %H:%M:%S.%g')
    startswith(t, prefix) AS starts_with(t, prefix)
    sequence(first, last) AS range(first, last + 1)
    sort_array(v) AS list_sort(v)
    hash64(a, b) AS CAST(hash(a, b) >> 1 AS BIGINT), \
        (a, b, c, d, e, f, g, h, i, j, k) AS CAST(hash(a, b, c, d, e, f, g, h, i, j, k) >> 1 AS BIGINT)
    no_text() AS CAST([] AS VARCHAR[])
    errors_of(tries) AS list_transform(coalesce(tries, []), lambda one: one.error)
    first_error(error, tries) AS list_filter([error] || errors_of(tries), lambda one: one NOT LIKE '{NOT_TRIED}%')[1]
    masked(url) AS CASE WHEN contains(url, '?') THEN regexp_replace(url, '{SECRETS}', '\1\2{MASK}', 'g') ELSE url END
"""
#: columns that are not shown as they are in the table: an earlier release recorded the URLs of endpoints whole
_SHOWN = {
    "check_answers": {
        "endpoint": "masked(endpoint) AS endpoint",
        "failed_tries": "list_transform(failed_tries, lambda one: "
        "{'endpoint': masked(one.endpoint), 'error': one.error}) AS failed_tries",
    }
}


class Mark(NamedTuple):
    """The newest version of a table that was read, and what tells its commit from another one (`commit_mark`)."""

    version: int
    commit: tuple[int, ...] | None


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
    _made: int = 0
    _logs: dict[str, DeltaLog] = field(default_factory=dict, repr=False)
    _views: dict[object, str] = field(default_factory=dict, repr=False)
    #: by view the function that makes its SQL
    _made_of: dict[str, Callable[[], str]] = field(default_factory=dict, repr=False)
    _objects: WholeObjects = field(default_factory=WholeObjects, repr=False)
    _running: Future[Any] | None = field(default=None, repr=False)
    _old: bool = False
    _stopped: StorageError | None = None

    def __post_init__(self) -> None:
        """Open the database."""
        self._spill = tempfile.TemporaryDirectory(prefix="checkback-")
        self._copies = LocalCopies(f"{self._spill.name}/copies")
        self._valid = ValidCopies(f"{self._spill.name}/valid")
        self._database = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "temp_directory": self._spill.name,
                "preserve_insertion_order": "false",
                "default_null_order": "nulls_first_on_asc_last_on_desc",  # as Spark
                "autoinstall_known_extensions": "false",
                "parquet_metadata_cache": "true",  # parts of the tables are read one after the other
            }
        )
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.execute("SET enable_progress_bar = false")  # DuckDB's own, to stdout, in an interactive Python
        for macro in filter(None, map(str.strip, _MACROS.replace("\\\n", "").splitlines())):
            self._database.execute(f"CREATE MACRO {macro}")

        functions = (
            (NAME, own_jitter, ["VARCHAR", "BIGINT", "INTEGER", "BIGINT"], "BIGINT"),
            (REJECTED_NAMES, rejected_names, ["VARCHAR"], f"STRUCT({NAMES})"),
        )
        for name, function, kinds, kind in functions:
            own: Any = kinds, kind  # texts are types, too
            self._database.create_function(name, function, *own, type=ARROW, null_handling=SPECIAL)

    def __enter__(self) -> DuckDBEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database, and remove what it has spilled."""
        self._database.close()
        self._objects.close()
        self._spill.cleanup()

    def stop(self, why: StorageError) -> None:
        """End what it evaluates, which raises ``why``, and evaluate nothing more. From any thread."""
        self._stopped = why
        self._interrupt()

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
        """The function of each table, in an object store side by side."""
        return list(concurrently(self.tables.root, function, names))

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
            self.marks[name] = Mark(newest, commit_mark(self.tables.location(name), newest))

    def versions(self, name: str, newest: bool = False) -> Versions | None:  # noqa: ARG002 - listing costs the same
        """See Engine."""
        return CommitReader.of(self.tables.location(name))

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
            self._old = self._old or version < log.seen_version
            key = name, version, where, file, within
            if key not in self._views:
                source = self._source(name, log, version, file, within)
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

    def read_topics(self, versions: Mapping[str, int], where: str | None = None, within: Span | None = None) -> str:
        """See Engine."""
        parts = []
        for name, version in versions.items():
            topic = _quoted(name.removeprefix(TOPIC_PREFIX))
            parts.append(f"SELECT *, {topic} AS topic FROM {self.read(name, version, where, within=within)}")
        return f"({' UNION ALL '.join(parts) or self._no_topic()})"

    def _no_topic(self) -> str:
        return f"SELECT *, '' AS topic FROM {self.empty(TOPIC_PREFIX)}"

    def offset_cuts(self, rows: str, brief: bool) -> list[int]:
        """See Engine."""
        with self._errors():
            ((count,),) = self._answered(lambda: self._run(f"SELECT count(*) FROM {rows}").fetchall)
        parts = -(-count // (_BRIEF_PART if brief else _PART))
        if parts <= 1:
            return []
        shares = [number / parts for number in range(1, parts)]
        sample = f"SELECT reservoir_quantile(queue_offset, {shares}, {_SAMPLE}) FROM {rows}"
        with self._errors():
            ((cuts,),) = self._answered(lambda: self._run(sample).fetchall)
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

    def _log(self, name: str) -> DeltaLog:
        """The table's log; opened anew for each question if somebody has made another table in its place."""
        if name not in self._logs:
            known = self.marks.get(name)
            if known is not None and commit_mark(self.tables.location(name), known.version) != known.commit:
                self.tables.forget(name)
                del self.marks[name]
            self._logs[name] = self.tables.log(name)
        return self._logs[name]

    def _source(self, name: str, log: DeltaLog, version: int, file: bool, within: Span | None) -> Callable[[], str]:
        """What gives the table's rows at a version as something to select from."""
        sizes = log.files.parquet(version, within)
        files = None if sizes is None else list(sizes)
        if sizes is None and self.copies:
            files = log.files.copied(version, self._copies, within)
        if files is None:
            key = name, version, file, "dataset"
            if key not in self._views:  # it takes 10 ms, and a part of the table the whole of it
                dataset = log.files.dataset(version, self._objects)
                self._views[key] = self._registered(_with_files(dataset) if file else dataset)
            rows = self._views[key]
        elif not files:
            empty = self.empty(name, file=file)
            return lambda: empty
        else:
            listed = list(files)
            if not (self.several and not file and within is None and sizes is not None and _is_better_copied(sizes)):
                return lambda: self._parquet(listed, file)
            rows = self._temporary(lambda: f"SELECT * FROM {self._parquet(listed, file)}")
        return lambda: _file_names(rows) if file else rows

    def _parquet(self, files: Sequence[str], file: bool) -> str:
        """The rows of these files, or of their copies, as something to select from."""
        paths = ", ".join(_quoted(self._valid.of(path)) for path in files)
        name = ", filename = '__filename'" if file else ""
        rows = f"read_parquet([{paths}], union_by_name = true{name})"
        return _file_names(rows) if file else rows

    def _temporary(self, text: Callable[[], str], values: Mapping[str, Value] | None = None) -> str:
        """The name of a temporary table with the rows of an SQL text; beyond _MEMORY it spills."""
        name = f"kept_{self._made}"
        self._made += 1
        with self._errors():
            self._answered(
                lambda: partial(self._database.execute, f"CREATE TEMP TABLE {name} AS {text()}", values or {})
            )
        return name

    def _registered(self, rows: object) -> str:
        name = f"arrow_{len(self._views)}"
        self._views[object()] = name
        self._database.register(name, rows)
        return name

    def _view(self, name: str, source: Callable[[], str], where: str | None, file: bool) -> str:
        """A view of the table's columns: those that its files do not have are null."""
        view = f"table_{len(self._views)}"
        columns = [column for column in arrow_schema(name).names if not (file and column == "body")]
        shown = _SHOWN.get(name, {})
        selected = ", ".join(shown.get(column, f'"{column}"') for column in ([*columns, "_file"] if file else columns))
        rows = f"SELECT * FROM {self.empty(name, file=file)} UNION ALL BY NAME SELECT * FROM"
        condition = "" if where is None else f" WHERE {where}"
        made = f"CREATE OR REPLACE VIEW {view} AS SELECT {selected} FROM"
        self._made_of[view] = lambda: f"{made} ({rows} {source()}){condition}"
        self._run(self._made_of[view]())
        return view

    def select(self, text: str, tables: Mapping[str, Rows]) -> str:
        """See Engine."""
        return f"({_bound(text, tables, {})[0]})"

    def query(self, text: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> pa.Table:
        """See Engine."""
        for part in self.shared:
            if part in text:
                text = text.replace(part, f"SELECT * FROM {self._kept_as(part, tables, values)}")
        with self._errors():
            return self._answered(lambda: self._run(*_bound(text, tables, values)).to_arrow_table)

    def _kept_as(self, part: str, tables: Mapping[str, Rows], values: Mapping[str, Value]) -> str:
        """The name of the temporary table with the rows of an SQL text that several questions contain."""
        text, used = _bound(part, tables, values)
        key = text, *used.items()
        if key not in self._kept:
            self._kept[key] = self._temporary(lambda: text, used)
        return self._kept[key]

    def _run(self, text: str, values: Mapping[str, Value] | None = None) -> Any:
        with self._errors():
            return self._database.sql(text, params=dict(values or {}))

    def _answered(self, begin: Callable[[], Callable[[], _Result]]) -> _Result:
        """`_evaluated`; once more with copies of files whose text DuckDB refuses."""
        while True:
            try:
                return self._evaluated(begin())
            except duckdb.InvalidInputException as error:
                if not self._valid.refused(error):
                    raise
            for made in self._made_of.values():
                self._run(made())

    def _evaluated(self, evaluate: Callable[[], _Result]) -> _Result:
        """What DuckDB evaluates, in a thread of its own: DuckDB hears neither Ctrl-C nor, before it begins, `stop`."""
        with ThreadPoolExecutor(1) as pool:
            self._running = running = pool.submit(evaluate)
            try:
                if self._stopped is not None:  # since `_errors`
                    self._interrupt()
                return running.result()
            except KeyboardInterrupt:
                self._interrupt()
                raise

    def _interrupt(self) -> None:
        """End what DuckDB evaluates."""
        running = self._running
        while running is not None and not running.done():
            self._database.interrupt()
            wait([running], _AGAIN_S)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._stopped is not None:
            raise self._stopped
        try:
            yield
        except duckdb.IOException as error:
            if self._old and "No files found" in str(error):
                raise SettingsError("is too long ago: its files are gone", self.tables.root, TOO_LONG_AGO) from error
            raise _failed(error) from error
        except duckdb.InterruptException as error:
            raise self._stopped or _failed(error) from error
        except duckdb.Error as error:
            raise _failed(error) from error

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


def _is_better_copied(sizes: Mapping[str, int]) -> bool:
    return len(sizes) >= _COPIED_FILES and sum(sizes.values()) <= len(sizes) * _COPIED_SIZE


def _file_names(rows: str) -> str:
    return f"(SELECT *, parse_filename(__filename) AS _file FROM {rows})"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _failed(error: duckdb.Error) -> StorageError:
    fix = "give the machine more memory" if isinstance(error, duckdb.OutOfMemoryException) else ""
    return StorageError(f"the tables cannot be read: {printable(str(error).partition(chr(10))[0])}", "", fix)
