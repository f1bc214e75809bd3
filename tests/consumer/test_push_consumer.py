"""PushConsumer on real tables: what is delivered, again or once, and where it goes on."""

from __future__ import annotations

import subprocess
import sys
import threading
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest

from checkback.consumer import AsyncPushConsumer, ConsumeResult, MessageSelector, PushConsumer
from checkback.consumer.consume_from_where import check_start
from checkback.consumer.group.group_table import GroupTable
from checkback.errors import SettingsError
from checkback.settings import Storage
from checkback.storage.tables import Tables
from checkback.storage.timestamps import time_of
from consumer.heard import Heard, until
from consumer.published import Published

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer.consume_from_where import StartFrom

pytestmark = pytest.mark.slow
FAST: dict[str, Any] = {
    "session_timeout": timedelta(seconds=2.0),
    "commit_interval": timedelta(seconds=0.05),
    "retry_levels": [timedelta(seconds=0.01)],
    "threads": 4,
}


def start(
    lake: Published, running: list[PushConsumer], listener: Callable[..., Any] | None = None, **options: Any
) -> PushConsumer:
    """A running consumer of the topic pay, in the group g."""
    selector = options.pop("selector", "*")
    consumer = PushConsumer("g", lake.tables.root, listener, **FAST | options).subscribe("pay", selector)
    running.append(consumer)
    return consumer.start()


def dead_letters(lake: Published) -> list[dict[str, Any]]:
    place = lake.tables.location("dead_letters")
    if not deltalake.DeltaTable.is_deltatable(place):
        return []
    rows: list[dict[str, Any]] = deltalake.DeltaTable(place).to_pyarrow_table().to_pylist()
    return rows


def test_each_message_is_consumed_once_with_its_columns(lake: Published, running: list[PushConsumer]) -> None:
    rows = lake.messages(10, (0, 1, 70), tags="A")
    lake.publish({"pay": [rows[:4], rows[4:]]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(*range(10))
    first = min(heard.messages, key=lambda message: message.half_queue_offset)
    assert first._replace(born_timestamp=0) == (
        *("pay", 0, "tx-0", "orders", "A", "key-0", {"number": "0"}, b"body-0", 0, 0, 0, lake.time, 0, 0),
    )
    lake.publish({"pay": [lake.messages(5)]})
    heard.wait_for(*range(15))
    assert set(heard.times.values()) == {1}


@pytest.mark.parametrize(
    "selector",
    ["B || C", MessageSelector.by_sql("TAGS IN ('B', 'C')"), MessageSelector.by_sql("number > 4 AND number < 10")],
)
def test_only_messages_that_the_selector_matches_are_consumed(
    lake: Published, running: list[PushConsumer], selector: MessageSelector | str
) -> None:
    lake.publish({"pay": [lake.messages(5, tags="A"), lake.messages(3, tags="B")]})
    lake.publish({"pay": [lake.messages(2, tags="C"), lake.messages(2)]})
    heard = Heard()
    start(lake, running, heard, selector=selector)
    heard.wait_for(*range(5, 10))
    assert sorted(heard.offsets) == [5, 6, 7, 8, 9]


def test_a_batch_without_its_row_is_not_seen(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(2)]})
    lake.publish({"pay": [lake.messages(3)], "refunds": [lake.messages(1)]}, concluded=False)
    heard = Heard()
    consumer = start(lake, running, heard)
    heard.wait_for(0, 1)
    until(lambda: consumer.settled_at("pay") == lake.time - 1000)
    assert sorted(heard.offsets) == [0, 1]
    lake.conclude({"topics/pay": 1})
    heard.wait_for(2, 3, 4)


def test_a_failed_message_is_consumed_again_with_its_number(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(20, (0, 1))]})
    heard = Heard({3: 2, 4: 1})
    start(lake, running, heard)
    heard.wait(lambda heard: len(heard.messages) == 23)
    assert [message.reconsume_times for message in heard.messages if message.half_queue_offset == 3] == [0, 1, 2]
    assert heard.times[4] == 2


