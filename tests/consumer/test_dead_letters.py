"""Kept retries and dead letters, whatever happens to their clock and their table."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pytest
from sqlalchemy import create_engine

from checkback.consumer import ConsumeResult, PushConsumer, SqlPositions, process_queues
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.lag_reader import consumer_lag
from checkback.consumer.process_queues import now_ms
from checkback.errors import StorageError
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import arrow_schema, properties_of
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from checkback.consumer.retry_or_dead_letter import Retry
    from consumer.published import Published

pytestmark = pytest.mark.slow


def test_beyond_the_limit_of_retries_nothing_new_is_consumed(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkback.consumer.process_queues._MOST_RETRIES", 10)
    lake.publish({"pay": [lake.messages(500)]})
    broken = threading.Event()

    def listen(message: Any) -> ConsumeResult:
        heard(message)
        return ConsumeResult.RECONSUME_LATER if not broken.is_set() else ConsumeResult.SUCCESS

    heard = Heard()
    start(lake, running, listen, threads=1, max_reconsume_times=10**6, retry_levels=[timedelta(seconds=0.02)])
    heard.wait_for_count(100)
    assert len(heard.times) <= 10 + 16  # what a thread takes at once
    broken.set()
    heard.wait_for(*range(500))


def test_dead_letters_after_a_restore_are_kept(lake: Published, running: list[PushConsumer]) -> None:
    """The group's table is put back to an older state, whose numbers were used since."""
    place = lake.tables.location("consumer_groups/g")
    for number in range(3):
        lake.publish({"pay": [lake.messages(1)]})
        start(lake, running, lambda _: None, max_reconsume_times=0)
        until(lambda count=number + 1: len(dead_letters(lake)) == count)  # type: ignore[misc]
        running.pop().close()
        if number == 0:
            version = deltalake.DeltaTable(place).version()
    deltalake.DeltaTable(place).restore(version)
    lake.publish({"pay": [lake.messages(1)]})
    consumer = start(lake, running, lambda _: None, max_reconsume_times=0)
    until(lambda: len(dead_letters(lake)) == 6)
    consumer.close()
    assert Counter(row["half_queue_offset"] for row in dead_letters(lake)) == Counter([0, 1, 1, 2, 2, 3])


def test_a_group_that_becomes_orderly_consumes_its_retries(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(6)]})
    first = Heard({2: 1, 4: 1})
    start(lake, running, first, retry_levels=[timedelta(seconds=3600)], commit_interval=timedelta(seconds=0.02))
    first.wait_for(*range(6))
    running.pop().close()

    def hurry(state: Any) -> Any:
        from dataclasses import replace

        queues = {
            queue: replace(found, retries=tuple(each._replace(due_at=0) for each in found.retries))
            for queue, found in state.queues.items()
        }
        return state.with_queues(queues)

    GroupTable(lake.tables, "g").update(hurry)
    lake.publish({"pay": [lake.messages(1)]})
    second = Heard()
    start(lake, running, second, orderly=True)
    second.wait_for(2, 4, 6)


