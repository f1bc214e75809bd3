"""Runs of batches in one row, made by retention or in a consumer's memory: each message once, and bounded memory."""

from __future__ import annotations

import shutil
import tracemalloc
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkback.consumer import batch_log, unread_batches
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.consume_from_where import start_position
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.group.lag_reader import unread_of
from checkback.consumer.position import BatchKey, MessageKey, Position, floor_of
from checkback.consumer.process_queue import ProcessQueue, Run
from checkback.consumer.topic_reader import TopicReader
from checkback.settings import Storage
from checkback.storage.batch_runs import runs_of
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from consumer.published import START, Published
from support.examples import DEAR

if TYPE_CHECKING:
    from pathlib import Path

_TOPIC = "topics/pay"
_SCHEMA = arrow_schema("batches")


@dataclass
class Aging(Published):
    """A lake whose rows of `batches` have counts, and whose old ones retention makes runs."""

    rows: list[pa.Table] = field(default_factory=list)

    def batch(self, messages: int, queues: int = 1) -> None:
        """Publish a batch of messages."""
        self.batch_id += 1
        self.time += 1000
        versions = {}
        if messages:
            self.append(_TOPIC, self.messages(messages, range(queues)))
            versions = {_TOPIC: self.log(_TOPIC).version()}
        row = {
            "application": self.application,
            "batch_id": self.batch_id,
            "batch_time": time_of(self.time),
            "finished_at": time_of(START + 1000 * len(self.rows)),
            "committed": messages,
            "table_versions": list(versions.items()),
        }
        self.rows.append(pa.Table.from_pylist([row], _SCHEMA))
        self.write("batches", self.rows[-1])

    def retain(self, alone: int) -> None:
        """All rows but the newest ones become runs."""
        old = len(self.rows) - alone
        if old <= 0:
            return
        rows = pa.concat_tables(self.rows)
        made = pa.concat_tables([runs_of(rows.slice(0, old)), rows.slice(old)])
        shutil.rmtree(self.tables.location("batches"))
        del self._logs["batches"]
        self.write("batches", made)


@dataclass
class Group:
    """A consumer of queue 0 in one thread, which is started anew where its position is.

    ``log``: may be another group's as well, as a member's is that takes queues of others.
    """

    lake: Aging
    log: BatchLog
    position: Position = field(default_factory=Position)
    heard: list[int] = field(default_factory=list)

    def start(self) -> None:
        """A new process."""
        self.log = BatchLog(self.lake.tables)

    def consume(self, most: int, choose: Random) -> None:
        """Up to so many messages, in slices of any size."""
        reader = TopicReader(self.lake.tables, "pay", self.log)
        while most > 0:
            self.log.refresh(floor_of([self.position]))
            first = self.log.listed.first_unconsumed(self.position)
            if first >= len(self.log):
                return
            count = min(reader.run(self.log.batches[first:]), choose.randint(1, 4))
            batches = self.log.batches[first : first + count]
            run, queue = Run(batches), ProcessQueue.of(MessageQueue("pay", 0), QueueState(self.position), False, 1)
            queue.begin(run)
            for rows in reader.read(batches, {0: queue.fetched}):
                queue.add(rows)
            queue.end(run)
            while most > 0 and (taken := queue.take(choose.randint(1, 3), 0)) is not None:
                taken.done = min(len(taken), most)
                self.heard += [each.half_queue_offset for each in taken.messages()] if not taken.done else []
                self.heard += [taken.key(place).half_queue_offset for place in range(taken.done)]
                most -= taken.done
                queue.put_back(taken)
                queue.advance()
                self.position = queue.consumed
            queue.advance()
            self.position = queue.consumed


_EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("batches"), st.integers(1, 6)),
        st.tuples(st.just("rebuild"), st.just(0)),
        st.tuples(st.just("back"), st.integers(1, 9)),
        st.tuples(st.just("retain"), st.integers(0, 3)),
        st.tuples(st.just("consume"), st.integers(1, 9)),
        st.tuples(st.just("start"), st.just(0)),
        st.tuples(st.just("group"), st.just(0)),
    ),
    max_size=16,
)


@given(_EVENTS, st.integers(0, 2**32))
@settings(DEAR)
@pytest.mark.slow
def test_each_message_once_whatever_was_made_a_run(
    tmp_path_factory: pytest.TempPathFactory, events: list[tuple[str, int]], seed: int
) -> None:
    """By retention, and in memory; with rebuilds, clocks set back, starts and groups that begin in between."""
    choose, lake = Random(seed), Aging(Tables.of(Storage(root=str(tmp_path_factory.mktemp("lake")), sync=False)))
    lake.log("batches")
    groups = [Group(lake, BatchLog(lake.tables))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_log, "_ALONE", 2)
        patch.setattr(unread_batches, "_PRESSED", 4)
        patch.setattr(unread_batches, "_AT_ONCE", 3)
        for event, count in events:
            if event == "batches":
                for _ in range(count):
                    lake.batch(choose.randint(0, 3))
            elif event == "rebuild":
                lake.rebuild()
                lake.time += 1  # of two batches with one id and one time nobody could tell which one a message is of
            elif event == "back":
                lake.time -= 1000 * count
            elif event == "retain":
                lake.retain(count)
            elif event == "group":
                groups.append(Group(lake, groups[-1].log))
            for group in groups:
                if event == "consume":
                    group.consume(count, choose)
                elif event == "start":
                    group.start()
        for group in groups:
            group.consume(1 << 20, choose)
            assert sorted(group.heard) == list(range(lake.offset))


