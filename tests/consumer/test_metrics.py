"""The metrics of a consumer as a scrape shows them."""

from __future__ import annotations

import shutil
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from checkback.consumer.message import ConsumeResult
from checkback.consumer.metrics import ConsumerMetrics
from checkback.consumer.push_consumer import PushConsumer
from checkback.errors import SettingsError
from consumer.published import START, Published

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.consumer.message import MessageExt


def listener(message: MessageExt) -> ConsumeResult:
    """Every third fails."""
    return ConsumeResult.RECONSUME_LATER if message.half_queue_offset % 3 == 0 else ConsumeResult.SUCCESS


def scrape(metrics: ConsumerMetrics) -> dict[tuple[str, str], float]:
    """Over HTTP: by name and topic."""
    with metrics.served() as port:
        text = requests.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels["group"] == "credits"
            found[sample.name.removeprefix("checkback_consumer_"), sample.labels.get("topic", "")] = sample.value
    return found


def ready(metrics: ConsumerMetrics) -> tuple[int, str]:
    with metrics.served() as port:
        answer = requests.get(f"http://127.0.0.1:{port}/readyz", timeout=10)
        return answer.status_code, answer.text


def scraped_until(metrics: ConsumerMetrics, wanted: Mapping[tuple[str, str], float]) -> dict[tuple[str, str], float]:
    for _ in range(300):  # each is a request, and the consumer's threads go on meanwhile
        found = scrape(metrics)
        if wanted.items() <= found.items():
            return found
    raise AssertionError(found)


def consumer_of(lake: Published, **more: Any) -> PushConsumer:
    options: dict[str, Any] = {
        "max_reconsume_times": 0,
        "commit_interval": timedelta(seconds=0.05),
        "session_timeout": timedelta(seconds=0.6),
        "threads": 2,
    } | more
    return PushConsumer("credits", lake.tables.root, listener, **options).subscribe("pay")


def test_ready_while_it_consumes(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    consumer = consumer_of(lake)
    metrics = ConsumerMetrics(consumer)
    assert ready(metrics)[0] == 503
    with consumer:
        assert ready(metrics) == (200, "ok\n")
    assert ready(metrics) == (503, "group credits: not started, closed, or a thread of it has ended\n")


@pytest.mark.slow
def test_what_a_consumer_does_is_counted(lake: Published) -> None:
    now = START / 1000 + 2
    clock = [now]
    lake.publish({"pay": [lake.messages(9)]})
    consumer = consumer_of(lake)
    metrics = ConsumerMetrics(consumer, lake.tables.root, clock=lambda: clock[0])
    assert scrape(metrics) == {
        ("messages_total", ""): 0,
        ("failures_total", ""): 0,
        ("dead_letters_total", ""): 0,
        ("in_hand_messages", ""): 0,
        ("differing_members", ""): 0,
        ("build_info", ""): 1,
    }
    with consumer:
        done = {
            ("messages_total", ""): 6.0,
            ("failures_total", ""): 3.0,
            ("dead_letters_total", ""): 3.0,
            ("in_hand_messages", ""): 0.0,
            ("build_info", ""): 1.0,
            ("owned_queues", "pay"): 64.0,
            ("settled_timestamp_seconds", "pay"): lake.time / 1000,
        }
        scraped_until(metrics, done)
    # The group's lag is as of the first scrape until the clock has moved on; there was no group then.
    assert ("lag_messages", "pay") not in scrape(metrics)
    lake.publish({"pay": [lake.messages(4)]})
    clock[0] += 20
    found = scrape(metrics)
    assert (found["lag_messages", "pay"], found["lag_seconds", "pay"]) == (4, clock[0] - lake.time / 1000)
    assert (found["group_dead_letters", "pay"], found["retries", "pay"]) == (3, 0)
    lake.publish({"pay": [lake.messages(1)]})
    assert scrape(metrics)["lag_messages", "pay"] == 4
    assert {f"checkback_consumer_{name}" for name, _ in found} <= ConsumerMetrics.names()


@pytest.mark.slow
def test_in_order_what_holds_up_a_queue_is_told(lake: Published) -> None:
    """By its queue and its half message."""
    lake.publish({"pay": [lake.messages(2, (5,))]})
    now = time.time()
    consumer = consumer_of(lake, orderly=True, suspend=timedelta(seconds=3600), max_reconsume_times=None)
    metrics = ConsumerMetrics(consumer)
    with consumer:
        scraped_until(metrics, {("held_failures", "pay"): 1.0})
        samples = [sample for family in metrics.collect() for sample in family.samples if "held_" in sample.name]
    assert {tuple(sample.labels.values()) for sample in samples} == {("credits", "pay", "5", "0/0")}
    since = next(sample.value for sample in samples if sample.name.endswith("held_since_timestamp_seconds"))
    assert now - 1 <= since <= time.time()
    assert {sample.name for sample in samples} <= ConsumerMetrics.names()


@pytest.mark.slow
def test_tables_that_cannot_be_read_leave_out_the_lag_only(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    consumer = consumer_of(lake)
    with consumer:
        pass
    metrics = ConsumerMetrics(consumer, lake.tables.root)
    shutil.rmtree(f"{lake.tables.root}/consumer_groups/credits")
    found = scrape(metrics)
    assert ("messages_total", "") in found
    assert not any(name.startswith("lag") for name, _ in found)


def test_without_storage_there_is_no_lag(lake: Published) -> None:
    assert {name for name, _ in scrape(ConsumerMetrics(consumer_of(lake)))} == {
        "messages_total",
        "failures_total",
        "dead_letters_total",
        "in_hand_messages",
        "differing_members",
        "build_info",
    }


def test_port_that_is_taken_is_an_error(lake: Published) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        metrics = ConsumerMetrics(consumer_of(lake))
        with pytest.raises(SettingsError, match="cannot listen"), metrics.served(port=taken.getsockname()[1]):
            pass
