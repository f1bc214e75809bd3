"""Graceful shutdown of streaming queries: on a signal after the current batch, on an error with a one-line message.

``StreamingQuery.stop()`` alone interrupts the running batch: its Spark jobs are cancelled, and the next start replays
it. Here the batch that a query is in when a stop is requested is completed, with its entry in the commit log, and Spark
is told in its middle that no further one is to begin. A query that is in none is stopped at once.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError, Py4JNetworkError

from checkback.errors import (
    NO_SPACE,
    NO_SPACE_FIX,
    CheckbackError,
    causes,
    lost_connection,
    one_line,
    server_lost,
)
from checkback.spark.connect import query_id
from checkback.storage.dataframes import is_connect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    Write = Callable[[DataFrame, int], None]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Polling interval for signals and for the failure of one of several queries.
_PATIENCE_S = 0.2
_POLL_S = 0.05
#: what Python says in a worker that lacks a package
NO_MODULE = "No module named"
#: Fixes for a failed batch, by Spark's error condition.
_FIXES = {
    "[FAILED_READ_FILE": "run again: the batch is taken up again; if the file is missing or damaged, put it back first",
    NO_SPACE: NO_SPACE_FIX,
    NO_MODULE: "name a Python that has the packages of constraints.txt in PYSPARK_PYTHON or spark.pyspark.python",
    "[CANNOT_WRITE_STATE_STORE": "check that the checkpoint's disk has space and is writable, then run again",
    "[DELTA_SCHEMA_CHANGED": "a table that it reads was altered, as by a new column: run again, and it goes on",
    "[DELTA_STREAMING_SCHEMA_MISMATCH": "a table that it reads was altered, as by a new column: run again",
    "[DELTA_STREAMING_INCOMPATIBLE_SCHEMA_CHANGE": "a column of a table that it reads was dropped or renamed, which no "
    "stream passes: for the query check move the folder check of its checkpoint away, else run `checkback rebuild`",
    "[CONCURRENT_STREAM_LOG_UPDATE]": "another process runs this query: stop one of the two, then run again",
}
#: errors of a call after Spark's JVM has died
LOST = (ConnectionError, Py4JNetworkError)

_log = logging.getLogger(__name__)


class GracefulShutdown:
    """Starts queries, waits for them, and stops each after its current batch. Created by ``stop_on_signal``."""

    def __init__(self, confirm: Callable[[], object] = bool) -> None:
        """``confirm`` is called once a second during ``wait``; if it raises, the queries are stopped first."""
        self._confirm = confirm
        self._wanted = threading.Event()
        self._hurry = False
        self._queries: list[StreamingQuery] = []
        self._errors: dict[str, Exception] = {}

    @property
    def wanted(self) -> bool:
        """True once a stop was requested."""
        return self._wanted.is_set()

    def stop(self) -> None:
        """Request a stop. Returns immediately; safe in a signal handler. No query starts afterwards."""
        self._wanted.set()

    def start(self, writer: DataStreamWriter, write: Write) -> StreamingQuery | None:
        """Start a query with ``write`` as its batch function; None if a stop was requested.

        Raises CheckbackError if Spark cannot start it.
        """
        if self.wanted:
            return None
        # Spark Connect's batches run in another process, which hears of no stop request.
        try:
            query = writer.foreachBatch(write if is_connect(writer) else self._observed(write)).start()
        except Py4JJavaError as error:  # such as a full disk, before the query has a name
            raise failure(None, error) from error
        self._queries.append(query)
        return query

    def wait(self, meanwhile: Callable[[], object] | None = None, often: Callable[[], object] | None = None) -> None:
        """Return when all queries have ended, or a stop was requested and each has finished its batch.

        ``meanwhile`` is also called once a second, ``often`` five times; if one raises, the queries are stopped first.
        Raises CheckbackError if a query fails, after the others were stopped after their batch.
        """
        try:
            due = time.monotonic()
            while not self.wanted and any(query.isActive for query in self._queries):
                self._raise_failure()
                if time.monotonic() >= due:
                    self._confirm()
                    if meanwhile is not None:
                        meanwhile()
                    due = time.monotonic() + 1
                if often is not None:
                    often()
                _pause(self._queries)
            self._raise_failure()
        except BaseException as error:
            if _is_lost(error):
                raise lost_connection(error) from error
            self.stop()
            raise
        finally:
            self.end()
        self._raise_failure()
        if self._hurry:
            raise KeyboardInterrupt

    def end(self) -> None:
        """Stop every query between two batches: its trigger is active until the commit log entry is written.

        With Spark Connect a next batch that has begun is interrupted, and replayed at the next start.
        """
        try:
            for query in self._queries:
                done = _last_done(query) if is_connect(query) else None
                while self._in_batch(query) and (not is_connect(query) or _last_done(query) == done):
                    time.sleep(_POLL_S)
                query.stop()
        except Exception as error:
            if not _is_lost(error):  # else its queries are gone, too
                raise

    def _in_batch(self, query: StreamingQuery) -> bool:
        return not self._hurry and bool(query.status["isTriggerActive"])  # of one that has ended it is false

    def hurry(self) -> None:
        """Request a stop that does not wait for batches: ``wait`` raises KeyboardInterrupt."""
        self._hurry = True
        self._wanted.set()

    def _observed(self, write: Write) -> Write:
        """The batch function; a batch that ends after a stop request is the query's last."""

        def observed(batch: DataFrame, batch_id: int) -> None:
            query = query_id(batch, "")
            try:
                write(batch, batch_id)
            except Exception as error:
                self._errors[query] = error  # Spark only passes on a Python error's text
                raise
            if self.wanted:
                for found in self._queries:
                    if found.id == query:
                        _begin_no_more(found)

        return observed

    def _raise_failure(self) -> None:
        for query in self._queries:
            error: Exception | None = None if query.isActive else query.exception()
            if error is not None:
                own = self._errors.get(query.id, error)
                raise failure(query.name, own) from own

    def filter(self, record: logging.LogRecord) -> bool:
        """Filter py4j's log: drop errors of batches, which ``wait`` reports."""
        error = record.exc_info[1] if record.exc_info else None
        return error is None or error not in self._errors.values()