def aged(tmp_path: Path, count: int, messages: int = 0) -> Aging:
    """A lake of so many batches two seconds apart, in files of 1,000 rows; the last ``messages`` with a message."""
    lake = Aging(Tables.of(Storage(root=str(tmp_path / f"lake-{count}"), sync=False)))
    ids = np.arange(count)
    columns = {
        "application": pa.array(["a"] * count),
        "batch_id": pa.array(ids),
        "batch_time": pa.array((START + 2000 * ids) * 1000).cast(_SCHEMA.field("batch_time").type),
        "committed": pa.array(np.full(count, 100)),
        "table_versions": pa.array(
            [[("decisions", number)] for number in range(count)], _SCHEMA.field("table_versions").type
        ),
    }
    rows = pa.table({name: columns.get(name, pa.nulls(count, _SCHEMA.field(name).type)) for name in _SCHEMA.names})
    for first in range(0, count, 1000):
        lake.write("batches", rows.slice(first, 1000).cast(_SCHEMA))
    lake.batch_id, lake.time = count - 1, START + 2000 * (count - 1)
    for _ in range(messages):
        lake.batch(1)
    return lake


def peak(lake: Aging, position: Position) -> tuple[int, int]:
    """Bytes at most, and those that stay, of a log that is opened at a position."""
    BatchLog(lake.tables).refresh(floor_of([position]))  # what is imported or cached by the first time
    tracemalloc.start()
    try:
        log = BatchLog(lake.tables)
        log.refresh(floor_of([position]))
        held, most = tracemalloc.get_traced_memory()
        assert len(log)
    finally:
        tracemalloc.stop()
    return most, held


@pytest.mark.slow
def test_memory_is_by_what_is_unread(tmp_path: Path) -> None:
    """Of a consumer at the end, whatever the age; and of one that begins at the first batch, nearly so."""
    young, old = aged(tmp_path, 1_000), aged(tmp_path, 100_000)
    ends = [Position({"a": lake.batch_id - 500}, times={"a": lake.time - 1_000_000}) for lake in (young, old)]
    (most, held), (most_old, held_old) = (peak(*each) for each in zip((young, old), ends, strict=True))
    assert held_old < 1.3 * held
    assert most_old < 1.3 * most
    log = BatchLog(old.tables)
    log.refresh()
    assert len(log) < batch_log._ALONE + 200


def test_start_and_lag_within_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lake = Aging(Tables.of(Storage(root=str(tmp_path / "lake"), sync=False)))
    for _ in range(8):
        lake.batch(2)
    monkeypatch.setattr(batch_log, "_ALONE", 2)
    log = BatchLog(lake.tables)
    log.refresh()
    assert [each.first_id for each in log.batches] == [0, 6, 7]

    def begins(position: Position) -> int:
        group = Group(lake, BatchLog(lake.tables), position)
        unread = unread_of(log, TopicReader(lake.tables, "pay", log), {0: position})
        group.consume(1 << 20, Random(0))
        assert unread[0].messages == len(group.heard)
        assert unread[0].oldest == START + 1000 * (group.heard[0] // 2 + 1)
        return group.heard[0] // 2

    at = [time_of(START + 1000 * number) for number in range(1, 9)]
    assert [begins(start_position(log, start)) for start in (0, 3, at[3], 7, at[7], "first")] == [0, 3, 3, 7, 7, 0]
    assert start_position(log, "last").has_batch(BatchKey("a", 7, START + 8000))
    lake.retain(2)
    log.refresh()
    # The row does not say when its batches were.
    assert [begins(start_position(log, start)) for start in (0, 3, at[3], 7, at[7])] == [0, 3, 0, 7, 7]


_KEYS = st.tuples(st.sampled_from("abc"), st.integers(0, 4), st.integers(0, 4)).map(lambda key: BatchKey(*key))
_POSITIONS = st.lists(_KEYS, max_size=3).map(lambda last: Position().after_batches(last, None))


@given(st.lists(_POSITIONS, max_size=3), _KEYS, st.lists(_KEYS, max_size=2))
def test_the_floor_has_what_all_have_consumed(
    positions: list[Position], batch: BatchKey, again: list[BatchKey]
) -> None:
    floor = floor_of(positions, [MessageKey(key, 0, 0) for key in again])
    assert all(each.covers(floor) for each in positions)
    assert not any(floor.has_batch(key) for key in again)
    if not any(key.application == batch.application for key in again):
        assert floor.has_batch(batch) == (bool(positions) and all(each.has_batch(batch) for each in positions))
