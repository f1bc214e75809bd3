"""SqlPositions: position and effect are one transaction of the consumer's database."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select, update

from checkback.consumer import ConsumeResult, PushConsumer, SqlPositions
from checkback.consumer.coordinator import Coordinator
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import BatchKey, MessageKey, Position
from checkback.consumer.retry_or_dead_letter import DeadLetter, Retry
from checkback.consumer.sql_positions import KeptState, decode, encode
from checkback.errors import FencedError, StorageError
from checkback.settings import Storage
from checkback.storage.tables import Tables
from consumer.heard import Heard, until
from consumer.published import Published
from consumer.test_push_consumer import dead_letters, start

if TYPE_CHECKING:
    from sqlalchemy import Connection

pytestmark = pytest.mark.slow

EFFECT = Table("effect", MetaData(), Column("id", Integer, primary_key=True), Column("message", Integer))
QUEUE = MessageQueue("pay", 0)


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    found = create_engine(f"sqlite:///{tmp_path / 'books'}", connect_args={"timeout": 30})
    EFFECT.metadata.create_all(found)
    return found


def effects(engine: Engine) -> Counter[int]:
    with engine.begin() as connection:
        return Counter(connection.execute(select(EFFECT.c.message)).scalars())


def apply(message: Any, connection: Connection) -> None:
    connection.execute(insert(EFFECT).values(message=message.half_queue_offset))


def test_an_effect_is_kept_with_its_position_or_not_at_all(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    lake.publish({"pay": [lake.messages(30, (0, 1))]})
    heard = Heard({3: 2, 8: 99}, also=apply)
    consumer = start(lake, running, heard, positions=SqlPositions(engine), max_reconsume_times=3)
    until(lambda: dead_letters(lake))
    heard.wait_for(*range(30))
    until(lambda: 3 in effects(engine))
    consumer.close()
    assert effects(engine) == Counter(set(range(30)) - {8})
    assert heard.times[8] == 4
    again = Heard(also=apply)
    lake.publish({"pay": [lake.messages(5)]})
    start(lake, running, again, positions=SqlPositions(engine))
    again.wait_for(*range(30, 35))
    running[-1].close()
    assert effects(engine) == Counter(set(range(35)) - {8})
    assert [row["half_queue_offset"] for row in dead_letters(lake)] == [8]


def test_orderly_the_queue_waits_for_its_failed_message(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    lake.publish({"pay": [lake.messages(10)]})
    heard = Heard({3: 2}, also=apply)
    start(lake, running, heard, positions=SqlPositions(engine), orderly=True, suspend=timedelta(seconds=0.01))
    heard.wait_for(9)
    running[-1].close()
    assert heard.offsets == [0, 1, 2, 3, 3, 3, *range(4, 10)]
    assert effects(engine) == Counter(range(10))


def test_orderly_the_ledger_has_no_hole(lake: Published, running: list[PushConsumer], engine: Engine) -> None:
    """A message that fails longer than others are tried is applied all the same, before those behind it."""
    lake.publish({"pay": [lake.messages(4)]})
    heard = Heard({1: 40}, also=apply)
    start(lake, running, heard, positions=SqlPositions(engine), orderly=True, suspend=timedelta(seconds=0))
    heard.wait_for(3)
    running[-1].close()
    with engine.begin() as connection:
        assert list(connection.execute(select(EFFECT.c.message).order_by(EFFECT.c.id)).scalars()) == [0, 1, 2, 3]
    assert not dead_letters(lake)


def test_a_transaction_that_cannot_be_committed_is_done_again(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    """The listener ends the transaction by itself: what it has done so far counts, the position with it."""
    lake.publish({"pay": [lake.messages(5)]})

    def listen(message: Any, connection: Connection) -> ConsumeResult:
        apply(message, connection)
        if message.half_queue_offset == 2:
            connection.commit()
        return ConsumeResult.SUCCESS

    start(lake, running, listen, positions=SqlPositions(engine))
    until(lambda: len(effects(engine)) == 5)
    assert set(effects(engine).values()) == {1}


def test_of_two_owners_the_one_that_is_late_is_fenced(engine: Engine) -> None:
    positions = SqlPositions(engine)
    positions.create_table()
    first = positions.load("g", QUEUE, QueueState(Position()), "id")
    second = positions.load("g", QUEUE, QueueState(Position({"b": 9})), "id")
    assert second == first
    with engine.begin() as connection:
        positions.keep(connection, "g", QUEUE, second.version, QueueState(Position({"a": 7})))
    with engine.connect() as connection, pytest.raises(FencedError):
        positions.keep(connection, "g", QUEUE, first.version, QueueState(Position({"a": 8})))
    assert positions.load("g", QUEUE, QueueState(Position()), "id").state.position.consumed == {"a": 7}


def test_another_lakes_rows_are_refused(
    lake: Published, running: list[PushConsumer], engine: Engine, tmp_path: Path
) -> None:
    """Also those of a lake that was deleted and begun anew: its messages would count as applied, or be dead letters."""
    lake.publish({"pay": [lake.messages(2)]})
    heard = Heard(also=apply)
    start(lake, running, heard, positions=SqlPositions(engine))
    heard.wait_for(0, 1)
    running.pop().close()
    other = Published(Tables.of(Storage(root=str(tmp_path / "other"), sync=False)), application="b", offset=10)
    other.publish({"pay": [other.messages(2)]})
    heard = Heard(also=apply)
    consumer = start(other, running, heard, positions=SqlPositions(engine))
    until(lambda: "the row is that of another lake's group" in str(consumer.last_error))
    assert "table consumer_positions, g, pay/" in str(consumer.last_error)
    running.pop().close()
    assert heard.offsets == []
    start(other, running, heard, positions=SqlPositions(engine, "other_positions"))
    heard.wait_for(10, 11)
    running.pop().close()
    assert effects(engine) == Counter([0, 1, 10, 11])
    own = GroupTable(other.tables, "g").table_id
    with pytest.raises(StorageError, match=f"set their group_table_id to '{own}'"):
        SqlPositions(engine).load("g", QUEUE, QueueState(Position()), own)
    rows = SqlPositions(engine).table
    with engine.begin() as connection:
        connection.execute(update(rows).values(group_table_id=own))
    assert SqlPositions(engine).load("g", QUEUE, QueueState(Position()), own).version > 0


def test_a_row_that_cannot_be_read_holds_up_its_queue_alone(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    lake.publish({"pay": [lake.messages(10, (0, 1))]})
    positions = SqlPositions(engine)
    positions.create_table()
    kept = positions.load("g", QUEUE, QueueState(Position()), GroupTable(lake.tables, "g").table_id)
    rows = positions.table
    with engine.begin() as connection:
        connection.execute(update(rows).values(state="{"))
    heard = Heard(also=apply)
    consumer = start(lake, running, heard, positions=positions)
    heard.wait_for(*range(1, 10, 2))
    until(lambda: consumer.last_error)
    with engine.begin() as connection:
        connection.execute(update(rows).where(rows.c.queue_id == 0).values(state=encode(kept.state)))
    heard.wait_for(*range(10))
    assert set(heard.times.values()) == {1}


def test_a_retry_whose_message_is_gone_is_a_dead_letter(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    lake.publish({"pay": [lake.messages(1)]})
    positions = SqlPositions(engine)
    positions.create_table()
    gone = Retry(MessageKey(BatchKey("a", 0, lake.time), 0, 99), 2, 0, "why")
    table_id = GroupTable(lake.tables, "g").table_id
    positions.load("g", QUEUE, QueueState(Position({"a": 0}, None, lake.time, {"a": lake.time})), table_id)
    with engine.begin() as connection:
        state = QueueState(Position({"a": 0}, None, lake.time, {"a": lake.time}), (gone,))
        positions.keep(connection, "g", QUEUE, 0, state)
    start(lake, running, Heard(also=apply), positions=positions)
    until(lambda: [row["half_queue_offset"] for row in dead_letters(lake)] == [99])
    running.pop().close()
    assert positions.load("g", QUEUE, QueueState(Position()), table_id).state.retries == ()
    assert effects(engine) == Counter()


def test_members_whose_positions_take_longer_than_a_session_share_the_queues(
    lake: Published, running: list[PushConsumer], engine: Engine
) -> None:
    class Slow(SqlPositions):
        def load(self, *arguments: Any) -> KeptState:
            threading.Event().wait(0.03)
            return super().load(*arguments)

    lake.publish({"pay": [lake.messages(128, range(64))]})
    heard = Heard()
    for _ in range(2):
        start(lake, running, heard, positions=Slow(engine), session_timeout=timedelta(seconds=1.0))
    until(lambda: [len(each.queues()) for each in running] == [32, 32])
    heard.wait_for(*range(128))
    state = GroupTable(lake.tables, "g").state
    assert max(each.epoch for each in state.queues.values()) <= 2


@pytest.mark.parametrize(("fails", "given_up"), [({0: 1, 1: 9}, 1), ({0: 9}, 0)])
def test_a_dead_letter_that_only_the_group_has_kept_is_not_buried(
    lake: Published,
    running: list[PushConsumer],
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    fails: dict[int, int],
    given_up: int,
) -> None:
    """The first message's failure is kept by the group, and not by the database, which is locked.

    The next message that is given up has its number: another one, or itself again.
    """
    other = create_engine(engine.url)
    failures: list[tuple[int, ...]] = []

    class Locked(SqlPositions):
        def keep(self, connection: Connection, *arguments: Any) -> None:
            if arguments[-1].dead and not failures:
                assert coordinator is not None
                coordinator.step(True)
                state = GroupTable(lake.tables, "g").state.queues[QUEUE]
                failures.append(tuple(letter.message.half_queue_offset for _, letter in state.dead))
                with other.connect() as lock:
                    lock.exec_driver_sql("BEGIN IMMEDIATE")
                    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
                    try:
                        super().keep(connection, *arguments)
                    finally:
                        connection.exec_driver_sql("PRAGMA busy_timeout = 30000")
            super().keep(connection, *arguments)

    def listen(message: Any, connection: Connection) -> ConsumeResult:
        assert ready.wait(30)
        return heard(message, connection)

    def applied() -> bool:
        assert coordinator is not None
        coordinator.step(False)
        return len(effects(engine)) == 2

    lake.publish({"pay": [lake.messages(3)]})
    heard, ready = Heard(fails.copy(), also=apply), threading.Event()
    options: dict[str, Any] = {
        "positions": Locked(engine),
        "max_reconsume_times": 0,
        "threads": 1,
        "session_timeout": timedelta(seconds=3600.0),
    }
    with monkeypatch.context() as patched:
        patched.setattr(Coordinator, "run", lambda *_: None)  # the test takes its steps
        consumer = start(lake, running, listen, **options)
    coordinator = consumer._coordinator
    assert coordinator is not None
    ready.set()
    until(lambda: failures)  # the last step that is not this thread's: a Coordinator is one thread's
    until(applied)
    coordinator.step(False)
    assert failures == [(0,)]
    consumer.close()
    coordinator.leave()
    lake.publish({"pay": [lake.messages(1)]})
    again = Heard(also=apply)
    start(lake, running, again, positions=SqlPositions(engine))
    again.wait_for(3)
    running.pop().close()
    assert [row["half_queue_offset"] for row in dead_letters(lake)] == [given_up]
    assert effects(engine) == Counter({0, 1, 2, 3} - {given_up})


LONG = st.integers(0, 2**63 - 1)
HELD = st.none() | LONG
KEYS = st.builds(MessageKey, st.builds(BatchKey, st.text(max_size=3), LONG, LONG), LONG, LONG)
CONSUMED = st.dictionaries(st.text(max_size=3), LONG)
STATES = st.builds(
    QueueState,
    st.builds(Position, CONSUMED, KEYS | st.none(), st.none() | LONG, CONSUMED),
    st.lists(st.builds(Retry, KEYS, st.integers(1, 16), LONG, st.text(max_size=9), HELD)).map(tuple),
    st.lists(
        st.tuples(st.integers(1, 2**63 - 1), st.builds(DeadLetter, KEYS, st.integers(0, 16), LONG, st.text(max_size=9)))
    ).map(tuple),
    LONG,
)


@given(STATES)
def test_a_state_is_read_as_it_was_written(state: QueueState) -> None:
    assert decode(encode(state)) == state


def test_a_database_of_before_the_group_is_not_passed_over(
    lake: Published, running: list[PushConsumer], tmp_path: Path, engine: Engine
) -> None:
    """It is put back from a backup of before the group's first start: what it lacks was consumed, says the group."""
    copy = tmp_path / "copy"
    copy.write_bytes((tmp_path / "books").read_bytes())
    lake.publish({"pay": [lake.messages(10, (0, 1))]})
    start(lake, running, Heard(also=apply), positions=SqlPositions(engine))
    until(lambda: len(effects(engine)) == 10)
    running.pop().close()
    engine.dispose()
    (tmp_path / "books").write_bytes(copy.read_bytes())
    lake.publish({"pay": [lake.messages(2, (0, 1))]})
    consumer = start(
        lake, running, Heard(also=apply), positions=SqlPositions(engine), session_timeout=timedelta(seconds=60)
    )
    until(lambda: "the queue's row is gone" in str(consumer.last_error) or effects(engine))
    assert not effects(engine)
    running.pop().close()
    shutil.rmtree(lake.tables.location("consumer_groups/g"))
    start(lake, running, Heard(also=apply), positions=SqlPositions(engine))
    until(lambda: len(effects(engine)) == 12)
    running.pop().close()
    assert effects(engine) == Counter(range(12))