def _begin_no_more(query: StreamingQuery) -> None:
    """Have Spark end the query after the batch that it is in: the first half of ``stop()``, without its interruption.

    Only from the batch function: before it, Spark itself interrupts a batch of a query that is to end. Where Spark has
    other classes than Apache's, nothing happens, and the query ends when its trigger leaves it idle.
    """
    try:
        state = query._jsq.streamingQuery().state()
        ended = state.get().getClass().getName().replace(".ACTIVE$", ".TERMINATED$")
        state.set(state.get().getClass().forName(ended).getField("MODULE$").get(None))
    except Exception as error:  # noqa: BLE001 - the batch is done, and the query goes on
        _log.debug("the query may begin another batch: %s", one_line(error))


@contextmanager
def stop_on_signal(confirm: Callable[[], object] = bool) -> Iterator[GracefulShutdown]:
    """A GracefulShutdown triggered by SIGINT and SIGTERM; a second signal interrupts batches, a third any call.

    Leaving the context stops all its queries. Outside the main thread, where Python handles no signals, only ``stop``
    triggers it. ``confirm``: see GracefulShutdown.
    """
    stopper = GracefulShutdown(confirm)
    signals = 0

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form signal wants
        nonlocal signals
        signals += 1
        # Raised in the middle of a call to the JVM, KeyboardInterrupt leaves py4j's connection unusable.
        if signals > 2:
            raise KeyboardInterrupt
        (stopper.stop, stopper.hurry)[signals - 1]()

    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, on_signal) for number in (SIGNALS if main else ())}
    log = logging.getLogger("py4j.clientserver")
    log.addFilter(stopper.filter)
    try:
        yield stopper
    finally:
        stopper.stop()
        stopper.end()
        log.removeFilter(stopper.filter)
        for number, handler in before.items():
            signal.signal(number, handler)


def failure(query: str | None, error: BaseException) -> CheckbackError:
    """A query's error as a one-line CheckbackError; Checkback's own errors are returned unchanged."""
    if isinstance(error, CheckbackError):
        return error
    what = one_line(error).removesuffix(":")
    whole = "\n".join([*causes(error), str(error)])
    if NO_SPACE not in what and NO_SPACE in whole:
        what = f"{NO_SPACE}: {what}"  # Spark's first line only names the operation
    elif missing := re.search(rf"{NO_MODULE}.*", whole):  # after a worker's traceback
        what = missing[0]
    fix = next((fix for condition, fix in _FIXES.items() if condition in what), "")
    return CheckbackError(what, where=f"query {query}" if query else "", fix=fix)


def _is_lost(error: BaseException) -> bool:
    return isinstance(error, LOST) or server_lost(error)


def _last_done(query: StreamingQuery) -> int | None:
    """Id of the last completed batch in the query's progress; None if there is none."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])


def _pause(queries: Sequence[StreamingQuery]) -> None:
    from pyspark.errors import StreamingQueryException

    active = next((query for query in queries if query.isActive), None)
    if active is not None:
        with suppress(StreamingQueryException):  # reported in one line by _raise_failure
            active.awaitTermination(_PATIENCE_S)  # type: ignore[arg-type]
