"""A topic's table that is older than `batches`: an older copy was put in its place, or it has not arrived yet."""

from __future__ import annotations

import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.consumer import PushConsumer
from checkback.consumer.batch_listing import ListedBatch
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.browse import Browser
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.position import BatchKey, MessageKey
from checkback.consumer.topic_reader import TopicReader
from checkback.errors import StorageError
from consumer.heard import Heard, until
from consumer.published import START, Published
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer.group.group_state import QueueState

OLDER = "has version"


def older(lake: Published) -> Callable[[], None]:
    """Batches 0 and 1, each of the topics pay and other; pay's table is put back to batch 0. Returns what undoes it."""
    place = Path(lake.tables.location("topics/pay"))
    lake.time = round(time.time() * 1000)
    lake.publish({"pay": [lake.messages(2)], "other": [lake.messages(1)]})
    backup = Path(shutil.copytree(place, place.parent.parent / "backup"))
    lake.publish({"pay": [lake.messages(2)], "other": [lake.messages(1)]})
    newest = place.rename(place.parent.parent / "newest")
    backup.rename(place)

    def undo() -> None:
        shutil.rmtree(place)
        newest.rename(place)

    return undo


@pytest.mark.slow
@pytest.mark.parametrize("orderly", [True, False])
def test_a_group_waits_until_the_newest_is_back(lake: Published, running: list[PushConsumer], orderly: bool) -> None:
    """It consumes what the table has, and other topics."""
    undo, heard = older(lake), Heard()
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST | {"orderly": orderly})
    running.append(consumer.subscribe("pay").subscribe("other").start())
    heard.wait_for(0, 1, 2, 5)
    until(lambda: OLDER in str(consumer.last_error))
    until(lambda: OLDER in str(consumer_lag(lake.tables, lake.time)[0].damaged))
    assert sorted(heard.offsets) == [0, 1, 2, 5]
    lake.publish({"other": [lake.messages(1)]})
    heard.wait_for(6)
    undo()
    heard.wait_for(3, 4)
    lake._logs.clear()
    lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(7)
    assert sorted(heard.offsets) == list(range(8))


@pytest.mark.slow
def test_a_retry_waits_too(lake: Published, running: list[PushConsumer]) -> None:
    """It is not given up as a message that nobody has any more."""
    place = Path(lake.tables.location("topics/pay"))
    lake.time = round(time.time() * 1000)
    lake.publish({"pay": [lake.messages(1)]})
    backup = Path(shutil.copytree(place, place.parent.parent / "backup"))
    lake.publish({"pay": [lake.messages(2)]})
    heard = Heard({1: 1})
    consumer = start(
        lake, running, heard, retry_levels=[timedelta(seconds=1.5)], commit_interval=timedelta(seconds=0.02)
    )
    heard.wait_for(0, 1, 2)
    newest = place.rename(place.parent.parent / "newest")
    backup.rename(place)
    until(lambda: OLDER in str(consumer.last_error))
    shutil.rmtree(place)
    newest.rename(place)
    heard.wait(lambda heard: heard.times[1] == 2)
    consumer.close()
    assert dead_letters(lake) == []
    assert not any(each.retries for each in kept(lake))


def test_readers_say_so(lake: Published) -> None:
    undo = older(lake)
    log = BatchLog(lake.tables)
    log.refresh()
    reader = TopicReader(lake.tables, "pay", log)
    key = log.batches[-1].key
    assert reader.run(log.batches) == 1
    with pytest.raises(StorageError, match=OLDER):
        reader.run(log.batches[1:])
    with pytest.raises(StorageError, match=OLDER):
        list(reader.fetch([MessageKey(key, 0, 3)]))
    found = []
    browser = Browser(lake.tables, "pay")
    with pytest.raises(StorageError, match=OLDER):
        found += [message.half_queue_offset for message in browser.read()]
    undo()
    assert [len(part.keys) for part in reader.fetch([MessageKey(key, 0, 3)])] == [1]
    found += [message.half_queue_offset for message in browser.read()]
    assert found == [3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("more", [0, 1, 5])
def test_a_table_made_anew_is_not_waited_for(lake: Published, running: list[PushConsumer], more: int) -> None:
    """``more``: batches that are published to it. Its versions begin again; what the old one had is gone."""
    if more:  # it is older than batches of the old one: a clock was set back
        lake.time = round(time.time() * 1000)
    for _ in range(4):
        lake.publish({"pay": [lake.messages(1)]})
    shutil.rmtree(lake.tables.location("topics/pay"))
    lake._logs.clear()
    lake.log("topics/pay")
    for _ in range(more):
        lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    consumer = start(lake, running, heard)
    heard.wait_for(*range(4, 4 + more))
    until(lambda: all(each.position.consumed.get("a") == 3 + more for each in kept(lake)))
    assert consumer.last_error is None


@pytest.mark.slow
def test_a_restored_table_that_is_written_again_is_not_waited_for(lake: Published, running: list[PushConsumer]) -> None:
    """Its messages are lost (the audit says so); the group gets those that are published since."""
    older(lake)
    lake._logs.clear()
    heard = Heard()
    consumer = start(lake, running, heard)
    until(lambda: OLDER in str(consumer.last_error))
    lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(6)
    assert sorted(heard.offsets) == [0, 1, 6]


def kept(lake: Published) -> list[QueueState]:
    return list(GroupTable(lake.tables, "g").state.queues.values())


@given(st.lists(st.integers(-1, 9), max_size=12), st.integers(0, 9))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_first_batch_that_needs_a_later_version(lake: Published, versions: list[int], version: int) -> None:
    """A batch needs the least version that it or a later one names; -1 is not known."""
    log = BatchLog(lake.tables)
    names = frozenset(["topics/pay"])
    log._list_again(
        [
            ListedBatch(
                BatchKey("a", at, START + at), START + at, names, (("topics/pay", named),) if named >= 0 else ()
            )
            for at, named in enumerate(versions)
        ]
    )
    needed = [min((each for each in versions[at:] if each >= 0), default=0) for at in range(len(versions))]
    expected = next((at for at, least in enumerate(needed) if least > version), None)
    found = log.listed.first_behind("topics/pay", version, 0)
    assert (None if found is None else found[0]) == expected
    assert found is None or found[1] == needed[found[0]]
    assert log.listed.first_behind("topics/pay", version, START + 100) is None
