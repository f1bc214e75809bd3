"""A PushConsumer reads past a million messages: all of them, 1 % by their tag, 10 % by a SQL filter."""

from __future__ import annotations

import os
import statistics
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from benchmarks.report import report, rounded, say, scaled
from checkback.consumer import ConsumeResult, MessageSelector, PushConsumer
from checkback.errors import CheckbackError
from checkback.settings import Storage
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from consumer.published import Published

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TOPIC, _BODY, _BATCHES, _ROUNDS = "payments", 256, 50, 5
#: name of the figure, selector, one of how many messages passes
_KINDS: tuple[tuple[str, MessageSelector | str, int], ...] = (
    ("consume", "*", 1),
    ("consume_tag", "rare", 100),
    ("consume_sql", MessageSelector.by_sql("region = 'eu' AND amount >= 0"), 10),
)


def bench(root: str) -> None:
    """Messages of 256 B in 8 queues and 50 batches; each round a group of its own, in this process."""
    n = scaled(1_000_000, least=_BATCHES * 100)
    place = f"{root}/lake"
    publish(Published(Tables.of(Storage(root=place))), n)
    for name, selector, each in _KINDS:
        seconds = [_round(place, f"{name}-{number}", selector, n // each) for number in range(_ROUNDS)]
        rate = n / statistics.median(seconds)
        say(f"{name}: {rate:,.0f} messages/s")
        report(name, rate, "messages/s", _ROUNDS, messages=n, passing=n // each, body=_BODY, seconds=rounded(seconds))


def publish(lake: Published, n: int) -> None:
    """``n`` messages, every 100th with the tag rare, every 10th of the region eu."""
    schema = arrow_schema(f"topics/{_TOPIC}")
    for numbers in np.array_split(np.arange(n), _BATCHES):
        lake.batch_id += 1
        lake.time += 1000
        values = _columns(numbers, lake)
        lake.write(f"topics/{_TOPIC}", pa.table([values[field.name] for field in schema], schema=schema))
        lake.conclude({f"topics/{_TOPIC}": lake.batch_id + 1})


def _columns(numbers: NDArray[np.int64], lake: Published) -> dict[str, pa.Array]:
    schema, count = arrow_schema(f"topics/{_TOPIC}"), len(numbers)
    times = pa.array([time_of(lake.time)] * count, pa.timestamp("us", "UTC"))
    properties = [[("region", "us" if i % 10 else "eu"), ("amount", str(i % 1000))] for i in numbers]
    return {
        "half_queue_id": pa.array([0] * count, pa.int32()),
        "half_queue_offset": pa.array(numbers),
        "queue_id": pa.array(numbers % 8, pa.int32()),
        "transaction_id": pa.array([f"transaction-{i}" for i in numbers]),
        "producer_group": pa.array(["orders"] * count),
        "tags": pa.array(["often" if i % 100 else "rare" for i in numbers]),
        "keys": pa.array([f"key-{i}" for i in numbers]),
        "properties": pa.array(properties, schema.field("properties").type),
        "body": pa.array([os.urandom(_BODY) for _ in numbers]),
        "born_timestamp": times,
        "half_store_timestamp": times,
        "published_at": times,
        "batch_id": pa.array([lake.batch_id] * count),
        "erased_at": pa.nulls(count, schema.field("erased_at").type),
    }


def _round(root: str, group: str, selector: MessageSelector | str, passing: int) -> float:
    """Seconds from the start to the last message."""
    done, heard = threading.Event(), 0

    def listen(_: Any) -> ConsumeResult:
        nonlocal heard
        heard += 1
        if heard >= passing:
            done.set()
        return ConsumeResult.SUCCESS

    began = time.perf_counter()
    with PushConsumer(group, root, listen, threads=1).subscribe(_TOPIC, selector):
        if not done.wait(600):
            raise CheckbackError(f"{heard} of {passing} messages came")
        return time.perf_counter() - began