def test_after_the_last_retry_a_message_is_in_dead_letters_once(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(20, (0, 1))]})
    secret = "the body must not be told"

    def listen(message: Any) -> ConsumeResult:
        heard(message)
        if message.half_queue_offset in (3, 8):
            raise ValueError(secret)
        return ConsumeResult.SUCCESS

    heard = Heard()
    consumer = start(lake, running, listen, max_reconsume_times=2)
    until(lambda: len(dead_letters(lake)) == 2)
    assert heard.times[3] == 3
    row = next(row for row in dead_letters(lake) if row["half_queue_offset"] == 3)
    assert (row["consumer_group"], row["topic"], row["reconsume_times"]) == ("g", "pay", 2)
    assert row["body"] == b"body-3"
    assert row["reason"].startswith("ValueError at test_push_consumer.py:")
    consumer.close()
    again = Heard()
    lake.publish({"pay": [lake.messages(1)]})
    start(lake, running, again)
    again.wait_for(20)
    assert again.offsets == [20]
    assert len(dead_letters(lake)) == 2


@pytest.mark.parametrize("result", [None, True, "SUCCESS"])
def test_what_is_no_result_is_a_failure(lake: Published, running: list[PushConsumer], result: object) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    consumer = start(lake, running, lambda _: result, max_reconsume_times=0)
    until(lambda: dead_letters(lake))
    assert type(result).__name__ in str(consumer.last_error)


def test_orderly_a_failed_message_holds_up_its_queue_only(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(20, (0, 1))]})
    heard = Heard({4: 3})
    start(lake, running, heard, orderly=True, suspend=timedelta(seconds=0.05))
    heard.wait(lambda heard: len(heard.messages) == 23)
    by_queue = [[m.half_queue_offset for m in heard.messages if m.queue_id == queue] for queue in (0, 1)]
    assert by_queue == [[0, 2, 4, 4, 4, 4, *range(6, 20, 2)], list(range(1, 20, 2))]


def test_orderly_the_poisoned_message_gives_way(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(5)]})
    heard = Heard({2: 99})
    start(lake, running, heard, orderly=True, suspend=timedelta(seconds=0.01), max_reconsume_times=3)
    heard.wait_for(4)
    assert heard.offsets == [0, 1, 2, 2, 2, 2, 3, 4]
    until(lambda: [row["half_queue_offset"] for row in dead_letters(lake)] == [2])


def test_orderly_no_message_is_given_up_that_nobody_has_limited(lake: Published, running: list[PushConsumer]) -> None:
    """More tries than the sixteen of messages without an order: those behind it wait."""
    lake.publish({"pay": [lake.messages(5)]})
    heard = Heard({0: 1, 2: 40})
    start(lake, running, heard, orderly=True, suspend=timedelta(seconds=0))
    heard.wait_for(4)
    assert heard.offsets == [0, 0, 1, *[2] * 41, 3, 4]
    running.pop().close()
    assert not dead_letters(lake)


def test_batches_are_lists(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(10)]})
    calls: list[list[Any]] = []
    done = threading.Event()

    def listen(messages: list[Any]) -> ConsumeResult:
        calls.append(messages)
        if sum(map(len, calls)) == 10:
            done.set()
        return ConsumeResult.SUCCESS

    start(lake, running, listener_batch=listen, max_batch_size=4, threads=1)
    assert done.wait(10)
    assert [len(call) for call in calls] == [4, 4, 2]


@pytest.mark.parametrize("compact", [False, True])
def test_a_group_goes_on_where_it_was(lake: Published, running: list[PushConsumer], compact: bool) -> None:
    """Across a restart, an OPTIMIZE with VACUUM and log cleanup, and a rebuild."""
    lake.publish({"pay": [lake.messages(10, (0, 1))]})
    first = Heard()
    start(lake, running, first)
    first.wait_for(*range(10))
    running.pop().close()
    lake.publish({"pay": [lake.messages(10, (0, 1)), lake.messages(5, (2,))]})
    lake.rebuild()
    lake.publish({"pay": [lake.messages(5, (0, 3))]})
    if compact:
        lake.compact("topics/pay")
        lake.compact("batches")
    second = Heard()
    start(lake, running, second)
    second.wait_for(*range(10, 30))
    lake.publish({"pay": [lake.messages(1)]})
    second.wait_for(30)
    assert sorted(second.offsets) == list(range(10, 31))


