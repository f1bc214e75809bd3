"""The process that publishes: batches into two topics, now and then a compaction, now and then a rebuild."""

from __future__ import annotations

import json
import os
import signal
import time
from random import Random
from types import FrameType
from typing import Any

from checkback.consumer.storage import consumer_tables
from checkback.storage.schemas import TOPIC_PREFIX
from consumer.published import Published
from crash_consumer.kinds import QUEUE_IDS, TOPICS, tag

#: time between batches (s), and messages of one in a topic, at most
_PAUSE_S, _MOST = 0.15, 200


def publish(root: str, ledger: str, seed: int) -> None:
    """Publish until SIGTERM. Each batch is a line of ``ledger`` before its row is in `batches`.

    The line: ``at`` (monotonic, ns), and the ``messages`` as [topic, queue_id, half_queue_id, half_queue_offset],
    in the order in which a queue's are to be consumed.
    """
    stopping = []

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.append(True)

    signal.signal(signal.SIGTERM, stop)
    random = Random(seed)
    published = Published(consumer_tables(root)[0])
    with open(ledger, "a", encoding="utf-8") as lines:
        while not stopping:
            _batch(published, random, lines)
            time.sleep(random.uniform(0, _PAUSE_S))
            if random.random() < 0.04:
                _compact(published, random.choice(TOPICS))
            if random.random() < 0.03:
                _compact_batches(published)
            if random.random() < 0.03:
                published.rebuild()


def _batch(published: Published, random: Random, lines: Any) -> None:
    files = {}
    for topic in random.choice([TOPICS, TOPICS, TOPICS[:1], TOPICS[1:]]):
        rows: list[dict[str, Any]] = []
        queue_id = random.choice(QUEUE_IDS)
        for _ in range(random.choice([1, random.randrange(1, _MOST), random.randrange(1, _MOST)])):
            queue_id = random.choice(QUEUE_IDS) if random.random() < 0.1 else queue_id
            row = published.messages(1, (queue_id,), half_queue_id=random.randrange(2))[0]
            rows.append(row | {"tags": tag(row["half_queue_offset"])})
        random.shuffle(rows)
        count = random.choice([1, 1, 2, 3])
        files[topic] = [part for part in (rows[number::count] for number in range(count)) if part]
    published.publish(files, concluded=False)
    if random.random() < 0.2:
        time.sleep(random.uniform(0, 0.3))
    messages = [
        [topic, row["queue_id"], row["half_queue_id"], row["half_queue_offset"]]
        for topic, parts in files.items()
        for row in sorted((row for part in parts for row in part), key=_place)
    ]
    lines.write(json.dumps({"at": time.monotonic_ns(), "messages": messages}) + "\n")
    lines.flush()
    names = [TOPIC_PREFIX + topic for topic in files]
    published.conclude({name: published.log(name).version() for name in names})


def _place(row: dict[str, Any]) -> tuple[int, int]:
    return row["half_queue_id"], row["half_queue_offset"]


def _compact(published: Published, topic: str) -> None:
    name = TOPIC_PREFIX + topic
    if os.path.isdir(published.tables.location(name)):
        published.compact(name)
        published._logs.pop(name, None)  # it has read commits that are no longer there


def _compact_batches(published: Published) -> None:
    """OPTIMIZE; the old files and the commits stay."""
    from deltalake import DeltaTable

    table = DeltaTable(published.tables.location("batches"))
    table.optimize.compact()
    table.create_checkpoint()
