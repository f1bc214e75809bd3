"""Prometheus metrics. No label comes from a request, except route, method and status."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from checkback import __version__
from checkback.build import commit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_COMMIT_SECONDS = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0)
_JOURNAL_SECONDS = (0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 60.0, 600.0)
_ANSWER_SECONDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The gateway's metrics, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector("checkback", registry=self.registry)
        labels = ["version", "commit"]
        about = Gauge(
            "checkback_gateway_build_info", "1; version and commit are the labels", labels, registry=self.registry
        )
        about.labels(__version__, commit()).set(1)
        self._requests = Counter(
            "checkback_gateway_requests", "Requests answered", ["route", "status"], registry=self.registry
        )
        self._seconds = Histogram(
            "checkback_gateway_request_seconds",
            "From a request's headers to its answer",
            ["route"],
            buckets=_ANSWER_SECONDS,
            registry=self.registry,
        )
        self._rows = Counter("checkback_gateway_rows", "Rows committed", ["table"], registry=self.registry)
        self._commits = Histogram(
            "checkback_gateway_commit_seconds",
            "Writing and committing a batch, failed ones too",
            ["table"],
            buckets=_COMMIT_SECONDS,
            registry=self.registry,
        )
        self._waiting = Gauge(
            "checkback_gateway_waiting", "Messages accepted and not yet committed", ["table"], registry=self.registry
        )
        self._remembered = Gauge(
            "checkback_gateway_remembered", "Half messages known from memory", registry=self.registry
        )
        self._unverified = Gauge(
            "checkback_gateway_unverified_ops",
            "Ops stored whose half message was in no table yet, and has not been looked up since",
            registry=self.registry,
        )
        self._offset = Gauge(
            "checkback_gateway_last_offset", "Last offset committed", ["queue_id"], registry=self.registry
        )
        self._ready = Gauge("checkback_gateway_ready", "1: messages are taken, as /readyz says", registry=self.registry)
        self._in_journal: Histogram | None = None
        self._answered: dict[tuple[str, int], tuple[Counter, Histogram]] = {}

    def answered(self, route: str, status: int, seconds: float) -> None:
        """Count an answered request; ``route`` is a path of the API, never the client's input."""
        children = self._answered.get((route, status))
        if children is None:
            children = self._requests.labels(route, str(status)), self._seconds.labels(route)
            self._answered[route, status] = children
        children[0].inc()
        children[1].observe(seconds)

    @contextmanager
    def commit(self, table: str, rows: int) -> Iterator[None]:
        """Time a commit, and count its rows if it is made."""
        with self._commits.labels(table).time():
            yield
        self._rows.labels(table).inc(rows)

    def last_offset(self, queue_id: int, queue_offset: int) -> None:
        """Set the last offset of a queue."""
        self._offset.labels(str(queue_id)).set(queue_offset)

    def watch(
        self,
        waiting: dict[str, Callable[[], int]],
        remembered: Callable[[], int],
        unverified: Callable[[], int],
        ready: Callable[[], bool],
    ) -> None:
        """Set the callbacks of the gauges: messages waiting by table, half messages cached, ops unverified; ready."""
        for table, count in waiting.items():
            self._waiting.labels(table).set_function(count)
        self._remembered.set_function(remembered)
        self._unverified.set_function(unverified)
        self._ready.set_function(ready)

    def watch_clients(self, connected: Callable[[], int]) -> None:
        """Set the callback of the gauge of RocketMQ's clients."""
        gauge = Gauge("checkback_gateway_rocketmq_clients", "RocketMQ's clients connected", registry=self.registry)
        gauge.set_function(connected)

    def watch_journal(self, **figures: Callable[[], float]) -> None:
        """Set the callbacks of the journal's gauges, by the end of their names."""
        told = {
            "messages": "Messages and ops acknowledged and not yet in the tables",
            "bytes": "Their size in the journal",
            "behind_seconds": "Age of the oldest of them",
        }
        for name, figure in figures.items():
            gauge = Gauge(f"checkback_gateway_journal_{name}", told[name], registry=self.registry)
            gauge.set_function(figure)
        self._in_journal = Histogram(
            "checkback_gateway_journal_seconds",
            "From the acknowledgement of a group of messages to their commit to the tables",
            buckets=_JOURNAL_SECONDS,
            registry=self.registry,
        )

    def in_journal(self, seconds: float) -> None:
        """Record how long a record was in the journal only."""
        if self._in_journal is not None:
            self._in_journal.observe(seconds)

    def text(self) -> bytes:
        """The metrics in the text exposition format."""
        return generate_latest(self.registry)
