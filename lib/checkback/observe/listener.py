"""Spark's listener of queries, as an adapter of the Observer."""

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


#: for the events of queries that have ended
_PATIENCE_S = 2.0


class _Told:
    """Hands events on. Spark tells them in a thread of its own, after the fact: no batch waits for it."""

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
        """Return when the end of each query has been heard: the last batches are told before it. It waits not long."""
        with self._ended:
            self._ended.wait_for(lambda: not self._names, _PATIENCE_S)


class Listener(StreamingQueryListener):
    """What Spark Connect calls."""

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
    """What the JVM calls: Spark's events as they are.

    pyspark makes a Python object of every part of an event first, by some hundred calls to the JVM, of which those that
    end an iteration fail and search all JARs for the class of their exception: 250 ms of CPU a batch.
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
        """What Py4J is to make of it."""

        implements = ("org.apache.spark.sql.streaming.PythonStreamingQueryListener",)


@contextmanager
def listening(spark: SparkSession, observer: Observer) -> Iterator[None]:
    """While it is entered, the observer hears of all queries of the session."""
    told = _Told(observer)
    listener: Any = Listener(told)
    if not is_connect(spark):
        jvm: Any = spark.sparkContext._jvm
        wrapper = jvm.org.apache.spark.sql.streaming.PythonStreamingQueryListenerWrapper
        listener._jlistenerobj = wrapper(_JavaListener(told))  # instead of the one that pyspark makes of the Listener
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        told.wait()
        spark.streams.removeListener(listener)
