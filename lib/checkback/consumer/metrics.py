"""Prometheus metrics of a PushConsumer (needs prometheus-client: checkback[metrics])."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from checkback import __version__
from checkback.build import commit
from checkback.consumer.group.lag_reader import LagReader
from checkback.consumer.process_queues import warn
from checkback.consumer.storage import consumer_tables
from checkback.errors import CheckbackError
from checkback.observe.metrics_server import served

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager

    from checkback.consumer.group.group_lag import TopicLag
    from checkback.consumer.push_consumer import PushConsumer
    from checkback.settings import Settings

#: Time for which the lag is kept (s): counting it reads tables.
_LAG_S = 15.0

_COUNTERS = {
    "messages": "Messages consumed by this member",
    "failures": "Messages that its listener could not consume, each try",
    "dead_letters": "Messages that it has given up",
}
_GAUGES = {
    "in_hand_messages": "Messages that this member has read and not consumed yet",
    "differing_members": "Members of the group with other topics or selectors than this one",
}
_BY_TOPIC = {
    "owned_queues": "Queues that this member consumes",
    "settled_timestamp_seconds": "Batch time up to which its queues are consumed",
}
_HELD = {
    "held_since_timestamp_seconds": "When a message of this member began to hold up its queue, in order",
    "held_failures": "Tries of that message that have failed",
}
_LAG = {
    "lag_messages": "Messages that the group has not consumed, also those that its selector does not match",
    "lag_seconds": "Time since the batch of the oldest of them; 0 = none",
    "retries": "Messages that the group is to consume again",
    "group_dead_letters": "Messages that the group has given up so far",
    "missed_messages": "Messages that retention removed so far before the group had consumed them",
}


class ConsumerMetrics(Collector):
    """The metrics of one consumer, as a collector of ``registry``: names begin with ``checkback_consumer_``.

    ``storage``: as the consumer's; None = without the group's lag, which is read from the tables at a scrape, at most
    each 15 s. All members report the same lag: take the maximum. ``clock``: s since 1970. Raises SettingsError.
    """

    def __init__(
        self,
        consumer: PushConsumer,
        storage: Settings | str | os.PathLike[str] | None = None,
        *,
        options: dict[str, str] | None = None,
        registry: CollectorRegistry | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._consumer = consumer
        self._reader = None if storage is None else LagReader(consumer_tables(storage, options)[0])
        self._clock = clock
        self._lag: tuple[TopicLag, ...] = ()
        self._lag_at = float("-inf")
        self._reading = threading.Lock()
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)

    @staticmethod
    def names() -> set[str]:
        """The names of all series."""
        counters = {f"checkback_consumer_{name}_total" for name in _COUNTERS}
        names = "build_info", *_GAUGES, *_BY_TOPIC, *_HELD, *_LAG
        return counters | {f"checkback_consumer_{name}" for name in names}

    def describe(self) -> Iterable[Metric]:
        """The families without samples."""
        return [*self._families().values()]

    def collect(self) -> Iterable[Metric]:
        """The families as of now. What cannot be read is left out."""
        found = self._families()
        consumer, group = self._consumer, self._consumer.group
        for name, value in [("messages", consumer.consumed), ("failures", consumer.failed)]:
            found[name].add_metric([group], value)
        found["build_info"].add_metric([group, __version__, commit()], 1)
        found["dead_letters"].add_metric([group], consumer.dead)
        found["in_hand_messages"].add_metric([group], consumer.in_hand)
        found["differing_members"].add_metric([group], consumer.differing_members)
        for topic, queues in Counter(queue.topic for queue in consumer.queues()).items():
            found["owned_queues"].add_metric([group, topic], queues)
            settled = consumer.settled_at(topic)
            if settled is not None:
                found["settled_timestamp_seconds"].add_metric([group, topic], settled / 1000)
        for queue, held in consumer.held().items():
            place = f"{held.message.half_queue_id}/{held.message.half_queue_offset}"
            of = [group, queue.topic, str(queue.queue_id), place]
            found["held_since_timestamp_seconds"].add_metric(of, (held.held_since or 0) / 1000)
            found["held_failures"].add_metric(of, held.times)
        for each in self._read_lag():
            labels = [group, each.topic]
            counts = (each.messages, each.seconds, each.retries, each.dead_letters, each.missed)
            for name, count in zip(_LAG, counts, strict=True):
                if count is not None:
                    found[name].add_metric(labels, count)
        return [*found.values()]

    def served(self, host: str = "127.0.0.1", port: int = 0) -> AbstractContextManager[int]:
        """Context in which they are served on http://host:port/metrics. Yields the port; 0 = any free port.

        Raises SettingsError if it cannot listen.
        """
        fix = "choose a free port, and an address of this machine"
        return served(self.registry, host, port, fix, lambda: unready([self._consumer]))

    def _families(self) -> dict[str, CounterMetricFamily | GaugeMetricFamily]:
        found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, says in _COUNTERS.items():
            found[name] = CounterMetricFamily(f"checkback_consumer_{name}", says, labels=["group"])
        for name, says in _GAUGES.items():
            found[name] = GaugeMetricFamily(f"checkback_consumer_{name}", says, labels=["group"])
        labels = ["group", "version", "commit"]
        about = "1; version and commit are the labels"
        found["build_info"] = GaugeMetricFamily("checkback_consumer_build_info", about, labels=labels)
        for name, says in (_BY_TOPIC | _LAG).items():
            found[name] = GaugeMetricFamily(f"checkback_consumer_{name}", says, labels=["group", "topic"])
        for name, says in _HELD.items():
            of = ["group", "topic", "queue", "message"]
            found[name] = GaugeMetricFamily(f"checkback_consumer_{name}", says, labels=of)
        return found

    def _read_lag(self) -> tuple[TopicLag, ...]:
        now = self._clock()
        with self._reading:  # scrapes are answered by several threads
            if self._reader is not None and now >= self._lag_at + _LAG_S:
                try:
                    (found,) = self._reader.read(round(now * 1000), self._consumer.group)
                    self._lag = found.topics
                except CheckbackError as error:
                    warn("group %s: no lag: %s", self._consumer.group, error)
                    self._lag = ()
                self._lag_at = now
            return self._lag


def unready(consumers: Iterable[PushConsumer]) -> str | None:
    """Why one of them consumes nothing now; None: all do. A listener that fails is none of these reasons."""
    for consumer in consumers:
        if not consumer.running:
            return f"group {consumer.group}: not started, closed, or a thread of it has ended"
    return None


def registry_of(consumers: Iterable[PushConsumer], storage: Settings) -> CollectorRegistry:
    """A registry with the metrics of several consumers. Raises SettingsError."""
    registry = CollectorRegistry()
    registry.register(_Several([ConsumerMetrics(consumer, storage) for consumer in consumers]))
    return registry


class _Several(Collector):
    """The families of several collectors, each once."""

    def __init__(self, collectors: list[ConsumerMetrics]) -> None:
        self._collectors = collectors

    def collect(self) -> Iterable[Metric]:
        found: dict[str, Metric] = {}
        for each in self._collectors:
            for metric in each.collect():
                known = found.setdefault(metric.name, metric)
                if known is not metric:
                    known.samples += metric.samples
        return found.values()
