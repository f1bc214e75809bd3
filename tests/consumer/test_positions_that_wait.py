"""SqlPositions whose database keeps a member waiting: that holds up the queue that waits, and no heartbeat."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import create_engine, insert, pool
from sqlalchemy.pool import QueuePool

from checkback.consumer import PushConsumer, SqlPositions
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import Position
from consumer.heard import Heard, until
from consumer.test_push_consumer import start
from consumer.test_sql_positions import EFFECT, QUEUE, apply, effects, engine
from producer.conftest import postgres_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from checkback.consumer.sql_positions import KeptState
    from consumer.published import Published

__all__ = ["engine", "postgres_url"]  # fixtures

pytestmark = pytest.mark.slow


@pytest.fixture
def postgres(postgres_url: str) -> Iterator[Engine]:
    found = create_engine(postgres_url, pool_size=30)
    EFFECT.metadata.create_all(found)
    try:
        yield found
    finally:
        SqlPositions(found).table.drop(found, checkfirst=True)
        EFFECT.metadata.drop_all(found)
        found.dispose()


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_open_transaction_of_another_member(
    lake: Published, running: list[PushConsumer], postgres: Engine, ending: str
) -> None:
    """One that is frozen in the middle of a call, and goes on later: what it commits is not done again."""
    lake.publish({"pay": [lake.messages(10, (0, 1))]})
    positions = SqlPositions(postgres)
    positions.create_table()
    kept = positions.load("g", QUEUE, QueueState(Position()), GroupTable(lake.tables, "g").table_id)
    frozen = postgres.connect()
    transaction = frozen.begin()
    done = QueueState(Position({"a": 0}, None, lake.time, {"a": lake.time}))
    positions.keep(frozen, "g", QUEUE, kept.version, done)
    frozen.execute(insert(EFFECT), [{"message": offset} for offset in range(0, 10, 2)])
    heard = Heard(also=apply)
    consumer = start(lake, running, heard, positions=positions, session_timeout=timedelta(seconds=1.0))
    heard.wait_for(*range(1, 10, 2))
    until(lambda: "an open transaction holds its row" in str(consumer.last_error))
    beats = _beats(lake, consumer)
    until(lambda: _beats(lake, consumer) > beats + 3)  # more than a session
    assert not heard.times.keys() & set(range(0, 10, 2))
    getattr(transaction, ending)()
    frozen.close()
    until(lambda: effects(postgres) == Counter(range(10)))
    lake.publish({"pay": [lake.messages(4, (0, 1))]})
    until(lambda: effects(postgres) == Counter(range(14)))
    assert bool(heard.times.keys() & set(range(0, 10, 2))) == (ending == "rollback")


def _beats(lake: Published, consumer: PushConsumer) -> int:
    """The member's heartbeats; raises KeyError if another member, or itself, took it for dead."""
    return GroupTable(lake.tables, "g").state.members[consumer.member].heartbeat


def test_database_that_does_not_answer(lake: Published, running: list[PushConsumer], engine: Engine) -> None:
    """For one queue: the others are consumed meanwhile, and it is when the answer comes."""
    asked, answered = threading.Event(), threading.Event()

    class Slow(SqlPositions):
        def load(self, group: str, queue: MessageQueue, start: QueueState, table_id: str) -> KeptState:
            if queue == QUEUE:
                asked.set()
                assert answered.wait(30)
            return super().load(group, queue, start, table_id)

    lake.publish({"pay": [lake.messages(10, (0, 1))]})
    heard = Heard(also=apply)
    consumer = start(lake, running, heard, positions=Slow(engine), session_timeout=timedelta(seconds=1.0))
    heard.wait_for(*range(1, 10, 2))
    assert asked.is_set()
    beats = _beats(lake, consumer)
    until(lambda: _beats(lake, consumer) > beats + 3)
    assert not answered.is_set()
    assert not heard.times.keys() & set(range(0, 10, 2))
    answered.set()
    heard.wait_for(*range(10))
    assert set(heard.times.values()) == {1}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ({"poolclass": QueuePool, "pool_size": 1, "max_overflow": 1}, True),
        ({"poolclass": QueuePool, "pool_size": 5, "max_overflow": 3}, False),
        ({"poolclass": QueuePool, "pool_size": 1, "max_overflow": -1}, False),
        ({"poolclass": pool.NullPool}, False),
    ],
)
def test_pool_with_fewer_connections_than_threads(
    lake: Published,
    running: list[PushConsumer],
    engine: Engine,
    caplog: pytest.LogCaptureFixture,
    kind: dict[str, Any],
    said: bool,
) -> None:
    """It says so at the start: the threads would wait for one another, until a timeout."""
    lake.publish({"pay": [lake.messages(3)]})
    heard = Heard(also=apply)
    with caplog.at_level(logging.WARNING, "checkback"):
        start(lake, running, heard, positions=SqlPositions(create_engine(engine.url, **kind)), threads=4)
        heard.wait_for(*range(3))
    said_of_it = [each.getMessage() for each in caplog.records if "pool" in each.getMessage()]
    assert len(said_of_it) == said
    if said:
        assert "2 connections for 4 threads" in said_of_it[0]
        assert "pool_size" in said_of_it[0]
