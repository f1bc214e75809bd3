"""Blocks whose database transaction ends before they do: what is told and marked is what the database has."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import QueuePool

from checkback.errors import CheckbackError
from checkback.producer import Barrier, BarrierError, LocalTransactionState, Message, MessageApply, idempotent

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
TRANSACTION = Message("payments", b"").stored_at(0, 7, "orders", "t1")


def _caught(statement: str) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        with suppress(DBAPIError):
            connection.execute(text(statement))

    return work


def _then_pay(end: Callable[[Connection], None]) -> Callable[[Connection], None]:
    """What the driver takes for a transaction of its own: the mark is not in it."""

    def work(connection: Connection) -> None:
        end(connection)
        connection.execute(text("INSERT INTO paid VALUES ('again')"))

    return work


def _raw_rollback(connection: Connection) -> None:
    connection.exec_driver_sql("ROLLBACK")


#: ends of a transaction, without its effects, which the block goes over
LOSSES: dict[str, dict[str, Callable[[Connection], None]]] = {
    "postgresql": {
        "an error caught": _caught("INSERT INTO seen VALUES ('x')"),
        "a statement that is none": _caught("no statement"),
    },
    "sqlite": {
        "or rollback": _caught("INSERT OR ROLLBACK INTO seen VALUES ('x')"),
        "or rollback, and on": _then_pay(_caught("INSERT OR ROLLBACK INTO seen VALUES ('x')")),
        "a trigger": _caught("INSERT INTO guarded VALUES ('x')"),
    },
}
ALWAYS: dict[str, Callable[[Connection], None]] = {
    "rollback": lambda connection: connection.rollback(),
    "raw rollback": _raw_rollback,
    "raw rollback, and on": _then_pay(_raw_rollback),
    "close": lambda connection: connection.close(),
    "invalidate": lambda connection: connection.invalidate(),
}
CASES = [(name, work) for name, losses in LOSSES.items() for work in (ALWAYS | losses)]


@pytest.fixture
def business(engine: Engine) -> Engine:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE paid (id VARCHAR(40))"))
        connection.execute(text("CREATE TABLE seen (id VARCHAR(40) PRIMARY KEY)"))
        connection.execute(text("INSERT INTO seen VALUES ('x')"))
        if engine.dialect.name == "sqlite":
            connection.execute(text("CREATE TABLE guarded (id VARCHAR(40))"))
            refuse = "SELECT RAISE(ROLLBACK, 'no')"
            connection.execute(text(f"CREATE TRIGGER no BEFORE INSERT ON guarded BEGIN {refuse}; END"))
    return engine


def paid(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text("SELECT id FROM paid")))


def pay(connection: Connection) -> None:
    connection.execute(text("INSERT INTO paid VALUES ('t1')"))


def run(barrier: Barrier, work: Callable[[Connection], None]) -> LocalTransactionState:
    """The local transaction, as in docs/producer.md."""
    try:
        with barrier.local_transaction(TRANSACTION) as connection:
            pay(connection)
            work(connection)
    except BarrierError as barred:
        return barred.state
    return COMMIT


@pytest.mark.parametrize(("database_url", "name"), CASES, indirect=["database_url"])
def test_barrier_lets_no_commit_out_of_what_was_rolled_back(business: Engine, database_url: str, name: str) -> None:
    barrier = Barrier(business)
    barrier.create_table()
    work = (ALWAYS | LOSSES[business.dialect.name])[name]
    assert run(barrier, work) is UNKNOWN
    assert paid(business) == []
    assert barrier.check(TRANSACTION) is ROLLBACK
    assert run(barrier, lambda _: None) is ROLLBACK


@pytest.mark.parametrize("raw", [False, True])
def test_commit_in_the_block_is_one(business: Engine, raw: bool) -> None:
    """The mark and the effects are committed: by whom is no matter. The engine may have a single connection."""
    one = create_engine(business.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=1)
    barrier = Barrier(one)
    barrier.create_table()

    def commit(connection: Connection) -> None:
        connection.exec_driver_sql("COMMIT") if raw else connection.commit()

    assert run(barrier, commit) is COMMIT
    assert barrier.check(TRANSACTION) is COMMIT
    assert paid(business) == ["t1"]
    one.dispose()


def test_error_around_a_savepoint_may_be_caught(business: Engine) -> None:
    barrier = Barrier(business)
    barrier.create_table()

    def work(connection: Connection) -> None:
        with suppress(DBAPIError), connection.begin_nested():
            connection.execute(text("INSERT INTO seen VALUES ('x')"))

    assert run(barrier, work) is COMMIT
    assert barrier.check(TRANSACTION) is COMMIT
    assert paid(business) == ["t1"]


def test_barrier_of_a_connection_is_no_other(business: Engine) -> None:
    with business.connect() as connection:
        barrier = Barrier(connection)
        barrier.create_table()
        assert run(barrier, lambda own: own.rollback()) is UNKNOWN
        assert run(barrier, lambda own: own.commit()) is COMMIT
        assert barrier.check(TRANSACTION) is COMMIT
    assert paid(business) == ["t1"]


@pytest.mark.parametrize(("database_url", "name"), CASES, indirect=["database_url"])
@pytest.mark.parametrize("begun", [False, True])
def test_message_whose_block_was_rolled_back_is_not_applied(
    business: Engine, database_url: str, name: str, begun: bool
) -> None:
    """Or the consumer would keep its position behind it."""
    MessageApply().create_table(business)
    work = (ALWAYS | LOSSES[business.dialect.name])[name]

    def apply(connection: Connection) -> None:
        with idempotent(connection, "billing", "payments", 0, 7, 1) as fresh:
            assert fresh
            pay(connection)
            work(connection)

    connected = business.begin if begun else business.connect
    with pytest.raises((CheckbackError, SQLAlchemyError)), connected() as connection:
        apply(connection)
    assert paid(business) == []
    with business.begin() as connection, idempotent(connection, "billing", "payments", 0, 7, 1) as fresh:
        assert fresh


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_error_that_has_rolled_back_the_batch_is_told_as_that(business: Engine) -> None:
    """Not as the block's own, which undoes the block alone: the messages before are undone, too."""
    MessageApply().create_table(business)
    with business.begin() as connection:
        with idempotent(connection, "billing", "payments", 0, 6, 1):
            pay(connection)
        with pytest.raises(CheckbackError, match="rolled back the whole transaction"):  # noqa: SIM117
            with idempotent(connection, "billing", "payments", 0, 7, 1):
                connection.execute(text("INSERT OR ROLLBACK INTO seen VALUES ('x')"))
    assert paid(business) == []
