"""A DuckDB database in memory that understands the questions' SQL, and that can be stopped."""

from __future__ import annotations

import tempfile
import warnings
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb
from duckdb.func import ARROW, SPECIAL

from checkback.errors import SettingsError, StorageError, printable
from checkback.query.engines.engine import TOO_LONG_AGO
from checkback.query.engines.rejected_names import NAMES, REJECTED_NAMES, rejected_names
from checkback.storage.timestamps import LEAST, MOST
from checkback.storage.valid_texts import NOT_TRIED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from checkback.query.engines.engine import Value

_Result = TypeVar("_Result")
#: bytes that DuckDB keeps in memory; beyond it sorts, groups and joins spill to a temporary folder
_MEMORY = "512MiB"
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
"""
_FUNCTIONS: tuple[tuple[str, Any, list[str], str], ...] = (
    (REJECTED_NAMES, rejected_names, ["VARCHAR"], f"STRUCT({NAMES})"),
)
# Wanted, see `Database.table`.
warnings.filterwarnings("ignore", "Arrow output on a DB-API result makes an extra copy", UserWarning)


class Database:
    """Evaluates one text at a time; `stop` may come from any thread.

    Its methods raise SettingsError if files of an ``old`` version are gone, StorageError if DuckDB fails or what `stop`
    was given.
    """

    def __init__(self, mend: Callable[[Exception], bool]) -> None:
        """``mend``: does what has to be done after an InvalidInputException; False: there is nothing to do."""
        self._mend = mend
        self._folder = tempfile.TemporaryDirectory(prefix="checkback-")
        self._made = 0
        self._running: Future[Any] | None = None
        self._stopped: StorageError | None = None
        #: where an older version of a table is read, whose files may be gone; empty = nowhere
        self.old = ""
        self._connection = duckdb.connect(
            config={
                "memory_limit": _MEMORY,
                "temp_directory": self.folder,
                "preserve_insertion_order": "false",
                "default_null_order": "nulls_first_on_asc_last_on_desc",  # as Spark
                "autoinstall_known_extensions": "false",
                "parquet_metadata_cache": "true",  # parts of the tables are read one after the other
            }
        )
        begin = ["SET TimeZone = 'UTC'"]
        begin += (f"CREATE MACRO {one}" for one in map(str.strip, _MACROS.replace("\\\n", "").splitlines()) if one)
        self._connection.execute("; ".join(begin))
        # DuckDB's own, to stdout, in an interactive Python. Without ipywidgets a notebook has none, and refuses this.
        with suppress(duckdb.InvalidInputException):
            self._connection.execute("SET enable_progress_bar = false")
        for name, function, kinds, kind in _FUNCTIONS:
            own: Any = kinds, kind  # texts are types, too
            self._connection.create_function(name, function, *own, type=ARROW, null_handling=SPECIAL)

    @property
    def folder(self) -> str:
        """A temporary folder, which is removed when the database is closed."""
        return self._folder.name

    def close(self) -> None:
        """Close the database, and remove its folder."""
        self._connection.close()
        self._folder.cleanup()

    def stop(self, why: StorageError) -> None:
        """End what is evaluated, which raises ``why``, and evaluate nothing more. From any thread."""
        self._stopped = why
        self._interrupt()

    def register(self, name: str, rows: object) -> None:
        """Arrow's rows as a table."""
        self._connection.register(name, rows)

    def run(self, text: str) -> None:
        """A statement without rows, which takes no time."""
        with self._errors():
            self._connection.execute(text)

    def rows(self, text: str) -> list[tuple[Any, ...]]:
        """The rows of a query."""
        return self._answered(lambda: self._connection.execute(text).fetchall())

    def table(self, text: str, values: Mapping[str, Value], few: bool) -> pa.Table:
        """The rows of a query. With ``few`` the text is bound and planned once, and each row is in memory twice."""
        parameters = dict(values)
        if few:
            return self._answered(lambda: self._connection.execute(text, parameters).to_arrow_table())
        return self._answered(lambda: self._connection.sql(text, params=parameters).to_arrow_table())

    def temporary(self, text: Callable[[], str], values: Mapping[str, Value] | None = None) -> str:
        """The name of a temporary table with the rows of a query; beyond _MEMORY it spills."""
        name = f"kept_{self._made}"
        self._made += 1
        self._answered(lambda: self._connection.execute(f"CREATE TEMP TABLE {name} AS {text()}", dict(values or {})))
        return name

    def _answered(self, evaluate: Callable[[], _Result]) -> _Result:
        with self._errors():
            try:
                return self._evaluated(evaluate)
            except duckdb.InvalidInputException as error:
                if not self._mend(error):
                    raise
        return self._answered(evaluate)

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
        running = self._running
        while running is not None and not running.done():
            self._connection.interrupt()
            wait([running], _AGAIN_S)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        if self._stopped is not None:
            raise self._stopped
        try:
            yield
        except duckdb.IOException as error:
            if self.old and "No files found" in str(error):
                raise SettingsError("is too long ago: its files are gone", self.old, TOO_LONG_AGO) from error
            raise _failed(error) from error
        except duckdb.InterruptException as error:
            raise self._stopped or _failed(error) from error
        except duckdb.Error as error:
            raise _failed(error) from error


def _failed(error: duckdb.Error) -> StorageError:
    fix = "give the machine more memory" if isinstance(error, duckdb.OutOfMemoryException) else ""
    return StorageError(f"the tables cannot be read: {printable(str(error).partition(chr(10))[0])}", "", fix)