@pytest.mark.parametrize("orderly", [True, False])
@pytest.mark.parametrize("sql", [True, False])
def test_a_retry_kept_by_a_clock_that_was_ahead_waits_for_its_own_pause(
    lake: Published,
    running: list[PushConsumer],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    orderly: bool,
    sql: bool,
) -> None:
    """The next member's clock is right: it does not wait for an hour."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", connect_args={"timeout": 30})
    options: dict[str, Any] = {
        "orderly": orderly,
        "suspend": timedelta(seconds=0.3),
        "retry_levels": [timedelta(seconds=0.3)],
        "commit_interval": timedelta(seconds=0.02),
    }
    options |= {"positions": SqlPositions(engine)} if sql else {}
    lake.publish({"pay": [lake.messages(3)]})
    first, second = Heard({1: 10**6}), Heard()
    with monkeypatch.context() as ahead:
        ahead.setattr("checkback.consumer.process_queues._BEGAN", process_queues._BEGAN + 3600)
        start(lake, running, first, **options)
        first.wait_for(1)
        running.pop().close()
    start(lake, running, second, **options)
    second.wait_for(1)


def _partitioned(place: str) -> None:
    """Make the table so that files cannot be appended to it."""
    deltalake.DeltaTable.create(
        *(place, arrow_schema("dead_letters")),
        partition_by=["consumer_group"],
        configuration=properties_of("dead_letters"),
        raise_if_key_not_exists=False,
    )


def test_dead_letters_wait_while_their_table_is_altered(lake: Published, running: list[PushConsumer]) -> None:
    """Appended files would break its rules."""
    lake.publish({"pay": [lake.messages(1)]})
    place = lake.tables.location("dead_letters")
    _partitioned(place)
    consumer = start(lake, running, lambda _: None, max_reconsume_times=0)
    until(lambda: "dead_letters" in str(consumer.last_error))
    shutil.rmtree(place)
    until(lambda: dead_letters(lake))


def test_dead_letters_of_a_topic_that_is_away_hold_up_no_other(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(1)], "refunds": [lake.messages(1)]})
    letters, place = lake.tables.location("dead_letters"), lake.tables.location("topics/pay")
    _partitioned(letters)
    options = FAST | {"max_reconsume_times": 0}
    consumer = PushConsumer("g", lake.tables.root, lambda _: None, **options).subscribe("pay").subscribe("refunds")
    running.append(consumer.start())
    until(lambda: consumer.dead == 2 and "dead_letters" in str(consumer.last_error))
    shutil.move(place, f"{place}.away")
    shutil.rmtree(letters)
    until(lambda: [row["topic"] for row in dead_letters(lake)] == ["refunds"])
    until(lambda: "topics/pay" in str(consumer.last_error))
    shutil.move(f"{place}.away", place)
    until(lambda: sorted(row["topic"] for row in dead_letters(lake)) == ["pay", "refunds"])


def test_dead_letter_whose_commit_is_made_and_reported_as_failed_is_there(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer was lost, or it could not be flushed: the committed file stays."""
    lake.publish({"pay": [lake.messages(1)]})
    committed, failed = DeltaLog._committed, threading.Event()

    def unanswered(log: DeltaLog, before: int) -> None:
        committed(log, before)
        if log._name == "dead_letters" and not failed.is_set():
            failed.set()
            raise StorageError("not answered", "the store")

    monkeypatch.setattr(DeltaLog, "_committed", unanswered)
    consumer = start(lake, running, lambda _: None, max_reconsume_times=0)
    assert failed.wait(60)
    lake.publish({"pay": [lake.messages(1)]})
    until(lambda: len(dead_letters(lake)) == 2)
    consumer.close(timedelta(seconds=30))
    assert sorted(row["half_queue_offset"] for row in dead_letters(lake)) == [0, 1]


@pytest.mark.parametrize("sql", [True, False])
def test_what_comes_behind_a_message_that_is_held_is_not_given_up_with_it(
    lake: Published, running: list[PushConsumer], tmp_path: Path, sql: bool
) -> None:
    """In order, in batches, after a restart: of a call that failed each message is known, and its tries."""
    lake.publish({"pay": [lake.messages(1)]})
    calls: list[list[tuple[int, int]]] = []

    def listen(messages: Any, *_: Any) -> ConsumeResult:
        calls.append([(message.half_queue_offset, message.reconsume_times) for message in messages])
        failed = any(message.half_queue_offset == 0 for message in messages)
        return ConsumeResult.RECONSUME_LATER if failed else ConsumeResult.SUCCESS

    options: dict[str, Any] = {"orderly": True, "max_batch_size": 3, "suspend": timedelta(seconds=0.02)}
    if sql:
        options["positions"] = SqlPositions(create_engine(f"sqlite:///{tmp_path}/positions.db"))
        options["positions"].create_table()
    start(lake, running, listener_batch=listen, **options, max_reconsume_times=1_000_000)
    until(lambda: len(calls) >= 3)
    running.pop().close()
    lake.publish({"pay": [lake.messages(2)]})
    lake.compact("topics/pay")  # all are read at once
    before = len(calls)
    start(lake, running, listener_batch=listen, **options, max_reconsume_times=before)
    until(lambda: any((1, 0) in call for call in calls[before:]))
    assert all(len(call) == 1 for call in calls[before:] if call[0][0] == 0)
    until(lambda: [letter["half_queue_offset"] for letter in dead_letters(lake)] == [0])