def test_tables_are_compacted_while_they_are_consumed(lake: Published, running: list[PushConsumer]) -> None:
    heard = Heard()
    start(lake, running, heard)
    for number in range(20):
        lake.publish({"pay": [lake.messages(7, (0, 1, 2)), lake.messages(3, (5,))]})
        if number % 6 == 5:
            lake.compact("topics/pay")
        if number % 9 == 8:
            lake.compact("batches")
            lake.rebuild()
    heard.wait_for(*range(200))
    assert set(heard.times.values()) == {1}


@pytest.mark.parametrize(
    ("start_from", "expected"),
    [("first", 0), ("last", 15), (time_of(1_700_000_002_000), 5), (2, 10), (time_of(0), 0)],
)
def test_where_a_new_group_begins(
    lake: Published, running: list[PushConsumer], start_from: StartFrom, expected: int
) -> None:
    for _ in range(3):
        lake.publish({"pay": [lake.messages(5, (0, 1))]})
    heard = Heard()
    start(lake, running, heard, start_from=start_from)
    lake.publish({"pay": [lake.messages(5, (0, 9))]})
    heard.wait_for(*range(expected, 20))
    assert sorted(heard.offsets) == list(range(expected, 20))


def test_a_start_without_a_time_zone_is_refused(lake: Published) -> None:
    """In Shanghai it would be eight hours away, and the group keeps where it began."""
    start_from = time_of(lake.time).replace(tzinfo=None)
    with pytest.raises(SettingsError, match=r"start_from: '2023-11-14 22:13:20' has no time zone; give it a time zone"):
        PushConsumer("g", lake.tables.root, Heard(), start_from=start_from)


def test_a_start_in_the_future_is_refused() -> None:
    """Else messages before it would be consumed: those that are published from now on."""
    check_start(time_of(1000), time_of(1000))
    with pytest.raises(SettingsError, match=r"start_from: .* is in the future; use .last. for what is published from"):
        check_start(time_of(1001), time_of(1000))


