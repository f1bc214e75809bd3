"""The real reconcile query, a batch at a time: what lands between two batches is the next batch."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from checkback.reconcile.query import reconcile_query

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from checkback.settings import Settings
    from checkback.tables import Tables


class Stepper:
    """Runs the query with its batches held between publishing and commit until the next load has landed."""

    def __init__(self, spark: SparkSession, settings: Settings, tables: Tables) -> None:
        self._writer, self._publish = reconcile_query(spark, settings, tables, available_now=False)
        self._go, self._done = threading.Event(), threading.Event()
        self._closing = False
        self._query: StreamingQuery | None = None

    def __enter__(self) -> Stepper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._go.set()
        if self._query is not None:
            self._query.stop()

    def step(self, land: Callable[[], None]) -> float:
        """Seconds from letting the batch go to all of it being published; landing is not counted."""
        land()
        self._done.clear()
        began = time.perf_counter()
        if self._query is None:
            self._query = self._writer.foreachBatch(self._batch).start()
        else:
            self._go.set()
        while not self._done.wait(1):
            if not self._query.isActive:
                raise RuntimeError(f"the query has ended: {self._query.exception()}")
        return time.perf_counter() - began

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        self._publish(batch, batch_id)
        if self._closing:
            return
        self._done.set()
        self._go.wait()
        self._go.clear()
