"""What a listener, a user or a clock may do to a consumer: nothing is lost, nothing beside it is held up."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, text

from checkback.cli import main
from checkback.consumer import (
    AsyncPushConsumer,
    ConsumeResult,
    MessageSelector,
    PushConsumer,
    SqlPositions,
    process_queues,
)
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.coordination import Coordinator
from checkback.consumer.group import rebalance
from checkback.consumer.group.group_table import GroupTable
from checkback.errors import SettingsError, StorageError
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.schemas import arrow_schema
from checkback.storage.timestamps import time_of
from consumer.heard import Heard, until
from consumer.test_push_consumer import FAST, dead_letters, start
from support.odd_rows import REPLACED, bad_texts

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection

    from consumer.published import Published

pytestmark = pytest.mark.slow


def raising(error: type[BaseException]) -> Callable[[Any], None]:
    """What a listener does that fails twice on the message at offset 1."""
    left = [2]

    def fail(message: Any) -> None:
        if message.half_queue_offset == 1 and left[0]:
            left[0] -= 1
            raise error

    return fail


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exception_of_any_kind_is_a_failure(
    lake: Published, running: list[PushConsumer], error: type[BaseException]
) -> None:
    lake.publish({"pay": [lake.messages(6)]})
    heard = Heard(also=raising(error))
    start(lake, running, heard, threads=1)
    heard.wait_for(*range(6))
    assert heard.times == Counter(range(6))


def test_a_listener_may_shut_its_consumer_down(lake: Published, running: list[PushConsumer]) -> None:
    """From several threads at once."""
    lake.publish({"pay": [lake.messages(20, range(20))]})
    both = threading.Barrier(2)

    def stop(_: Any) -> None:
        both.wait(10)
        consumer.shutdown()

    heard = Heard(also=stop)
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST | {"threads": 2}).subscribe("pay")
    consumer.start()
    until(lambda: not consumer.queues() or len(heard.messages) >= 2)
    consumer.shutdown(20)
    assert GroupTable(lake.tables, "g").state.members == {}
    with pytest.raises(SettingsError, match="shut down"):
        consumer.start()


class SlowlyStarted(PushConsumer):
    """Its start waits with the first thread that calls the listener running, and others not yet."""

    heard_one = threading.Event()

    def _run(self, name: str, target: Any, *arguments: float) -> None:
        super()._run(name, target, *arguments)
        if name == "0":
            assert self.heard_one.wait(20)


def test_a_listener_may_shut_its_consumer_down_while_it_starts(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(20, range(20))]})

    def stop(_: Any) -> None:
        consumer.shutdown()
        SlowlyStarted.heard_one.set()

    consumer = SlowlyStarted("slow", lake.tables.root, Heard(also=stop), **FAST | {"threads": 2}).subscribe("pay")
    consumer.start()
    consumer.shutdown(20)
    assert GroupTable(lake.tables, "slow").state.members == {}
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-slow")]


def test_a_consumer_that_is_shut_down_before_it_has_started_leaves(
    lake: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    consumer = PushConsumer("early", lake.tables.root, Heard(), **FAST).subscribe("pay")
    monkeypatch.setattr(Coordinator, "adopt", lambda _: consumer.shutdown())
    with pytest.raises(SettingsError, match="shut down"):
        consumer.start()
    assert GroupTable(lake.tables, "early").state.members == {}


def test_a_coroutine_may_shut_its_consumer_down(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})

    async def run() -> None:
        ended = asyncio.Event()

        async def listen(_: Any) -> ConsumeResult:
            await consumer.shutdown()
            ended.set()
            return ConsumeResult.SUCCESS

        # After 2 s without a sign of life, on a busy machine before its first call, it would be a member no more.
        consumer = AsyncPushConsumer("g", lake.tables.root, listen, **FAST | {"session": 60.0}).subscribe("pay")
        async with consumer:
            await ended.wait()

    asyncio.run(run())
    assert GroupTable(lake.tables, "g").state.members == {}


def test_coroutines_are_awaited_and_failed_ones_again(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(20, range(4))]})
    heard = Heard({7: 2})

    async def run() -> None:
        async with AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST).subscribe("pay"):
            await asyncio.to_thread(heard.wait_for_count, 22)

    asyncio.run(run())
    assert heard.times == Counter([*range(20), 7, 7])
    with pytest.raises(SettingsError, match="thread"):
        AsyncPushConsumer("g", lake.tables.root, heard.later, positions=object())


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit, asyncio.CancelledError, StopIteration])
def test_an_exception_of_any_kind_in_a_coroutine_is_a_failure(lake: Published, error: type[BaseException]) -> None:
    """The event loop, which is the service's, goes on."""
    lake.publish({"pay": [lake.messages(6)]})
    heard = Heard(also=raising(error))

    async def run() -> None:
        async with AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST).subscribe("pay"):
            await asyncio.to_thread(heard.wait_for, *range(6))

    asyncio.run(run())
    assert heard.times == Counter(range(6))


