"""Spark's listener of queries, as an adapter of the Observer."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pyspark.sql.streaming.listener import StreamingQueryListener

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


class Listener(StreamingQueryListener):
    """Hands events on. Spark calls it in a thread of its own, after the fact: no batch waits for it."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._names: dict[str, str] = {}
        self._ended = threading.Condition()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """A query has begun."""
        name = event.name or str(event.id)
        self._names[str(event.runId)] = name
        self._observer.started(name)

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A batch is done."""
        self._observer.progressed(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing came."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """A query has ended."""
        name = self._names.get(str(event.runId), str(event.id))
        self._observer.ended(name, failed=event.exception is not None)
        with self._ended:
            self._names.pop(str(event.runId), None)
            self._ended.notify_all()

    def wait(self) -> None:
        """Return when the end of each query has been heard: the last batches are told before it. It waits not long."""
        with self._ended:
            self._ended.wait_for(lambda: not self._names, _PATIENCE_S)


@contextmanager
def listening(spark: SparkSession, observer: Observer) -> Iterator[None]:
    """While it is entered, the observer hears of all queries of the session."""
    listener = Listener(observer)
    spark.streams.addListener(listener)
    try:
        yield
    finally:
        listener.wait()
        spark.streams.removeListener(listener)