def test_a_topic_that_may_be_mistyped_is_logged(
    lake: Published, running: list[PushConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    for topic in ("orders", "pays"):
        lake.log(f"topics/{topic}")
    start(lake, running, Heard())
    known = "there are pays, orders; a topic is there once its first message is published"
    assert f"group g: pay: there is no such topic; {known}" in caplog.messages
    caplog.clear()
    lake.publish({"pay": [lake.messages(1)]})
    start(lake, running, Heard())
    assert not [line for line in caplog.messages if "no such topic" in line]


async def _coroutine(_: Any) -> ConsumeResult:
    return ConsumeResult.SUCCESS


class _Coroutine:
    async def __call__(self, _: Any) -> ConsumeResult:
        return ConsumeResult.SUCCESS


@pytest.mark.parametrize("listener", [_coroutine, _Coroutine(), partial(_coroutine)])
def test_a_listener_of_the_other_kind_is_refused(lake: Published, listener: Callable[..., Any]) -> None:
    """Each message would become a dead letter, though a plain function has had its effect."""
    told = "g: the listener is a coroutine function; use AsyncPushConsumer"
    with pytest.raises(SettingsError, match=told):
        PushConsumer("g", lake.tables.root, listener)
    with pytest.raises(SettingsError, match=told):
        PushConsumer("g", lake.tables.root, listener_batch=listener)
    AsyncPushConsumer("g", lake.tables.root, listener)
    plains: list[Callable[..., Any]] = [Heard().__call__, Heard(), lambda _: ConsumeResult.SUCCESS]
    for plain in plains:
        PushConsumer("g", lake.tables.root, plain)
        with pytest.raises(SettingsError, match="g: the listener is not a coroutine function; write async def"):
            AsyncPushConsumer("g", lake.tables.root, plain)


def test_a_class_is_refused(lake: Published) -> None:
    """Each call would make an object of it, which is no result."""
    for consumer in (PushConsumer, AsyncPushConsumer):
        with pytest.raises(SettingsError, match=r"g: the listener, _Coroutine, is a class; give an object: _Coroutine"):
            consumer("g", lake.tables.root, _Coroutine)  # type: ignore[arg-type]


def test_what_is_set_too_late_is_refused(lake: Published, running: list[PushConsumer]) -> None:
    consumer = start(lake, running, Heard())
    with pytest.raises(SettingsError, match=r"running; call subscribe before start\(\)"):
        consumer.subscribe("orders")


FORKS = """
import os, sys
from checkback.consumer import ConsumeResult, PushConsumer
consumer = PushConsumer("g", sys.argv[1], lambda _: ConsumeResult.SUCCESS, member="m").subscribe("pay")
for _ in range(2):
    if os.fork() == 0:
        with consumer:
            print(consumer.member, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.mark.processes
def test_a_consumer_started_in_forked_processes_is_a_member_in_each(lake: Published) -> None:
    """With one name all of them would consume all queues."""
    done = subprocess.run([sys.executable, "-c", FORKS, lake.tables.root], capture_output=True, text=True, check=True)
    names = done.stdout.split()
    assert len(set(names)) == 2
    assert all(name.startswith("m-") for name in names)


@pytest.mark.parametrize("made", [[], ["half"], ["batches"]])
def test_a_root_without_tables_is_refused_and_nothing_is_made_there(
    tmp_path: Path, running: list[PushConsumer], made: list[str]
) -> None:
    """It may be mistyped. What the gateway or `reconcile` makes first is enough: messages are waited for."""
    lake = Published(Tables.of(Storage(root=str(tmp_path / "lake"), sync=False)))
    for name in made:
        lake.log(name)
    heard = Heard()
    if made:
        start(lake, running, heard)
        lake.publish({"pay": [lake.messages(1)]})
        heard.wait_for(0)
    else:
        with pytest.raises(SettingsError, match=f"{lake.tables.root}: there are no tables of Checkback; name their"):
            PushConsumer("g", lake.tables.root, heard).subscribe("pay").start()
        assert not (tmp_path / "lake").exists()


def test_paused_it_consumes_nothing(lake: Published, running: list[PushConsumer]) -> None:
    heard = Heard()
    consumer = start(lake, running, heard)
    lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(0)
    consumer.pause()
    lake.publish({"pay": [lake.messages(5)]})
    until(lambda: consumer.in_hand == 5)
    assert heard.offsets == [0]
    consumer.resume()
    heard.wait_for(*range(6))


def test_shutdown_finishes_the_call_in_progress(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(10)]})
    began, go_on = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        began.set()
        assert go_on.wait(10)

    heard = Heard(also=wait)
    consumer = start(lake, running, heard, threads=1)
    assert began.wait(10)
    ending = threading.Thread(target=consumer.close)
    ending.start()
    until(lambda: consumer.stopping)
    go_on.set()
    ending.join()
    assert heard.offsets == [0]
    again = Heard()
    start(lake, running, again)
    again.wait_for(*range(1, 10))
    assert 0 not in again.offsets


def test_two_members_share_the_queues_and_hand_them_over(lake: Published, running: list[PushConsumer]) -> None:
    first, second = Heard(), Heard()
    one = start(lake, running, first, member="a")
    lake.publish({"pay": [lake.messages(64, range(64))]})
    first.wait_for(*range(64))
    two = start(lake, running, second, member="b")
    until(lambda: len(two.queues()) == len(one.queues()) == 32)
    lake.publish({"pay": [lake.messages(64, range(64))]})
    until(lambda: len(first.messages) + len(second.messages) == 128)
    assert len(second.messages) == 32
    two.close()
    until(lambda: len(one.queues()) == 64)
    lake.publish({"pay": [lake.messages(64, range(64))]})
    first.wait(lambda heard: len(heard.messages) == 160)
    assert set((first.times + second.times).values()) == {1}


def test_there_is_one_listener(lake: Published) -> None:
    """Of one message or of a list: neither and both are a programmer's error."""
    heard = Heard()
    both: dict[str, Any] = {"listener": heard, "listener_batch": heard}
    for options in ({}, both):
        with pytest.raises(TypeError, match=r"give listener= .* or listener_batch="):
            PushConsumer("g", lake.tables.root, **options)
        with pytest.raises(TypeError, match=r"give listener= .* or listener_batch="):
            AsyncPushConsumer("g", lake.tables.root, **options)


def test_the_size_limit_of_lists_makes_no_lists(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(10)]})
    heard = Heard()
    start(lake, running, heard, max_batch_size=4)
    heard.wait_for(*range(10))
    assert set(heard.times.values()) == {1}


