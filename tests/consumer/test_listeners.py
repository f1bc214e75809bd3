"""What a listener may do to its consumer: nothing is lost, nothing beside it is held up."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, event, text

from checkback.consumer import ConsumeResult, PushConsumer, SqlPositions
from checkback.consumer.coordinator import Coordinator
from checkback.consumer.group.group_table import GroupTable
from checkback.errors import SettingsError
from consumer.heard import Heard, raising, until
from consumer.test_push_consumer import FAST, dead_letters, start

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from consumer.published import Published

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError])
def test_an_exception_of_any_kind_is_a_failure(
    lake: Published, running: list[PushConsumer], caplog: pytest.LogCaptureFixture, error: type[BaseException]
) -> None:
    """It is logged with the message, without its body."""
    lake.publish({"pay": [lake.messages(6)]})
    heard = Heard(also=raising(error))
    with caplog.at_level(logging.WARNING, "checkback"):
        start(lake, running, heard, threads=1)
        heard.wait_for(*range(6))
    assert heard.times == Counter(range(6))
    assert f"the listener failed on MessageExt(pay, 0/1, queue 0): {error.__name__} at " in caplog.text


@pytest.mark.processes
@pytest.mark.parametrize("kind", ["delta", "sql"])
def test_a_process_that_the_listener_forks_does_not_consume(
    lake: Published, running: list[PushConsumer], tmp_path: Path, kind: str
) -> None:
    """However it ends its call: with a status of its own, and the parent goes on."""
    lake.publish({"pay": [lake.messages(4)]})
    codes: dict[int, int] = {}

    def forking(message: Any, *_: Any) -> ConsumeResult:
        child = os.fork()
        if child == 0 and message.half_queue_offset == 1:
            sys.exit(7)
        if child == 0 and message.half_queue_offset == 2:
            raise ValueError
        if child:
            codes[message.half_queue_offset] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return ConsumeResult.SUCCESS

    positions = SqlPositions(create_engine(f"sqlite:///{tmp_path / 'books'}")) if kind == "sql" else None
    consumer = start(lake, running, forking, threads=1, positions=positions)
    until(lambda: consumer.consumed == 4)
    assert codes == {0: 0, 1: 7, 2: 1, 3: 0}


def test_a_listener_may_shut_its_consumer_down(lake: Published, running: list[PushConsumer]) -> None:
    """From several threads at once."""
    lake.publish({"pay": [lake.messages(20, range(20))]})
    both = threading.Barrier(2)

    def stop(_: Any) -> None:
        both.wait(10)
        consumer.close()

    heard = Heard(also=stop)
    consumer = PushConsumer("g", lake.tables.root, heard, **FAST | {"threads": 2}).subscribe("pay")
    consumer.start()
    until(lambda: not consumer.queues() or len(heard.messages) >= 2)
    consumer.close(timedelta(seconds=20))
    assert GroupTable(lake.tables, "g").state.members == {}
    with pytest.raises(SettingsError, match="closed"):
        consumer.start()


class SlowlyStarted(PushConsumer):
    """Its start waits with the first thread that calls the listener running, and others not yet."""

    heard_one = threading.Event()

    def _thread(self, name: str, target: Any, *arguments: float) -> threading.Thread:
        return (Second if name == "1" else threading.Thread)(target=target, args=arguments, name=f"{name}-slow")


class Second(threading.Thread):
    """It is not started before the first one has called the listener."""

    def start(self) -> None:
        assert SlowlyStarted.heard_one.wait(20)
        super().start()


def test_a_listener_may_shut_its_consumer_down_while_it_starts(lake: Published) -> None:
    lake.publish({"pay": [lake.messages(20, range(20))]})

    def stop(_: Any) -> None:
        consumer.close()
        SlowlyStarted.heard_one.set()

    consumer = SlowlyStarted("slow", lake.tables.root, Heard(also=stop), **FAST | {"threads": 2}).subscribe("pay")
    consumer.start()
    consumer.close(timedelta(seconds=20))
    assert GroupTable(lake.tables, "slow").state.members == {}
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("-slow")]


def test_a_consumer_that_is_shut_down_before_it_has_started_leaves(
    lake: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.publish({"pay": [lake.messages(3)]})
    consumer = PushConsumer("early", lake.tables.root, Heard(), **FAST).subscribe("pay")
    monkeypatch.setattr(Coordinator, "adopt", lambda _: consumer.close())
    with pytest.raises(SettingsError, match="closed"):
        consumer.start()
    assert GroupTable(lake.tables, "early").state.members == {}


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
    running.pop().close()
    with engine.begin() as connection:
        effects = Counter(connection.execute(text("SELECT message FROM effect")).scalars())
    assert effects == Counter(range(4))


def test_what_the_database_refuses_at_the_commit_is_a_failure(
    lake: Published, running: list[PushConsumer], tmp_path: Path
) -> None:
    """A deferred constraint: tried again, then a dead letter; the messages behind it are consumed."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", connect_args={"timeout": 30})
    event.listen(engine, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys = ON"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (id INTEGER PRIMARY KEY)"))
        connection.execute(text("INSERT INTO account VALUES (0), (2), (3)"))
        deferred = "REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED"
        connection.execute(text(f"CREATE TABLE booking (account INTEGER {deferred})"))

    def listen(message: Any, connection: Connection) -> ConsumeResult:
        heard(message)
        connection.execute(text("INSERT INTO booking VALUES (:account)"), {"account": message.half_queue_offset})
        return ConsumeResult.SUCCESS

    heard = Heard()
    lake.publish({"pay": [lake.messages(4)]})
    start(lake, running, listen, positions=SqlPositions(engine), max_reconsume_times=2)
    until(lambda: [letter["half_queue_offset"] for letter in dead_letters(lake)] == [1])
    heard.wait_for(*range(4))
    running.pop().close()
    assert heard.offsets.count(1) == 3
    with engine.begin() as connection:
        booked = connection.execute(text("SELECT account FROM booking")).scalars().all()
    assert sorted(booked) == [0, 2, 3]


