"""Many retries: they wait for nothing that waits for them, and those in hand are limited."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import PushConsumer
from checkback.consumer.group.group_state import GroupState, MessageQueue
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import BatchKey, MessageKey
from checkback.consumer.retry_or_dead_letter import Retry
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST, start

if TYPE_CHECKING:
    from consumer.published import Published

pytestmark = pytest.mark.slow

QUEUE = MessageQueue("pay", 0)


def with_retries(lake: Published, offsets: range) -> None:
    """The group has these due retries, of the last batch."""
    batch = BatchKey(lake.application, lake.batch_id, lake.time)
    retries = tuple(Retry(MessageKey(batch, 0, offset), 1, 0, "why") for offset in offsets)

    def change(state: GroupState) -> GroupState:
        return state.with_queues({QUEUE: replace(state.queues[QUEUE], retries=retries)})

    GroupTable(lake.tables, "g").update(change)


@pytest.mark.parametrize("orderly", [False, True])
def test_retries_ahead_of_the_position_do_not_hold_it_up(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """A member was killed whose first call hung, while the others failed."""
    monkeypatch.setattr("checkback.consumer.process_queues._MOST_RETRIES", 10)
    start(lake, running, Heard())
    running.pop().close()
    lake.publish({"pay": [lake.messages(20)]})
    with_retries(lake, range(1, 15))
    heard = Heard()
    start(lake, running, heard, orderly=orderly)
    heard.wait_for(*range(20))
    assert set(heard.times.values()) == {1}


def test_retries_of_a_topic_that_is_away_do_not_hold_up_another(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkback.consumer.process_queues._MOST_RETRIES", 10)
    lake.publish({"pay": [lake.messages(15)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(*range(15))
    running.pop().close()
    with_retries(lake, range(15))
    place = lake.tables.location("topics/pay")
    shutil.move(place, f"{place}.away")
    lake.publish({"refunds": [lake.messages(3)]})
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST).subscribe("pay").subscribe("refunds")
    running.append(consumer.start())
    heard.wait_for(15, 16, 17)
    assert sorted(heard.offsets) == list(range(18))
    shutil.move(f"{place}.away", place)
    until(lambda: all(heard.times[offset] == 2 for offset in range(15)))


@pytest.mark.parametrize("limit", ["reader_thread.MOST_MESSAGES", "process_queues.MOST_BYTES"])
def test_retries_are_read_though_there_is_no_room_for_messages(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Those in hand wait for the retries, and no queue is without some."""
    monkeypatch.setattr("checkback.consumer.process_queues._MOST_RETRIES", 1)
    monkeypatch.setattr(f"checkback.consumer.{limit}", 2)
    monkeypatch.setattr("checkback.consumer.reader_thread._PATIENCE_S", 0.05)
    count = 16 * 17  # a thread takes 16 of a queue at first
    lake.publish({"pay": [lake.messages(count, range(16))]})
    heard = Heard(dict.fromkeys(range(count), 1))
    start(lake, running, heard)
    heard.wait_for_count(2 * count)
    assert set(heard.times.values()) == {2}


@pytest.mark.parametrize("orderly", [False, True])
def test_due_retries_are_read_as_far_as_there_is_room(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch, orderly: bool
) -> None:
    """A queue that a call holds up leaves room for others."""
    monkeypatch.setattr("checkback.consumer.process_queues.MOST_BYTES", 300_000)
    monkeypatch.setattr("checkback.consumer.reader_thread._RETRY_BYTES", 100_000)
    monkeypatch.setattr("checkback.consumer.topic_reader._PIECE", 200_000)
    lake.publish({"pay": [lake.messages(100, body=b"x" * 10_000)]})
    heard = Heard()
    start(lake, running, heard, orderly=orderly)
    heard.wait_for(*range(100))
    running.pop().close()
    with_retries(lake, range(100))
    go_on = threading.Event()

    def wait(message: Any) -> None:
        assert message.queue_id or go_on.wait(20)

    again = Heard(also=wait)
    consumer = start(lake, running, again, orderly=orderly)
    hand = consumer._hand
    least, most = (9, 10) if orderly else (29, 50)
    if not orderly:
        until(lambda: hand.full)
    else:
        until(lambda: hand.queues[QUEUE].retrying)
        lake.publish({"pay": [lake.messages(1, (1,))]})
        again.wait_for(100)
        least, most = 9, 10
    queue = hand.queues[QUEUE]
    assert least <= len(queue.retrying) <= most
    assert least * 10_000 <= queue.retry_size < (most + 1) * 10_000
    go_on.set()
    again.wait_for(*range(100))
    until(lambda: not (consumer.in_hand or queue.retry_size))
