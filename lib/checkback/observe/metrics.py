"""Prometheus metrics of `reconcile`. Labels are names of tables, queries, outcomes and configured groups only."""

from __future__ import annotations

import time
from functools import partial
from math import isnan
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from checkback import __version__
from checkback.build import commit
from checkback.check.wire import COMMIT, NO_ANSWER, ROLLBACK, UNKNOWN
from checkback.observe.counts import OTHER, counts, decisions, lateness, names_by_hash
from checkback.observe.metrics_server import served
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from checkback.observe.counts import PendingCount
    from checkback.observe.progress import Lag, Progress
    from checkback.reconcile.records.actions import Actions

_BATCH_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
#: seconds without a batch, while rows wait, after which `reconcile` is not ready
_LONG_S = 600.0
_OUTCOMES = (COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER, "SKIPPED")
_STATES = ("COMMIT", "ROLLBACK", "DISCARD", "CANCEL")


class _Pending(Collector):
    """What is pending by group, counted once a scrape; ``clock``: seconds since the epoch."""

    def __init__(self, pending: PendingCount, clock: Callable[[], float]) -> None:
        self._pending, self._clock = pending, clock

    def describe(self) -> Iterable[Metric]:
        """The families without samples."""
        return self._families()

    def collect(self) -> Iterable[Metric]:
        """The families as of now."""
        number, age = self._families()
        for group, (count, oldest) in self._pending.by_group().items():
            number.add_metric([group], count)
            age.add_metric([group], 0.0 if oldest is None else self._clock() - oldest / 1000)
        return number, age

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
        labels = ["producer_group"]
        return (
            GaugeMetricFamily("checkback_pending", "Half messages without a decision", labels=labels),
            GaugeMetricFamily("checkback_oldest_pending_seconds", "Age of the oldest of them; 0 = none", labels=labels),
        )


