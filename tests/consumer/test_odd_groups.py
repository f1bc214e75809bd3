"""What a user, a clock or a table may do to a group: nothing is lost, nothing beside it is held up."""

from __future__ import annotations

import logging
import os
import shutil
import threading
import time
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.cli import main
from checkback.consumer import PushConsumer
from checkback.consumer.group import rebalance
from checkback.consumer.group.group_state import GroupState, Member
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.options import ConsumerOptions
from checkback.consumer.retry_or_dead_letter import suspend_levels
from checkback.errors import SettingsError, StorageError
from consumer.heard import Heard, raising, until
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from collections.abc import Iterator

    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_the_clock_set_back_beneath_a_consumer_holds_up_nothing(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    real, heard = time.time, Heard({1: 2})
    monkeypatch.setattr("time.time", lambda: real() - 3600 if heard.messages else real())
    start(lake, running, heard, orderly=True, suspend=timedelta(seconds=0.2))
    heard.wait(lambda heard: heard.offsets == [0, 1, 1, 1, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": True},
        {"max_batch_size": 0},
        {"max_batch_size": -1},
        {"session_timeout": timedelta(seconds=0)},
        {"session_timeout": timedelta(seconds=-1.0)},
        {"session_timeout": timedelta(seconds=1e-3)},
        {"commit_interval": timedelta(seconds=0)},
        {"retry_levels": []},
        {"retry_levels": [timedelta(seconds=1e12)]},
        {"retry_levels": [timedelta(seconds=-1)]},
        {"suspend": timedelta(seconds=-1)},
        {"max_reconsume_times": -2},
        {"start_from": True},
        {"start_from": "middle"},
    ],
)
def test_options_out_of_range_are_refused(lake: Published, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        PushConsumer("g", lake.tables.root, Heard(), **options)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ({"suspend": 1}, "suspend"),
        ({"session_timeout": 10.0}, "session_timeout"),
        ({"commit_interval": float("nan")}, "commit_interval"),
        ({"retry_levels": [1.0]}, "a level of retry_levels"),
    ],
)
def test_plain_number_is_no_duration(lake: Published, option: dict[str, Any], name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} is a timedelta, such as timedelta"):
        PushConsumer("g", lake.tables.root, Heard(), **option)
    with pytest.raises(TypeError, match="timeout is a timedelta, such as timedelta"):
        PushConsumer("g", lake.tables.root, Heard()).close(5)  # type: ignore[arg-type]


def test_max_reconsume_times_is_sixteen_by_minus_one(lake: Published, running: list[PushConsumer]) -> None:
    """DefaultMQPushConsumer's default."""
    lake.publish({"pay": [lake.messages(1)]})
    heard = Heard({0: 99})
    start(lake, running, heard, max_reconsume_times=-1, retry_levels=[timedelta(seconds=0)])
    until(lambda: dead_letters(lake))
    assert heard.times[0] == 17


@pytest.mark.parametrize("limit", [None, -1, 0, 3])
def test_in_order_only_a_limit_that_is_given_counts(limit: int | None) -> None:
    """RocketMQ's is Integer.MAX_VALUE."""
    times = timedelta(seconds=1), timedelta(seconds=10), timedelta(seconds=1)
    of = {orderly: ConsumerOptions(1, 32, orderly, limit, None, *times) for orderly in (False, True)}
    found = of[False].most_retries, of[True].most_retries
    assert found == ((limit, limit) if limit is not None and limit >= 0 else (16, 2**31 - 1))


@given(st.integers(0, 100_000))
def test_in_order_the_pause_doubles_up_to_half_a_minute(suspend: int) -> None:
    levels = suspend_levels(suspend)
    assert levels[0] == suspend
    assert levels[-1] == (max(suspend, 30_000) if suspend else 0)
    assert all(later == min(2 * sooner, 30_000) for sooner, later in pairwise(levels))


def test_a_start_at_a_batch_matters_to_new_topics_only(lake: Published, running: list[PushConsumer]) -> None:
    for _ in range(3):
        lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    start(lake, running, heard, start_from=2)
    heard.wait_for(2)
    running.pop().close()
    lake.rebuild()
    lake.publish({"pay": [lake.messages(1)]})
    again = Heard()
    start(lake, running, again, start_from=2)
    again.wait_for(3)
    assert (heard.offsets, again.offsets) == ([2], [3])
    with pytest.raises(SettingsError, match="no batch 2"):
        PushConsumer("new", lake.tables.root, again, start_from=2).subscribe("pay").start()


def test_a_paused_member_gives_its_queues_back(lake: Published, running: list[PushConsumer]) -> None:
    """Also those whose messages its threads hold."""
    lake.publish({"pay": [lake.messages(640, range(64))]})
    heard = Heard()
    paused = start(lake, running, heard, threads=8)
    heard.wait_for_count(1)
    paused.pause()
    other = Heard()
    two = start(lake, running, other)
    until(lambda: len(two.queues()) == len(paused.queues()) == 32)


