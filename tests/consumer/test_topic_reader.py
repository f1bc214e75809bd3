"""TopicReader: batches in order from whatever files, in bounded memory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.consumer import topic_reader
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.message import MessageExt
from checkback.consumer.position import QUEUES, MessageKey, Position
from checkback.consumer.topic_reader import TopicReader
from checkback.filter import MessageSelector
from checkback.settings import Storage
from checkback.storage.schemas import CONTENT
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from consumer.published import Published
from support.examples import DEAR

if TYPE_CHECKING:
    from pathlib import Path

EVERYTHING = dict.fromkeys(range(QUEUES), Position())


def places(lake: Published, wanted: dict[int, Position]) -> list[tuple[int, int, int]]:
    """(batch, half queue, offset) of what is read, in order."""
    log = BatchLog(lake.tables)
    log.refresh()
    return [
        rows.keys.at(place)
        for rows in TopicReader(lake.tables, "pay", log).read(log.batches, wanted)
        for place in range(len(rows))
    ]


@pytest.mark.parametrize("at_once", [0, 1 << 30])
def test_interleaved_files_are_merged(lake: Published, monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """Each file has every fourth offset, of two half queues; large ones are read in pieces."""
    monkeypatch.setattr(topic_reader, "_AT_ONCE", at_once)
    monkeypatch.setattr(topic_reader, "_PIECE", 4 << 10)
    for _ in range(2):
        rows = lake.messages(400, range(3))
        rows += [row | {"half_queue_id": 1} for row in rows[:150]]
        lake.publish({"pay": [rows[first::4] for first in range(4)]})
    found = places(lake, EVERYTHING)
    assert found == sorted(found)
    assert len(found) == len(set(found)) == 1100
    log = BatchLog(lake.tables)
    log.refresh()
    first, second = (batch.key for batch in log.batches)
    after = Position({"a": 0}, MessageKey(second, 0, 500), times={"a": first.batch_time})
    rest = places(lake, dict.fromkeys(range(QUEUES), after))
    assert rest == [each for each in found if each > (1, 0, 500)]


def test_message_has_its_ordering_key() -> None:
    """An empty property is none, as where its queue is worked out."""
    for properties, key in (({"__SHARDINGKEY": "a-7"}, "a-7"), ({"__SHARDINGKEY": ""}, None), ({}, None)):
        assert MessageExt("t", 0, "x", "g", None, None, properties, b"", 0, 0, 0, 0, 0).ordering_key == key


def test_two_batches_in_one_tick_of_the_file_systems_clock(lake: Published) -> None:
    """The folder's time is that of the first; the second is found nevertheless, though nothing follows."""
    log, folder = BatchLog(lake.tables), f"{lake.tables.root}/batches/_delta_log"
    lake.publish({"pay": [lake.messages(1)]})
    assert log.refresh()
    tick = os.stat(folder).st_mtime_ns
    lake.publish({"pay": [lake.messages(1)]})
    os.utime(folder, ns=(tick, tick))
    assert log.refresh()
    assert len(log) == 2
    assert not log.refresh()


FILES = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 70)), max_size=6), min_size=1, max_size=4)


@given(st.lists(FILES, min_size=1, max_size=3), st.booleans(), st.sampled_from([0, 1 << 30]))
@settings(DEAR, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.slow
def test_whatever_lies_where_each_message_is_read_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    batches: list[list[list[tuple[int, int]]]],
    compacted: bool,
    at_once: int,
) -> None:
    """Random half queues and queues in random files, also compacted."""
    root: Path = tmp_path_factory.mktemp("lake")
    monkeypatch.setattr(topic_reader, "_AT_ONCE", at_once)
    monkeypatch.setattr(topic_reader, "_PIECE", 1)
    lake = Published(Tables.of(Storage(root=str(root), sync=False)))
    expected = []
    for number, files in enumerate(batches):
        made = [[lake.messages(1, (queue,), half_queue_id=half)[0] for half, queue in file] for file in files]
        lake.publish({"pay": [rows for rows in made if rows]} if any(made) else {})
        expected += [(number, row["half_queue_id"], row["half_queue_offset"]) for rows in made for row in rows]
    if compacted and expected:
        lake.compact("topics/pay")
    assert places(lake, EVERYTHING) == sorted(expected)


def test_erased_messages_are_skipped(lake: Published) -> None:
    """With and without a selector, also when they are counted, or fetched for a retry."""
    erased = {"erased_at": time_of(lake.time), **dict.fromkeys(CONTENT)}
    rows = lake.messages(6)
    lake.publish({"pay": [[row | erased if number % 2 else row for number, row in enumerate(rows)]]})
    log = BatchLog(lake.tables)
    log.refresh()
    for selector in (None, MessageSelector.by_sql("number >= 0")):
        found = TopicReader(lake.tables, "pay", log, selector).read(log.batches, EVERYTHING)
        assert [row["half_queue_offset"] for part in found for row in part.rows.to_pylist()] == [0, 2, 4]
    reader = TopicReader(lake.tables, "pay", log)
    assert {queue: unread.messages for queue, unread in reader.count(log.batches, EVERYTHING).items()} == {0: 3}
    keys = [MessageKey(log.batches[0].key, 0, offset) for offset in range(6)]
    assert {key for part in reader.fetch(keys) for key in part.by_key()} == set(keys[::2])
