"""The lag of consumer groups: counted from the tables against a count of what was published."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback import Checkback
from checkback.consumer import topic_reader
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group import rebalance
from checkback.consumer.group.group_lag import group_lag
from checkback.consumer.group.group_reader import group_names, read_group
from checkback.consumer.group.group_state import GroupState, Member, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.lag_reader import LagReader, consumer_lag
from checkback.consumer.group.lag_screen import as_json, facts_of, heading, topic_rows
from checkback.consumer.message_rows import Unread
from checkback.consumer.position import QUEUES, BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import Retry
from checkback.errors import SettingsError, StorageError
from checkback.query.status.screen import _consumers
from checkback.settings import Storage
from checkback.storage.tables import Tables
from consumer.published import START, Published
from support.examples import fewer
from support.fault_proxy import fault_proxy, in_sequence_since, set_latency
from support.s3_server import options

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

pytestmark = pytest.mark.slow


@pytest.fixture
def lake(tmp_path: Path) -> Published:
    return Published(Tables(root=str(tmp_path), by_files=True, sync=False))


def write(lake: Published, group: str, positions: Mapping[MessageQueue, Position], *members: Member) -> None:
    """A group's state, as its members leave it."""
    state = GroupState({each.name: each for each in members}, {at: QueueState(each) for at, each in positions.items()})
    for each in members:
        state = rebalance.take(state, each.name)
    GroupTable(lake.tables, group).update(lambda _: state)


def everywhere(topic: str, position: Position) -> dict[MessageQueue, Position]:
    return {MessageQueue(topic, queue_id): position for queue_id in range(QUEUES)}


def files_of(root: str) -> set[str]:
    return {os.path.join(folder, name) for folder, _, names in os.walk(root) for name in names}


