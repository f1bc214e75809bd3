"""Spark's StreamingQueryListener as an adapter for the Observer."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from checkback.storage.dataframes import is_connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

    from checkback.observe.observer import Observer


#: timeout for the events of queries that have ended
_PATIENCE_S = 2.0


class _Told:
    """Forwards events. Spark delivers them asynchronously, in a thread of its own: no batch waits for it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._names: dict[str, str] = {}
        self._ended = threading.Condition()

    def started(self, run_id: str, name: str) -> None:
        self._names[run_id] = name
        self._observer.started(name)

    def progressed(self, progress: str) -> None:
        self._observer.progressed(json.loads(progress))

    def ended(self, run_id: str, query_id: str, failed: bool) -> None:
        self._observer.ended(self._names.get(run_id, query_id), failed=failed)
        with self._ended:
            self._names.pop(run_id, None)
            self._ended.notify_all()

    def wait(self) -> None:
        """Wait, with a short timeout, for the end events of all queries: progress events are delivered before them."""
        with self._ended:
            self._ended.wait_for(lambda: not self._names, _PATIENCE_S)


class Listener(StreamingQueryListener):
    """The listener for Spark Connect."""

    def __init__(self, told: _Told) -> None:
        self._told = told

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query has begun."""
        self._told.started(str(event.runId), event.name or str(event.id))

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        self._told.progressed(event.progress.json)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        self._told.ended(str(event.runId), str(event.id), event.exception is not None)


class _JavaListener:
    """The listener that the JVM calls directly, with Spark's own event objects.

    pyspark would first convert every part of an event to a Python object, with some hundred calls to the JVM; those
    that end an iteration fail and search all JARs for the class of their exception: 250 ms of CPU per batch.
    """

    def __init__(self, told: _Told) -> None:
        self._told = told

    def onQueryStarted(self, event: Any) -> None:
        """A query has begun."""
        self._told.started(event.runId().toString(), event.name() or event.id().toString())

    def onQueryProgress(self, event: Any) -> None:
        """A batch is done."""
        self._told.progressed(event.progress().json())

    def onQueryIdle(self, event: Any) -> None:
        """Nothing came."""

    def onQueryTerminated(self, event: Any) -> None:
        """A query has ended."""
        self._told.ended(event.runId().toString(), event.id().toString(), event.exception().isDefined())

    class Java:
        """Interfaces that the Py4J proxy implements."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


@contextmanager
def listening(spark: SparkSession, observer: Observer) -> Iterator[None]:
    """Context in which the observer receives the events of all queries of the session."""
    told = _Told(observer)
    listener: Any = Listener(told)
    if not is_connect(spark):
        jvm: Any = spark.sparkContext._jvm
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        listener._jlistenerobj = wrapper(_JavaListener(told))  # instead of pyspark's own proxy for the Listener
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        told.wait()
        spark.streams.removeListener(listener)
