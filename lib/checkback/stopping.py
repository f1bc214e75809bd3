"""How a command ends its streaming queries: on a signal after the batch they are in, on an error with one line.

``StreamingQuery.stop()`` alone interrupts the running batch: its Spark jobs are cancelled, and the next start does
its work again. Here each batch passes a gate first. Once a stop is wanted the gate lets no further batch in, and a
query is stopped while it is between batches or held at the gate. A held batch has written nothing; the next start
runs it.
"""

from __future__ import annotations

import re
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming import StreamingQuery

    Write = Callable[[DataFrame, int], None]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: How soon a signal or a failure is noticed. A query that ends is noticed at once.
_PATIENCE_S = 0.2
_HOLD_MS = 600_000
#: What to do about a failed batch, by Spark's error condition.
_FIXES = {"[FAILED_READ_FILE": "put the file back as it was and run again: the batch that holds it is taken up again"}
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+;?$")
_TRACEBACK = "Traceback (most recent call last):"


class Stopper:
    """Made by ``stop_on_signal``. Pass each query's batch function through ``finishing``, then ``wait``."""

    def __init__(self) -> None:
        self._wanted = threading.Event()
        self._errors: dict[str, Exception] = {}
        self._held: set[str] = set()

    @property
    def wanted(self) -> bool:
        """Has a stop been asked for?"""
        return self._wanted.is_set()

    def stop(self) -> None:
        """Ask for a stop. Returns at once; safe in a signal handler."""
        self._wanted.set()

    def finishing(self, write: Write) -> Write:
        """The batch function for ``foreachBatch``: a batch that has begun is finished, none begins after a stop."""

        def gated(batch: DataFrame, batch_id: int) -> None:
            query = _query_id(batch)
            if self.wanted:
                self._held.add(query)
                _hold(batch)
            try:
                write(batch, batch_id)
            except Exception as error:
                self._errors[query] = error  # Spark hands on only the text of a Python error
                raise

        return gated

    def wait(self, *queries: StreamingQuery, meanwhile: Callable[[], None] | None = None) -> None:
        """Return when all queries have ended, or have been stopped after their batch because a stop was asked for.

        ``meanwhile`` is called from time to time; what it raises stops the queries and is raised.
        Raises CheckbackError when a query fails; the others are stopped after their batch first.
        """
        try:
            while not self.wanted and any(query.isActive for query in queries):
                self._fail(queries)
                if meanwhile is not None:
                    meanwhile()
                _pause(queries)
        finally:
            self._wanted.set()
            for query in queries:
                self._end(query)
        self._fail(queries)

    def _end(self, query: StreamingQuery) -> None:
        """Stop a query between two batches: its trigger is active until the batch's commit is written."""
        while query.isActive and query.status["isTriggerActive"] and query.id not in self._held:
            time.sleep(0.05)
        query.stop()

    def _fail(self, queries: tuple[StreamingQuery, ...]) -> None:
        for query in queries:
            error = None if query.isActive else query.exception()
            if error is not None:
                raise failure(query.name, self._errors.get(query.id, error)) from error


def _query_id(batch: DataFrame) -> str:
    return str(batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _hold(batch: DataFrame) -> None:
    """Wait in the query's own JVM thread, which ``stop()`` interrupts: Spark then sees a stop and not a failure."""
    jvm = batch.sparkSession.sparkContext._jvm
    assert jvm is not None
    jvm.java.lang.Thread.sleep(_HOLD_MS)
    raise CheckbackError("stopped, but not by its command", fix="run it again")


@contextmanager
def stop_on_signal() -> Iterator[Stopper]:
    """A Stopper that SIGINT and SIGTERM stop; a second signal raises KeyboardInterrupt and interrupts the batch.

    Enter it before the queries start. Outside the main thread, where Python takes no signals, only ``stop`` stops.
    """
    stopper = Stopper()
    if threading.current_thread() is not threading.main_thread():
        yield stopper
        return

    def on_signal(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the form signal wants
        if stopper.wanted:
            raise KeyboardInterrupt
        stopper.stop()

    before = {number: signal.signal(number, on_signal) for number in SIGNALS}
    try:
        yield stopper
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def failure(query: str | None, error: BaseException) -> CheckbackError:
    """The error of a query as one line: Checkback's own as it is, else what Spark or Python says first."""
    if isinstance(error, CheckbackError):
        return error
    what = _one_line(error)
    fix = next((fix for condition, fix in _FIXES.items() if condition in what), "")
    return CheckbackError(what, where=f"query {query}" if query else "", fix=fix)


def _one_line(error: BaseException) -> str:
    java = getattr(error, "java_exception", None)  # a Py4JJavaError, which itself says only "an error occurred"
    text = str(java.getMessage() or java.toString()) if java is not None else str(error)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    if any(_TRACEBACK in line for line in lines):
        # A Python worker's error: frames are indented, Java's too, and what comes between them is the error itself.
        after = lines[max(number for number, line in enumerate(lines) if _TRACEBACK in line) + 1 :]
        lines = [line for line in after if not line[0].isspace()] or lines
    return _SQLSTATE.sub("", lines[0])


def _pause(queries: tuple[StreamingQuery, ...]) -> None:
    from pyspark.errors import StreamingQueryException

    for query in queries:
        if query.isActive:
            try:
                query.awaitTermination(_PATIENCE_S)  # type: ignore[arg-type]
            except StreamingQueryException:
                return