class Metrics:
    """The metrics of one application, in their own registry.

    ``groups``: producer groups of the settings. ``clock``: seconds since the epoch.
    """

    def __init__(
        self, backlog: Lag, pending: PendingCount, groups: tuple[str, ...], clock: Callable[[], float] = time.time
    ) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector("checkback", registry=self.registry)
        self._groups = frozenset(groups)
        self._clock = clock
        self._backlog = backlog
        self._names = names_by_hash(groups)
        self._decisions = self._counter("decisions", "Transactions decided", "state", "producer_group")
        self._deliveries = self._counter("deliveries", "Scheduled messages published")
        self._lateness = self._gauge("delivery_lateness_seconds", "From deliver_at to the last batch that delivered")
        self._requests = self._counter("check_requests", "Checks that came due")
        self._rejected = self._counter("rejected", "Ops and half messages that were not taken", "table")
        self._checks = self._counter("checks", "Outcomes of checks", "outcome", "producer_group")
        self._rows = self._counter("rows_read", "Rows that batches have read", "table")
        self._dropped = self._counter("rows_dropped", "Rows that Spark dropped as late: must stay 0")
        self._batches = Histogram(
            "checkback_batch_seconds",
            "From a batch's trigger to its commit",
            ["query"],
            buckets=_BATCH_SECONDS,
            registry=self.registry,
        )
        self._last = self._gauge("last_batch_timestamp_seconds", "When the last batch was done", "query")
        self._running = self._gauge("query_running", "1 while the query runs", "query")
        self._failures = self._counter("query_failures", "Queries that ended with an error", "query")
        #: by query when its last batch was done, or it began; None: it does not run
        self._runs: dict[str, float | None] = dict.fromkeys(SOURCES)
        self._segments = self._gauge("state_segments", "Rows in the state store: one or two a segment")
        self._state = self._gauge("state_bytes", "Size of the state store, in memory and on disk")
        about = self._gauge("build_info", "1; version and commit are the labels", "version", "commit")
        about.labels(__version__, commit()).set(1)
        self.registry.register(_Pending(pending, clock))
        self._gauge("scheduled", "Messages that wait for their deliver_at").set_function(lambda: pending.scheduled)
        self._unpublished = self._gauge("unpublished", "Committed messages that wait for their topic's table")
        lag = self._gauge("lag_seconds", "Age of the oldest commit that no batch has read; 0 = none", "table")
        for source in [name for name in SOURCES["reconcile"] if name in backlog.sources]:
            lag.labels(source).set_function(partial(self._lag, source))
        for query in SOURCES:
            self._running.labels(query).set(0)
            self._failures.labels(query)
        for group in (*groups, OTHER):  # rate() needs the initial 0
            for state in _STATES:
                self._decisions.labels(state, group)
            for outcome in _OUTCOMES:
                self._checks.labels(outcome, group)

    def _waits(self, query: str, now: float) -> bool:
        """Are there rows that the query has not read for _LONG_S? The first batch of `reconcile` always has a row."""
        waited = [self._backlog.seconds(source, now) for source in SOURCES[query] if source in self._backlog.sources]
        return any(seconds > _LONG_S or (isnan(seconds) and query == "reconcile") for seconds in waited)

    def _lag(self, source: str) -> float:
        return self._backlog.seconds(source, self._clock())

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"checkback_{name}", says, labels, registry=self.registry)

    def _gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(f"checkback_{name}", says, labels, registry=self.registry)

    def published(self, actions: Actions) -> None:
        """A batch's tables are committed."""
        found = counts(actions)
        for (state, group), number in decisions(actions, self._names).items():
            self._decisions.labels(state, group).inc(number)
        if found["deliver"]:
            self._deliveries.inc(found["deliver"])
            self._lateness.set(lateness(actions))
        self._requests.inc(found["check"])
        self._rejected.labels("op").inc(found["rejected_op"])
        self._rejected.labels("half").inc(found["rejected_half"])

    def waiting(self, rows: int) -> None:
        """Number of committed messages that wait for their topic's table."""
        self._unpublished.set(rows)

    def asked(self, outcomes: Mapping[tuple[str, str], int]) -> None:
        """A batch of checks is done: counts by outcome and group."""
        for (outcome, group), count in outcomes.items():
            self._checks.labels(outcome, group if group in self._groups else OTHER).inc(count)

    def progressed(self, progress: Progress) -> None:
        """A batch is done."""
        self._batches.labels(progress.query).observe(progress.seconds)
        self._last.labels(progress.query).set(self._clock())
        self._runs[progress.query] = self._clock()
        self._backlog.read(progress)
        for source in progress.sources:
            self._rows.labels(source.name).inc(source.rows)
        if progress.segments is not None and progress.state_bytes is not None:
            self._segments.set(progress.segments)
            self._state.set(progress.state_bytes)
            self._dropped.inc(progress.dropped)

    def started(self, query: str) -> None:
        """A query runs."""
        self._running.labels(query).set(1)
        self._runs[query] = self._clock()

    def ended(self, query: str, failed: bool) -> None:
        """A query has ended."""
        self._running.labels(query).set(0)
        self._runs[query] = None
        self._failures.labels(query).inc(int(failed))

    def served(self, host: str, port: int) -> AbstractContextManager[int]:
        """Context in which they are served on http://host:port/metrics. Yields the port; 0 = any free port.

        Raises SettingsError if it cannot listen.
        """
        fix = "choose a free port in metrics.port, and an address of this machine in metrics.host"
        return served(self.registry, host, port, fix, self.unready)

    def unready(self) -> str | None:
        """Why nothing is decided, published or checked now; None: all that is read is.

        A batch may be long; one that has taken _LONG_S while rows wait is taken for one that hangs.
        """
        stopped = [query for query, since in self._runs.items() if since is None]
        if stopped:
            return f"does not run: {', '.join(stopped)}"
        now = self._clock()
        for query, since in self._runs.items():
            if since is not None and now - since > _LONG_S and self._waits(query, now):
                return f"{query} has done no batch for {now - since:.0f} s, and rows wait"
        return None