def test_a_topic_that_cannot_be_read_holds_up_no_other(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(3)], "refunds": [lake.messages(3)]})
    [file] = Path(lake.tables.location("topics/pay")).glob("*.parquet")
    whole = file.read_bytes()
    file.write_bytes(b"PAR1 is not enough")
    heard = Heard()
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST).subscribe("pay").subscribe("refunds")
    running.append(consumer.start())
    heard.wait_for(3, 4, 5)
    until(lambda: consumer.last_error)
    assert "topics/pay" in str(consumer.last_error)
    file.write_bytes(whole)
    heard.wait_for(*range(6))
    assert set(heard.times.values()) == {1}


@pytest.mark.parametrize("more", [0, 5])
def test_a_topic_table_that_was_made_anew_is_read_from_its_beginning(
    lake: Published, running: list[PushConsumer], more: int
) -> None:
    """Whatever version the new one has."""
    for _ in range(3):
        lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    shutil.rmtree(lake.tables.location("topics/pay"))
    lake._logs.clear()
    for _ in range(1 + more):
        lake.publish({"pay": [lake.messages(1)]})
    heard.wait_for(*range(4 + more))
    assert set(heard.times.values()) == {1}


def test_a_batch_that_could_not_be_read_is_read_later(lake: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    log = BatchLog(lake.tables)
    assert log.refresh()
    lake.publish({"pay": [lake.messages(1)]})
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise OSError(24, os.strerror(24))

        patch.setattr("checkback.consumer.batch_log.actions_of_kind", fail)
        with pytest.raises(StorageError):
            log.refresh()
    assert log.refresh()
    assert len(log) == 3


def test_beyond_the_limit_of_retries_nothing_new_is_consumed(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkback.consumer.calling._MOST_RETRIES", 10)
    lake.publish({"pay": [lake.messages(500)]})
    broken = threading.Event()

    def listen(message: Any) -> ConsumeResult:
        heard(message)
        return ConsumeResult.RECONSUME_LATER if not broken.is_set() else ConsumeResult.SUCCESS

    heard = Heard()
    start(lake, running, listen, threads=1, max_reconsume_times=10**6, retry_levels=[0.02])
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
        running.pop().shutdown()
        if number == 0:
            version = deltalake.DeltaTable(place).version()
    deltalake.DeltaTable(place).restore(version)
    lake.publish({"pay": [lake.messages(1)]})
    consumer = start(lake, running, lambda _: None, max_reconsume_times=0)
    until(lambda: len(dead_letters(lake)) == 6)
    consumer.shutdown()
    assert Counter(row["half_queue_offset"] for row in dead_letters(lake)) == Counter([0, 1, 1, 2, 2, 3])


def test_a_group_that_becomes_orderly_consumes_its_retries(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(6)]})
    first = Heard({2: 1, 4: 1})
    start(lake, running, first, retry_levels=[3600], commit_interval=0.02)
    first.wait_for(*range(6))
    running.pop().shutdown()

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