def test_what_cannot_be_started(lake: Published) -> None:
    with pytest.raises(SettingsError, match="nothing to consume"):
        PushConsumer("g", lake.tables.root, Heard()).start()
    with pytest.raises(SettingsError, match="not a group's name; use letters"):
        PushConsumer("../g", lake.tables.root, Heard())
    for name in ("_delta_log", "_change_data", "NUL"):  # folders that Delta, or Windows, keeps
        with pytest.raises(SettingsError, match=r"no consumer group's name: it (begins|is a device)"):
            PushConsumer(name, lake.tables.root, Heard())


def test_a_stuck_queue_does_not_hold_up_the_others(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is read of it."""
    monkeypatch.setattr("checkback.consumer.reader_thread.MOST_MESSAGES", 20)
    monkeypatch.setattr("checkback.consumer.reader_thread._PATIENCE_S", 0.05)
    lake.publish({"pay": [lake.messages(100, (0,)), lake.messages(5, (1,))]})
    go_on = threading.Event()

    def listen(message: Any) -> ConsumeResult:
        heard(message)
        return ConsumeResult.SUCCESS if message.queue_id or go_on.is_set() else ConsumeResult.RECONSUME_LATER

    heard = Heard()
    start(lake, running, listen, orderly=True, suspend=timedelta(seconds=0.01), max_reconsume_times=10**6)
    for _ in range(20):
        lake.publish({"pay": [lake.messages(5, (0,)), lake.messages(1, (1,))]})
    heard.wait(lambda heard: sum(message.queue_id == 1 for message in heard.messages) == 25)
    go_on.set()
    heard.wait_for(*range(225))
    firsts = dict.fromkeys(message.half_queue_offset for message in heard.messages if message.queue_id == 0)
    assert list(firsts) == sorted(firsts)


def test_the_root_may_be_a_path_and_the_selector_none(lake: Published, running: list[PushConsumer]) -> None:
    """As of `Checkback`, and of `MessageSelector.by_tag`; what is neither is refused before the threads would fail."""
    lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    running.append(PushConsumer("g", Path(lake.tables.root), heard, **FAST).subscribe("pay", None).start())
    heard.wait_for(0)
    with pytest.raises(TypeError, match="not int"):
        PushConsumer("g", 5, heard)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="selector is int; give a MessageSelector"):
        PushConsumer("g", lake.tables.root, heard).subscribe("pay", 5)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["../half", "", "_delta_log", "a/b", "RMQ_SYS_TRANS_HALF_TOPIC"])
def test_what_is_no_topic_is_refused(lake: Published, topic: str) -> None:
    with pytest.raises(SettingsError, match="not a topic's name"):
        PushConsumer("g", lake.tables.root, Heard()).subscribe(topic)


def test_a_coroutine_function_is_refused(lake: Published) -> None:
    """Called without being awaited it would fail for every message, up to the dead letters."""

    async def listen(_: Any) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    with pytest.raises(SettingsError, match="use AsyncPushConsumer"):
        PushConsumer("g", lake.tables.root, listen)


def test_a_member_beats_until_its_calls_have_returned(lake: Published, running: list[PushConsumer]) -> None:
    """Or others would take it for dead in the middle of its shutdown, and consume the same messages."""
    lake.publish({"pay": [lake.messages(1)]})
    began, go_on = threading.Event(), threading.Event()

    def wait(_: Any) -> None:
        began.set()
        assert go_on.wait(20)

    consumer = start(lake, running, Heard(also=wait), threads=1, session_timeout=timedelta(seconds=0.3))
    assert began.wait(10)
    ending = threading.Thread(target=consumer.close)
    ending.start()
    until(lambda: consumer.stopping)
    before = heartbeat(lake)
    until(lambda: heartbeat(lake) > before + 3)
    go_on.set()
    ending.join()
    assert GroupTable(lake.tables, "g").state.members == {}


def heartbeat(lake: Published) -> int:
    [member] = GroupTable(lake.tables, "g").state.members.values()
    return member.heartbeat