def fail() -> None:
    raise ValueError


def test_a_listener_in_a_file_of_any_name_holds_up_nothing(lake: Published, running: list[PushConsumer]) -> None:
    """Where it failed is kept in the group's table, which takes UTF-8 only."""
    lake.publish({"pay": [lake.messages(3)]})
    named = fail.__code__.replace(co_filename="/srv/" + os.fsdecode(b"b\xfccher.py"))
    failing = FunctionType(named, globals())

    def listen(message: Any) -> Any:
        heard(message)
        return failing() if message.half_queue_offset == 1 else ConsumeResult.SUCCESS

    heard = Heard()
    start(lake, running, listen, max_reconsume_times=0)
    until(lambda: [letter["half_queue_offset"] for letter in dead_letters(lake)] == [1])
    assert dead_letters(lake)[0]["reason"].startswith("ValueError at b\\udcfccher.py:")
    running.pop().close()
    assert heard.offsets.count(1) == 1
    start(lake, running, other := Heard())
    lake.publish({"pay": [lake.messages(1)]})
    other.wait_for(3)
    assert other.offsets == [3]


def test_a_failed_listener_whose_transaction_cannot_be_rolled_back_has_failed(
    lake: Published, running: list[PushConsumer], tmp_path: Path
) -> None:
    """It has closed the database's connection: its message is tried again, and given up, all the same."""
    engine = create_engine(f"sqlite:///{tmp_path / 'db'}", connect_args={"timeout": 30})
    lake.publish({"pay": [lake.messages(3)]})

    def listen(message: Any, connection: Connection) -> ConsumeResult:
        heard(message)
        if message.half_queue_offset == 1:
            connection.connection.driver_connection.close()  # type: ignore[union-attr]
            raise ValueError
        return ConsumeResult.SUCCESS

    heard = Heard()
    start(lake, running, listen, positions=SqlPositions(engine), max_reconsume_times=1)
    until(lambda: [letter["half_queue_offset"] for letter in dead_letters(lake)] == [1])
    heard.wait_for(0, 2)
    assert heard.offsets.count(1) == 2