@pytest.mark.parametrize("how", ["rolled back", "committed", "broken"])
def test_a_listener_that_ends_its_transaction(
    lake: Published, running: list[PushConsumer], tmp_path: Path, how: str
) -> None:
    """What it commits itself counts, what it rolls back is a failure; the next message is consumed all the same."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", connect_args={"timeout": 30})
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE effect (message INTEGER)"))
    lake.publish({"pay": [lake.messages(4)]})
    left = [1]

    def listen(message: Any, connection: Connection) -> ConsumeResult:
        heard(message)
        connection.execute(text("INSERT INTO effect VALUES (:m)"), {"m": message.half_queue_offset})
        if message.half_queue_offset == 1 and left[0]:
            left[0] -= 1
            if how == "rolled back":
                connection.rollback()
            elif how == "committed":
                connection.commit()
            else:
                connection.connection.dbapi_connection.rollback()  # type: ignore[union-attr]
        return ConsumeResult.SUCCESS

    heard = Heard()
    start(lake, running, listen, positions=SqlPositions(engine), threads=1)
    heard.wait_for_count(4 if how == "committed" else 5)
    running.pop().shutdown()
    with engine.begin() as connection:
        effects = Counter(connection.execute(text("SELECT message FROM effect")).scalars())
    assert effects == Counter(range(4))


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
    options: dict[str, Any] = {"orderly": orderly, "suspend": 0.3, "retry_levels": [0.3], "commit_interval": 0.02}
    options |= {"positions": SqlPositions(engine)} if sql else {}
    lake.publish({"pay": [lake.messages(3)]})
    first, second = Heard({1: 10**6}), Heard()
    with monkeypatch.context() as ahead:
        ahead.setattr("checkback.consumer.process_queues._BEGAN", process_queues._BEGAN + 3600)
        start(lake, running, first, **options)
        first.wait_for(1)
        running.pop().shutdown()
    start(lake, running, second, **options)
    second.wait_for(1)


def test_the_clock_set_back_beneath_a_consumer_holds_up_nothing(
    lake: Published, running: list[PushConsumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    real, heard = time.time, Heard({1: 2})
    monkeypatch.setattr("time.time", lambda: real() - 3600 if heard.messages else real())
    start(lake, running, heard, orderly=True, suspend=0.2)
    heard.wait(lambda heard: heard.offsets == [0, 1, 1, 1, 2])


@pytest.mark.parametrize(
    "options",
    [
        {"threads": 0},
        {"threads": True},
        {"batch": 0},
        {"batch": -1},
        {"session": 0},
        {"session": -1.0},
        {"session": float("nan")},
        {"session": 1e-3},
        {"commit_interval": 0},
        {"retry_levels": []},
        {"retry_levels": [1e12]},
        {"retry_levels": [-1]},
        {"suspend": -1},
        {"max_reconsume_times": -2},
        {"start_from": True},
        {"start_from": "middle"},
    ],
)
def test_options_out_of_range_are_refused(lake: Published, options: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match=next(iter(options))):
        PushConsumer("g", lake.tables.root, Heard(), **options)


def test_max_reconsume_times_is_sixteen_by_minus_one(lake: Published, running: list[PushConsumer]) -> None:
    """DefaultMQPushConsumer's default."""
    lake.publish({"pay": [lake.messages(1)]})
    heard = Heard({0: 99})
    start(lake, running, heard, max_reconsume_times=-1, retry_levels=[0])
    until(lambda: dead_letters(lake))
    assert heard.times[0] == 17


def test_a_start_at_a_batch_matters_to_new_topics_only(lake: Published, running: list[PushConsumer]) -> None:
    for _ in range(3):
        lake.publish({"pay": [lake.messages(1)]})
    heard = Heard()
    start(lake, running, heard, start_from=2)
    heard.wait_for(2)
    running.pop().shutdown()
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


def test_text_that_is_not_utf8_holds_up_nothing(lake: Published, running: list[PushConsumer]) -> None:
    """Another writer's."""
    lake.publish({"pay": [lake.messages(3)]}, concluded=False)
    [file] = Path(lake.tables.location("topics/pay")).glob("*.parquet")
    rows = pq.read_table(file)
    bad = pa.array([b"\xff\xfe", b"ok", None], pa.binary()).view(pa.string())
    place = arrow_schema("topics/pay").get_field_index("keys")
    pq.write_table(rows.set_column(place, "keys", bad), file)
    lake.conclude({"topics/pay": 1})
    heard = Heard()
    start(lake, running, heard)
    heard.wait_for(0, 1, 2)
    keys = {message.half_queue_offset: message.keys for message in heard.messages}
    assert keys == {0: "\ufffd\ufffd", 1: "ok", 2: None}


