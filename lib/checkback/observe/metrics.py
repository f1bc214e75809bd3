"""Prometheus metrics of `reconcile`. Labels are names of tables, queries, outcomes and configured groups only."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from checkback import __version__
from checkback.check.wire import COMMIT, NO_ANSWER, ROLLBACK, UNKNOWN
from checkback.observe.batch import OTHER
from checkback.observe.metrics_server import served
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from checkback.observe.lag import Lag
    from checkback.observe.pending import PendingCount
    from checkback.observe.progress import Progress

_BATCH_SECONDS = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0, 120.0, 300.0)
_OUTCOMES = (COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER, "SKIPPED")
_STATES = ("COMMIT", "ROLLBACK", "DISCARD", "CANCEL")


class Metrics:
    """The metrics of one application, in their own registry.

    ``groups``: producer groups of the settings. ``clock``: seconds since the epoch.
    """

    def __init__(
        self, backlog: Lag, pending: PendingCount, groups: tuple[str, ...], clock: Callable[[], float] = time.time
    ) -> None:
        self.registry = CollectorRegistry()
        self._groups = frozenset(groups)
        self._clock = clock
        self._backlog = backlog
        self._decisions = self._counter("decisions", "Transactions decided", "state")
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
        self._segments = self._gauge("state_segments", "Rows in the state store: one or two a segment")
        self._state = self._gauge("state_bytes", "Size of the state store, in memory and on disk")
        self._gauge("build_info", "1; the version is the label", "version").labels(__version__).set(1)
        self._gauge("pending", "Half messages without a decision").set_function(lambda: pending.pending)
        self._gauge("scheduled", "Messages that wait for their deliver_at").set_function(lambda: pending.scheduled)
        self._gauge("oldest_pending_seconds", "Age of the oldest of them; 0 = none").set_function(
            lambda: 0.0 if pending.oldest is None else self._clock() - pending.oldest / 1000
        )
        self._unpublished = self._gauge("unpublished", "Committed messages that wait for their topic's table")
        lag = self._gauge("lag_seconds", "Age of the oldest commit that no batch has read; 0 = none", "table")
        for source in backlog.sources:
            lag.labels(source).set_function(partial(self._lag, source))
        for state in _STATES:  # rate() needs the initial 0
            self._decisions.labels(state)
        for query in SOURCES:
            self._running.labels(query).set(0)
            self._failures.labels(query)
        for group in (*groups, OTHER):
            for outcome in _OUTCOMES:
                self._checks.labels(outcome, group)

    def _lag(self, source: str) -> float:
        return self._backlog.seconds(source, self._clock())

    def _counter(self, name: str, says: str, *labels: str) -> Counter:
        return Counter(f"checkback_{name}", says, labels, registry=self.registry)

    def _gauge(self, name: str, says: str, *labels: str) -> Gauge:
        return Gauge(f"checkback_{name}", says, labels, registry=self.registry)

    def published(self, counts: Mapping[str, int], lateness: float = 0.0) -> None:
        """A batch's tables are committed; ``counts`` and ``lateness`` as in `batch`."""
        for state in _STATES:
            self._decisions.labels(state).inc(counts.get(state.lower(), 0))
        if counts.get("deliver"):
            self._deliveries.inc(counts["deliver"])
            self._lateness.set(lateness)
        self._requests.inc(counts.get("check", 0))
        self._rejected.labels("op").inc(counts.get("rejected_op", 0))
        self._rejected.labels("half").inc(counts.get("rejected_half", 0))

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

    def ended(self, query: str, failed: bool) -> None:
        """A query has ended."""
        self._running.labels(query).set(0)
        self._failures.labels(query).inc(int(failed))

    def served(self, host: str, port: int) -> AbstractContextManager[int]:
        """Context in which they are served on http://host:port/metrics. Yields the port; 0 = any free port.

        Raises SettingsError if it cannot listen.
        """
        fix = "choose a free port in metrics.port, and an address of this machine in metrics.host"
        return served(self.registry, host, port, fix)
