"""The real reconcile query, held between its batches: what lands meanwhile is the next round."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from checkback.application.queries import without_no_data_batches
from checkback.observe.counts import PendingCount
from checkback.observe.observer import Observer
from checkback.reconcile.checkpointed_rules import batch_rules
from checkback.reconcile.query import reconcile_query
from checkback.reconcile.records.segment_records import Action
from checkback.reconcile.start.start_facts import partitions

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from benchmarks.processes import Lakehouse
    from checkback.reconcile.records.actions import Actions
    from checkback.reconcile.records.segment_records import Records


class _Counter(Observer):
    """The application's own observer, which also counts."""

    def __init__(self) -> None:
        self.count = PendingCount()
        self.published_so_far = self.scheduled_so_far = self.delivered_so_far = 0
        super().__init__(pending=self.count)

    def published(self, actions: Actions, batch_id: int, segments: Records) -> None:
        super().published(actions, batch_id, segments)
        self.published_so_far += actions.count(Action.COMMIT)
        self.scheduled_so_far += actions.count(Action.SCHEDULE)
        self.delivered_so_far += actions.count(Action.DELIVER)


class Stepper:
    """Runs the query; after a round its batch is held between publishing and commit until the next load has landed.

    Use as a context: at its end the last batch is done, too.
    """

    def __init__(self, place: Lakehouse) -> None:
        self._counter = _Counter()
        self._without_no_data = without_no_data_batches(place.spark)
        self._writer, self._publish = reconcile_query(
            place.spark,
            place.settings,
            place.tables,
            False,
            batch_rules(place.settings, partitions(place.spark, place.settings)),
            observer=self._counter,
        )
        self._go, self._reached = threading.Event(), threading.Event()
        self._closing = False
        self._goal: tuple[int, ...] = (0, 0, 0)
        self._query: StreamingQuery | None = None
        #: of the last round
        self.batches = 0

    def __enter__(self) -> Stepper:
        self._without_no_data.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._go.set()
        if self._query is not None:
            if error is None:
                self._query.processAllAvailable()
            self._query.stop()
        self._without_no_data.__exit__(None, None, None)

    @property
    def published(self) -> int:
        """Transactions that are published so far, without those that were scheduled."""
        return self._counter.published_so_far

    @property
    def delivered(self) -> int:
        """Scheduled messages that are published so far, each by the first batch after its time."""
        return self._counter.delivered_so_far

    @property
    def pending(self) -> int:
        """Transactions that are pending."""
        return sum(number for number, _ in self._counter.count.by_group().values())

    def step(self, land: Callable[[], object], published: int, pending: int = 0, scheduled: int = 0) -> float:
        """Seconds from letting the query go until what ``land`` has landed is decided; landing is not counted.

        ``published``, ``pending``: by how many there are more of them then; ``scheduled``: how many have been. It takes
        one batch or several. Raises RuntimeError when the query ends before.
        """
        land()
        self._goal = tuple(map(sum, zip(self._reached_so_far, (published, pending, scheduled), strict=True)))
        self._reached.clear()
        self.batches = 0
        began = time.perf_counter()
        if self._query is None:
            self._query = self._writer.foreachBatch(self._batch).start()
        else:
            self._go.set()
        while not self._reached.wait(1):
            if not self._query.isActive:
                raise RuntimeError(f"the query has ended: {self._query.exception()}")
        return time.perf_counter() - began

    @property
    def _reached_so_far(self) -> tuple[int, ...]:
        return self.published, self.pending, self._counter.scheduled_so_far

    def _batch(self, batch: DataFrame, batch_id: int) -> None:
        self._publish(batch, batch_id)
        self.batches += 1
        if not self._closing and self._reached_so_far == self._goal:
            self._reached.set()
            self._go.wait()
            self._go.clear()