def test_text_that_is_not_utf8_is_filtered_and_becomes_a_dead_letter(
    lake: Published, running: list[PushConsumer]
) -> None:
    """Another writer's: a filter by number meets it, and a retry that fails."""
    rows = lake.messages(1, tags="bad", properties=[("number", "bad")]) + lake.messages(2)
    lake.publish({"pay": []}, concluded=False)
    named = {"batch_id": lake.batch_id, "committed_at": time_of(lake.time)}
    lake.write("topics/pay", bad_texts(pa.Table.from_pylist([row | named for row in rows], arrow_schema("topics/pay"))))
    lake.conclude({"topics/pay": lake.log("topics/pay").version()})
    heard = Heard()
    numbers = PushConsumer("numbers", lake.tables.root, heard)
    numbers.subscribe("pay", MessageSelector.by_sql("number > 1"))
    numbers.start()
    running.append(numbers)
    heard.wait_for(2)
    assert {message.half_queue_offset for message in heard.messages} == {2}
    start(lake, running, lambda _: ConsumeResult.RECONSUME_LATER, max_reconsume_times=1, retry_levels=[0.02])
    until(lambda: len(dead_letters(lake)) == 3)
    (dead,) = (row for row in dead_letters(lake) if row["half_queue_offset"] == rows[0]["half_queue_offset"])
    assert (dead["tags"], dead["properties"]) == (REPLACED, [("number", REPLACED)])


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
    assert main(["consumers", "g", "--set", f"storage.root={lake.tables.root}"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_coroutines_whose_loop_has_ended_have_not_failed(lake: Published, running: list[PushConsumer]) -> None:
    """The messages are left to another member."""
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard()
    made: list[AsyncPushConsumer] = []

    async def run() -> None:
        made.append(AsyncPushConsumer("g", lake.tables.root, heard.later, **FAST | {"max_reconsume_times": 0}))
        await made[0].subscribe("pay").start()
        await asyncio.to_thread(heard.wait_for, 0, 1, 2)

    asyncio.run(run())
    lake.publish({"pay": [lake.messages(2)]})
    until(lambda: made[0].consumer.stopping)
    made[0].consumer.shutdown(20)
    assert dead_letters(lake) == []
    other = Heard()
    start(lake, running, other)
    other.wait_for(3, 4)


def test_a_start_that_was_cancelled_leaves_no_member(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(3)]})

    async def run() -> None:
        consumer = AsyncPushConsumer("g", lake.tables.root, Heard().later, **FAST).subscribe("pay")
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.start(), 0)
        starting = asyncio.create_task(consumer.start())
        await asyncio.sleep(0)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await asyncio.to_thread(until, lambda: consumer.consumer.stopping)

    asyncio.run(run())
    until(lambda: GroupTable(lake.tables, "g").state.members == {})


def test_dead_letters_wait_while_their_table_is_altered(lake: Published, running: list[PushConsumer]) -> None:
    """Appended files would break its rules."""
    lake.publish({"pay": [lake.messages(1)]})
    place = lake.tables.location("dead_letters")
    columns = arrow_schema("dead_letters")
    deltalake.write_deltalake(place, pa.Table.from_pylist([], columns), partition_by=["consumer_group"])
    consumer = start(lake, running, lambda _: None, max_reconsume_times=0)
    until(lambda: "dead_letters" in str(consumer.last_error))
    shutil.rmtree(place)
    until(lambda: dead_letters(lake))


def test_dead_letters_of_a_topic_that_is_away_hold_up_no_other(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(1)], "refunds": [lake.messages(1)]})
    letters, place = lake.tables.location("dead_letters"), lake.tables.location("topics/pay")
    columns = arrow_schema("dead_letters")
    deltalake.write_deltalake(letters, pa.Table.from_pylist([], columns), partition_by=["consumer_group"])
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
    consumer.shutdown(30)
    assert sorted(row["half_queue_offset"] for row in dead_letters(lake)) == [0, 1]


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
        running.pop().shutdown(10)
        assert consumer.stopping


def test_a_topic_s_table_that_is_away_is_waited_for(lake: Published, running: list[PushConsumer]) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    place = lake.tables.location("topics/pay")
    shutil.move(place, f"{place}.away")
    heard = Heard()
    consumer = start(lake, running, heard)
    until(lambda: "topics/pay" in str(consumer.last_error))
    shutil.move(f"{place}.away", place)
    heard.wait_for(0, 1, 2)


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


def test_of_a_property_that_is_there_twice_the_first_counts(lake: Published, running: list[PushConsumer]) -> None:
    """For the filter and for the listener."""
    rows = lake.messages(2, properties=[("a", "1"), ("b", "2"), ("a", "3")])
    lake.publish({"pay": [rows]})
    heard = Heard()
    start(lake, running, heard, selector=MessageSelector.by_sql("a = '1'"))
    heard.wait_for(0, 1)
    assert heard.messages[0].properties == {"a": "1", "b": "2"}


@pytest.mark.parametrize("options", [{}, {"orderly": True, "suspend": 0.02}, {"sql": True}])
def test_a_message_that_a_topic_has_twice_holds_up_nothing(
    lake: Published,
    running: list[PushConsumer],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
) -> None:
    """Each of the rows is consumed; a retry is of the message, once, and the others' are read beside it."""
    rows = lake.messages(4)
    lake.publish({"pay": [rows, [rows[1]], [rows[1]]]})
    listener: Any = Heard(fails=dict.fromkeys(range(4), 3))
    if options.pop("sql", False):
        options = {"positions": SqlPositions(create_engine(f"sqlite:///{tmp_path}/positions.db"))}
    consumer = start(lake, running, listener, retry_levels=[0.02], commit_interval=0.02, **options)
    lake.publish({"pay": [lake.messages(1)]})
    listener.wait(lambda heard: all(heard.times[offset] >= 4 for offset in (0, 1, 2, 3)) and heard.times[4])
    consumer.shutdown()
    assert "KeyError" not in caplog.text
