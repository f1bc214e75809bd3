"""Many retries: they wait for nothing that waits for them, and those in hand are limited."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from checkback.consumer import PushConsumer
from checkback.consumer.group.group_state import GroupState, MessageQueue
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import BatchKey, MessageKey
from checkback.consumer.retry import Retry
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST, start

if TYPE_CHECKING:
    from consumer.published import Published

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
    monkeypatch.setattr("checkback.consumer.calling._MOST_RETRIES", 10)
    start(lake, running, Heard())
    running.pop().shutdown()
    lake.publish({"pay": [lake.messages(20)]})
    with_retries(lake, range(1, 15))
    heard = Heard()
    start(lake, running, heard, orderly=orderly)
    heard.wait_for(*range(20))
    assert set(heard.times.values()) == {1}


def test_retries_of_a_topic_that_is_away_do_not_hold_up_another(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkback.consumer.calling._MOST_RETRIES", 10)
    lake.publish({"pay": [lake.messages(15)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(*range(15))
    running.pop().shutdown()
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