@pytest.mark.parametrize("sql", [True, False])
@pytest.mark.parametrize("limit", [0, 3, None])
def test_in_order_a_batch_that_fails_is_tried_again_message_by_message(
    lake: Published, running: list[PushConsumer], tmp_path: Path, sql: bool, limit: int | None
) -> None:
    """Those before the bad one are consumed, it alone holds the queue, and those behind go on; also without retries."""
    lake.publish({"pay": [lake.messages(30)]})
    calls: list[list[tuple[int, int]]] = []
    bad = threading.Event()

    def listen(messages: Any, *_: Any) -> ConsumeResult:
        calls.append([(message.half_queue_offset, message.reconsume_times) for message in messages])
        failed = not bad.is_set() and any(message.half_queue_offset == 5 for message in messages)
        return ConsumeResult.RECONSUME_LATER if failed else ConsumeResult.SUCCESS

    options: dict[str, Any] = {"orderly": True, "max_batch_size": 10, "suspend": timedelta(seconds=0.02)}
    options["max_reconsume_times"] = limit
    if sql:
        options["positions"] = SqlPositions(create_engine(f"sqlite:///{tmp_path}/positions.db"))
    consumer = start(lake, running, listener_batch=listen, **options)
    if limit is None:
        until(lambda: calls[-1:] == [[(5, 4)]])
        bad.set()
    until(lambda: calls and calls[-1][-1][0] == 29)
    consumer.close()
    tries = [[(5, times)] for times in range(1, calls.index([(6, 1)]) - 5)]
    assert limit is None or len(tries) == max(limit, 1)
    assert calls == [
        [(offset, 0) for offset in range(10)],
        *([(offset, 1)] for offset in range(5)),
        *tries,
        *([(offset, 1)] for offset in range(6, 10)),
        [(offset, 0) for offset in range(10, 20)],
        [(offset, 0) for offset in range(20, 30)],
    ]
    assert [letter["half_queue_offset"] for letter in dead_letters(lake)] == ([] if limit is None else [5])


@pytest.mark.parametrize("sql", [True, False])
def test_in_order_what_holds_up_a_queue_is_seen_by_others(
    lake: Published, running: list[PushConsumer], tmp_path: Path, sql: bool
) -> None:
    """In the group's table: which message, since when, how often it was tried. The next member goes on with it."""
    lake.publish({"pay": [lake.messages(4, (3,))]})
    options: dict[str, Any] = {
        "orderly": True,
        "suspend": timedelta(seconds=0.02),
        "commit_interval": timedelta(seconds=0.02),
    }
    if sql:
        options["positions"] = SqlPositions(create_engine(f"sqlite:///{tmp_path}/positions.db"))

    def held() -> tuple[str, int, Retry] | None:
        (group,) = consumer_lag(lake.tables, now_ms(), "g")
        return next(iter(group.held), None)

    first = Heard({1: 10**6})
    began = now_ms()
    start(lake, running, first, **options)
    until(lambda: (found := held()) is not None and found[2].times >= 3)
    running.pop().close()
    found = held()
    assert found is not None
    topic, queue_id, retry = found
    assert (topic, queue_id, retry.message.half_queue_offset, retry.reason) == ("pay", 3, 1, "RECONSUME_LATER")
    assert began <= (retry.held_since or 0) < retry.due_at
    assert retry.times == first.times[1]
    second = Heard({1: 1})
    consumer = start(lake, running, second, **options)
    second.wait_for(1)
    until(lambda: second.times[1] == 2 or consumer.held())
    second.wait_for(3)
    running.pop().close()
    assert second.messages[0].reconsume_times == retry.times
    assert second.offsets == [1, 1, 2, 3]
    assert held() is None
    assert not consumer.held()


def test_in_order_a_retry_that_is_out_of_order_already_holds_up_nothing(
    lake: Published, running: list[PushConsumer]
) -> None:
    """Of a group that was without an order: the position has passed the message."""
    lake.publish({"pay": [lake.messages(3)]})
    first = Heard({1: 1})
    start(lake, running, first, retry_levels=[timedelta(seconds=3600)], commit_interval=timedelta(seconds=0.02))
    first.wait_for(0, 1, 2)
    until(lambda: not running[0].in_hand)
    running.pop().close()
    lake.publish({"pay": [lake.messages(2)]})
    second = Heard({1: 10**6})
    start(lake, running, second, orderly=True, suspend=timedelta(seconds=0.02))
    second.wait_for(1, 3, 4)
    second.wait(lambda heard: heard.times[1] >= 3)
    lake.publish({"pay": [lake.messages(1)]})
    second.wait_for(5)
    assert not running[-1].held()
    assert consumer_lag(lake.tables, now_ms(), "g")[0].held == []


def test_a_message_that_is_gone_from_its_topic_is_a_dead_letter_of_its_queue(
    lake: Published, running: list[PushConsumer]
) -> None:
    lake.publish({"pay": [lake.messages(1, (3,))]})
    heard = Heard(fails={0: 1})
    consumer = start(lake, running, heard, retry_levels=[timedelta(seconds=0.5)])
    heard.wait_for(0)
    shutil.rmtree(lake.tables.location("topics/pay"))
    lake._logs.clear()
    lake.publish({"pay": [lake.messages(1, (3,))]})
    until(lambda: dead_letters(lake))
    (row,) = dead_letters(lake)
    assert (row["queue_id"], row["half_queue_offset"]) == (3, 0)
    assert row["reason"] == "the message is no longer in the topic's table, or was erased"
    assert consumer.dead == 1
    heard.wait_for(1)