def test_a_group_table_that_was_made_anew_is_joined_again(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    # At once: the member goes on writing into it.
    Path(lake.tables.location("consumer_groups/g")).rename(f"{lake.tables.root}/aside")
    GroupTable(lake.tables, "g")
    until(lambda: len(GroupTable(lake.tables, "g").state.members) == 1)
    lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(3)


def test_a_folder_that_is_no_group_stops_no_command(
    lake: Published, running: list[PushConsumer], capsys: pytest.CaptureFixture[str]
) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    shutil.copytree(lake.tables.location("consumer_groups/g"), lake.tables.location("consumer_groups/[bold]\x1b[31m"))
    (Path(lake.tables.location("consumer_groups/broken")) / "_delta_log").mkdir(parents=True)
    assert main(["group", "describe", "g", "--set", f"storage.root={lake.tables.root}"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("settings", ["no", "there"])
def test_a_group_s_table_that_cannot_be_written(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """The start says so; a shutdown ends."""
    lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST).subscribe("pay")

    def fail(*_: Any) -> None:
        raise OSError(30, os.strerror(30))

    if settings == "no":
        monkeypatch.setattr("checkback.storage.parquet.parquet_files.FileWriter.write", fail)
        with pytest.raises(StorageError, match="Read-only"):
            consumer.start()
    else:
        running.append(consumer.start())
        heard.wait_for(0)
        monkeypatch.setattr("checkback.storage.parquet.parquet_files.FileWriter.write", fail)
        running.pop().close(timedelta(seconds=10))
        assert consumer.stopping


def test_orderly_a_queue_is_taken_again_once_the_call_in_progress_has_returned(
    lake: Published, running: list[PushConsumer]
) -> None:
    """The member was taken for dead in the middle of it."""
    lake.publish({"pay": [lake.messages(3)]})
    inside, most, go_on = [0], [0], threading.Event()

    def listen(message: Any) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        if message.half_queue_offset == 0:
            assert go_on.wait(20)
        inside[0] -= 1

    heard = Heard(also=listen)
    start(lake, running, heard, orderly=True)
    until(lambda: inside[0])
    table = GroupTable(lake.tables, "g")
    table.update(lambda state: rebalance.leave(state, *state.members))
    until(lambda: GroupTable(lake.tables, "g").state.members)
    table.refresh()
    before = len(heard.messages)
    until(lambda: len(table.state.owned(*table.state.members)) == 64)
    assert len(heard.messages) == before
    go_on.set()
    heard.wait_for(0, 1, 2)
    assert most == [1]


@pytest.fixture
def failing_log() -> Iterator[None]:
    """A service's filter of the log that fails."""

    def fail(_: logging.LogRecord) -> bool:
        raise ValueError

    log = logging.getLogger("checkback.consumer")
    log.addFilter(fail)
    yield
    log.removeFilter(fail)


@pytest.mark.usefixtures("failing_log")
def test_a_log_that_fails_holds_up_no_message(lake: Published, running: list[PushConsumer]) -> None:
    """One whose listener fails is tried again, and given up."""
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard(also=raising(ValueError))
    start(lake, running, heard, threads=1, max_reconsume_times=0)
    heard.wait_for(0, 2)
    until(lambda: [letter["half_queue_offset"] for letter in dead_letters(lake)] == [1])


@pytest.mark.usefixtures("failing_log")
def test_a_log_that_fails_does_not_end_the_groups_thread(lake: Published, running: list[PushConsumer]) -> None:
    """Its first warning is that the group's table is away, then the member is taken for dead, and joins again."""
    consumer = start(lake, running, Heard())
    place, before = Path(lake.tables.location("consumer_groups/g")), GroupTable(lake.tables, "g").state.members
    place.rename(place.with_name("away"))
    until(lambda: consumer.last_error is not None)
    shutil.rmtree(place, ignore_errors=True)
    place.with_name("away").rename(place)
    GroupTable(lake.tables, "g").update(lambda state: rebalance.leave(state, consumer.member))
    until(lambda: GroupTable(lake.tables, "g").state.members.keys() == before.keys())
    running.pop().close()
    assert GroupTable(lake.tables, "g").state.members == {}


def test_states_that_were_replaced_are_in_no_checkpoint(lake: Published) -> None:
    """A week of heartbeats and positions is a million of them, which each checkpoint would list."""
    table = GroupTable(lake.tables, "g")
    state = GroupState(members={"a": Member("a", 1, 0, frozenset({"pay"}))})
    for _ in range(100):
        table.update(lambda _: replace(state))
    [checkpoint] = Path(lake.tables.location("consumer_groups/g"), "_delta_log").glob("*.checkpoint.parquet")
    assert not pq.read_table(checkpoint, columns=["remove"]).column("remove").drop_null()
    assert GroupTable(lake.tables, "g").state == state