@fewer(4)
@given(st.data())
def test_lag_is_what_was_published_and_is_not_consumed(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any batches, rebuilds and positions: the count and the oldest of each queue are those of a plain list."""
    lake = Published(Tables(root=str(tmp_path_factory.mktemp("lake")), by_files=True, sync=False))
    published: list[tuple[MessageKey, int]] = []
    keys: list[BatchKey] = []
    for number in range(data.draw(st.integers(1, 5))):
        if number and data.draw(st.booleans()):
            lake.rebuild()
        rows = lake.messages(data.draw(st.integers(1, 6)), data.draw(st.sampled_from([(0,), (0, 1, 64), (5, 69)])))
        concluded = number == 0 or data.draw(st.booleans())
        lake.publish({"payments": [rows]}, concluded)
        if concluded:
            keys.append(BatchKey(lake.application, lake.batch_id, lake.time))
            published += [(MessageKey(keys[-1], 0, row["half_queue_offset"]), row["queue_id"] % QUEUES) for row in rows]
    if data.draw(st.booleans()):
        lake.compact("topics/payments")
    log = BatchLog(lake.tables)
    log.refresh()
    positions = everywhere("payments", Position())
    for queue_id in (0, 1, 5):
        position = log.listed.consumed_before(data.draw(st.integers(0, len(log))))
        mine = [key for key, queue in published if queue == queue_id and not position.has_batch(key.batch)]
        part = data.draw(st.integers(0, len(mine)))
        if part:
            position = replace(position, part=mine[part - 1])
        positions[MessageQueue("payments", queue_id)] = position
    write(lake, "credits", positions)
    now = lake.time + 60_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_reader, "_COUNTED_BATCHES", 2)
        (found,) = consumer_lag(lake.tables, now)
    (topic,) = found.topics
    for queue in topic.queues:
        position = positions[MessageQueue("payments", queue.queue_id)]
        left = [key for key, at in published if at == queue.queue_id and not position.has(key)]
        assert queue.messages == len(left)
        assert queue.seconds == max(((now - key.batch.batch_time) / 1000 for key in left), default=0)
    assert found.messages == topic.messages == sum(queue.messages or 0 for queue in topic.queues)


def test_reading_writes_nothing_and_follows_new_batches(lake: Published) -> None:
    """Batches that are not complete do not count; a reader sees what came since it read last."""
    lake.publish({"payments": [lake.messages(3, (0, 1))]})
    lake.publish({"payments": [lake.messages(9)]}, concluded=False)
    write(lake, "credits", everywhere("payments", Position()))
    before = files_of(lake.tables.root)
    reader = LagReader(lake.tables)
    assert [each.messages for each in reader.read(lake.time)] == [3]
    assert files_of(lake.tables.root) == before
    lake.publish({"payments": [lake.messages(2)]})
    assert [each.messages for each in reader.read(lake.time)] == [5]
    assert reader.read(lake.time - 3_600_000)[0].seconds == 0


def test_members_retries_and_dead_letters_are_told(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    member = Member("b", 3, START, frozenset({"payments"}), "ValueError at credits.py:12")
    write(lake, "credits", everywhere("payments", Position()), member)
    key = MessageKey(BatchKey("a", 0, START + 1000), 0, 0)

    def fail(state: GroupState) -> GroupState:
        queue = MessageQueue("payments", 0)
        retries = (Retry(key, 2, START + 9, "x"), Retry(key._replace(half_queue_offset=1), 1, START + 7, "x"))
        return state.with_queues({queue: replace(state.queues[queue], retries=retries, dead_letters=4)})

    GroupTable(lake.tables, "credits").update(fail)
    (found,) = consumer_lag(lake.tables, START)
    assert [(one.name, one.joined_at, one.queues, one.topics, one.last_error) for one in found.members] == [
        ("b", START, 64, ("payments",), "ValueError at credits.py:12")
    ]
    assert (found.retries, found.next_retry_at, found.dead_letters) == (2, START + 7, 4)
    assert found.topics[0].owned == 64
    assert {queue.owner for queue in found.topics[0].queues} == {"b"}
    assert (found.written_at or 0) > START


def test_a_member_lives_for_three_sessions_after_the_group_was_written() -> None:
    """Alone in a group, one that is killed stays in its state: nobody removes it."""
    state = GroupState(
        {name: Member(name, 1, START, frozenset(), session_timeout_ms=ms) for name, ms in _SESSIONS.items()}, {}
    )
    for after, living in ((30_000, {"a", "b"}), (30_001, {"b"}), (-3_600_000, {"a", "b"}), (3_600_000, set())):
        assert group_lag("credits", state, START, {}, START + after).living == living


_SESSIONS = {"a": 10_000, "b": 60_000}


def test_groups_are_listed_by_name_and_others_are_refused(lake: Published) -> None:
    assert consumer_lag(lake.tables, START) == []
    with pytest.raises(SettingsError, match="there is no such consumer group"):
        consumer_lag(lake.tables, START, "credits")
    assert files_of(lake.tables.root) == set()
    state = GroupState({"m": Member("m", 1, START, frozenset({"payments"}))}, {})
    for name in ("b", "a"):
        GroupTable(lake.tables, name).update(lambda _: state)
    Path(lake.tables.root, "consumer_groups", "not-a-table").mkdir()
    assert group_names(lake.tables) == ["a", "b"]
    assert [each.group for each in consumer_lag(lake.tables, START, "a")] == ["a"]
    assert read_group(lake.tables, "a").state == state
    with pytest.raises(SettingsError, match="there are a, b"):
        consumer_lag(lake.tables, START, "../topics")


def test_a_damaged_group_hides_no_other(lake: Published) -> None:
    for name in ("a", "b", "c"):
        write(lake, name, everywhere("orders", Position()), Member(name, 1, START, frozenset({"orders"})))
    log = max((Path(lake.tables.root) / "consumer_groups/b/_delta_log").glob("*.json"))
    log.write_bytes(log.read_bytes()[:100])
    found = consumer_lag(lake.tables, START)
    assert [(one.group, len(one.members)) for one in found] == [("a", 1), ("b", 0), ("c", 1)]
    assert [one.damaged is None for one in found] == [True, False, True]
    assert re.fullmatch(
        "b: .*/consumer_groups/b: the group's table cannot be read: .{10,200}", heading(found[1], START)
    )
    assert _consumers(facts_of(found[1], START), 0).bad
    assert {name for name, value in as_json(found[1]).items() if value is None} == {
        *("written_at", "lag_messages", "lag_s", "retries", "next_retry_at", "dead_letters")
    }
    facts = facts_of(found[1], START)
    assert (facts.members, facts.lag_messages, facts.retries, facts.dead_letters) == (None, None, None, None)
    with pytest.raises(StorageError):
        consumer_lag(lake.tables, START, "b")


def test_a_damaged_topic_hides_neither_groups_nor_topics(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(1)], "orders": [lake.messages(2)]})
    for name, topics in (("a", ("orders",)), ("b", ("orders", "payments")), ("c", ("payments",))):
        state = {key: one for topic in topics for key, one in everywhere(topic, Position()).items()}
        write(lake, name, state, Member(name, 1, START, frozenset(topics)))
    (Path(lake.tables.root) / "topics/orders").rename(Path(lake.tables.root) / "aside")
    found = consumer_lag(lake.tables, lake.time)
    known = [(one.group, len(one.members), one.messages, one.seconds) for one in found]
    assert known == [("a", 1, None, None), ("b", 1, None, None), ("c", 1, 1, 0.0)]
    assert ["consumers wait" in (one.damaged or "") for one in found] == [True, True, False]
    orders, payments = found[1].topics
    assert (orders.messages, orders.damaged) == (None, found[1].damaged)
    assert (payments.messages, payments.damaged) == (1, None)
    assert topic_rows(found[1], lake.time) == [
        ("orders", "64/64", "?", "?", "0", "-", "0", "?"),
        ("payments", "64/64", "1", "0s", "0", "-", "0", "0"),
    ]
    shown = as_json(found[1])
    assert (shown["lag_messages"], shown["lag_s"], shown["retries"], shown["dead_letters"]) == (None, None, 0, 0)
    assert [topic["lag_messages"] for topic in shown["topics"]] == [None, 1]
    assert shown["topics"][0]["queues"][0]["lag_messages"] is None
    assert (facts_of(found[1], lake.time).members, facts_of(found[1], lake.time).lag_messages) == (1, None)
    with pytest.raises(StorageError, match="consumers wait"):
        consumer_lag(lake.tables, lake.time, "b")


def test_a_topic_whose_table_is_gone_has_no_lag(lake: Published) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    write(lake, "credits", everywhere("gone", Position()) | everywhere("payments", Position()))
    (found,) = consumer_lag(lake.tables, lake.time)
    assert (found.messages, found.seconds, found.damaged) == (1, 0.0, None)
    assert [row[2] for row in topic_rows(found, lake.time)] == ["not there yet", "1"]
    assert [topic["missing"] for topic in as_json(found)["topics"]] == [True, False]
    assert _consumers(facts_of(found, lake.time), 0).text.endswith("; not there yet: gone")


def test_totals_are_sums_and_the_oldest() -> None:
    queues = {MessageQueue(topic, queue_id): QueueState(Position()) for topic in ("a", "b") for queue_id in range(2)}
    unread = {MessageQueue("a", 0): Unread(2, START - 5_000), MessageQueue("b", 1): Unread(3, START - 9_000)}
    found = group_lag("credits", GroupState({}, queues), START, unread, START)
    assert (found.messages, found.seconds) == (5, 9.0)
    assert [(topic.topic, topic.messages, topic.seconds) for topic in found.topics] == [("a", 2, 5.0), ("b", 3, 9.0)]


def test_lag_in_an_object_store(s3: Tables) -> None:
    lake = Published(s3)
    lake.publish({"payments": [lake.messages(3)]})
    write(lake, "credits", everywhere("payments", Position()))
    assert [(each.group, each.messages) for each in consumer_lag(s3, lake.time)] == [("credits", 3)]


def _queues(lake: Published, group: str | None = None) -> pa.Table:
    return Checkback(lake.tables.root).consumers(group)


def test_queues_as_rows(lake: Published) -> None:
    assert not _queues(lake).num_rows
    lake.publish({"payments": [lake.messages(3, (0, 1))]})
    log = BatchLog(lake.tables)
    log.refresh()
    positions = everywhere("payments", Position()) | {MessageQueue("payments", 0): log.listed.consumed_before(len(log))}
    write(lake, "credits", positions)
    found = _queues(lake, "credits")
    assert len(found) == 64
    assert found["lag_messages"].to_pylist()[:3] == [0, 1, 0]
    assert found["settled_at"][0].as_py().timestamp() * 1000 == lake.time
    assert found["settled_at"].null_count == 63


def test_rows_tell_what_is_not_known(lake: Published) -> None:
    pandas = pytest.importorskip("pandas")
    lake.publish({"payments": [lake.messages(1)], "orders": [lake.messages(2)]})
    for name in ("a", "b"):
        write(lake, name, everywhere("orders", Position()) | everywhere("payments", Position()))
    (Path(lake.tables.root) / "topics/orders").rename(Path(lake.tables.root) / "aside")
    log = max((Path(lake.tables.root) / "consumer_groups/b/_delta_log").glob("*.json"))
    log.write_bytes(log.read_bytes()[:100])
    frame = _queues(lake).to_pandas()
    assert len(frame) == 2 * QUEUES + 1
    of = frame.groupby(["group", "topic"], dropna=False)[["lag_messages", "dead_letters"]].sum(min_count=1)
    assert [tuple(None if pandas.isna(value) else value for value in row) for row in of.to_numpy()] == [
        (None, 0),
        (1, 0),
        (None, None),
    ]
    why = frame.drop_duplicates(["group", "topic"]).damaged.tolist()
    assert "consumers wait" in why[0]
    assert why[1] is None
    assert "the group's table cannot be read" in why[2]


@pytest.mark.processes
def test_groups_and_topics_are_read_side_by_side(s3: Tables, s3_port: int) -> None:
    """Requests one after the other: the groups' tables, then the batches' and the topics' logs, then their files."""
    lake = Published(s3)
    topics = ("payments", "refunds", "receipts")
    for _ in range(4):
        lake.publish({topic: [lake.messages(2)] for topic in topics})
    for group in ("a", "b", "c"):
        write(lake, group, {at: where for topic in topics for at, where in everywhere(topic, Position()).items()})
    with fault_proxy(s3_port) as port:
        tables = Tables.of(Storage.model_validate({"root": s3.root, "options": options(port)}))
        set_latency(port, 0.05)
        in_sequence_since(port)
        assert [each.messages for each in consumer_lag(tables, lake.time)] == [24, 24, 24]
        assert in_sequence_since(port) <= 50  # 35 of 169
