"""The barrier on real databases: what a check was told holds, whoever comes first."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session
from sqlalchemy.pool import StaticPool

from checkback.errors import CheckbackError
from checkback.producer import Barrier, BarrierError, LocalTransactionState, Message

COMMIT, ROLLBACK, UNKNOWN = LocalTransactionState.COMMIT, LocalTransactionState.ROLLBACK, LocalTransactionState.UNKNOWN
#: longer than anything here takes, in seconds
DEADLINE = 20


@pytest.fixture
def barrier(engine: Engine) -> Barrier:
    made = Barrier(engine)
    made.create_table()
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE account (transaction_id VARCHAR(40))"))
    return made


def message(name: str) -> Message:
    return Message("payments", b"", transaction_id=name).stored_at(0, 7, "orders")


def pay(barrier: Barrier, transaction_id: str) -> None:
    with barrier.local_transaction(message(transaction_id)) as connection:
        connection.execute(text("INSERT INTO account VALUES (:id)"), {"id": transaction_id})


def paid(engine: Engine) -> Counter[str]:
    with engine.connect() as connection:
        return Counter(connection.scalars(text("SELECT transaction_id FROM account")))


def test_committed_is_commit_ever_after(barrier: Barrier, engine: Engine) -> None:
    pay(barrier, "t1")
    assert [barrier.check(message("t1")) for _ in range(3)] == [COMMIT] * 3
    assert paid(engine) == {"t1": 1}


def test_transaction_after_its_rollback_cannot_commit(barrier: Barrier, engine: Engine) -> None:
    """The check came first: the local transaction fails before it begins, and leaves nothing."""
    assert barrier.check(message("t1")) is ROLLBACK
    with pytest.raises(BarrierError, match="a check said ROLLBACK") as refused:
        pay(barrier, "t1")
    assert refused.value.state is ROLLBACK
    assert barrier.check(message("t1")) is ROLLBACK
    assert not paid(engine)


def test_transaction_done_before_is_not_done_again(barrier: Barrier, engine: Engine) -> None:
    pay(barrier, "t1")
    with pytest.raises(BarrierError, match="committed before") as refused:
        pay(barrier, "t1")
    assert refused.value.state is COMMIT
    assert pickle.loads(pickle.dumps(refused.value)).state is COMMIT  # noqa: S301 - made here
    assert paid(engine) == {"t1": 1}


def test_transaction_failed_is_rollback_and_may_not_be_tried_again(barrier: Barrier, engine: Engine) -> None:
    def fail() -> None:
        with barrier.local_transaction(message("t1")) as connection:
            connection.execute(text("INSERT INTO account VALUES ('t1')"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert barrier.check(message("t1")) is ROLLBACK
    with pytest.raises(BarrierError):
        pay(barrier, "t1")
    assert not paid(engine)


def test_transaction_under_way_is_unknown_then_what_it_became(barrier: Barrier, engine: Engine) -> None:
    """A check does not decide over the head of a local transaction that has begun, and does not wait for ever."""
    impatient = Barrier(engine, wait=timedelta(seconds=0.1))
    with ThreadPoolExecutor(1) as pool, barrier.local_transaction(message("t1")) as connection:
        connection.execute(text("INSERT INTO account VALUES ('t1')"))
        assert pool.submit(impatient.check, message("t1")).result(DEADLINE) is UNKNOWN
    assert impatient.check(message("t1")) is COMMIT


@pytest.mark.parametrize("commits", [True, False])
def test_check_that_waits_sees_how_the_transaction_ends(barrier: Barrier, engine: Engine, commits: bool) -> None:
    patient = Barrier(engine, wait=timedelta(seconds=DEADLINE))
    waiting = threading.Event()

    @event.listens_for(engine, "before_cursor_execute")
    def _(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("INSERT") and threading.current_thread() is not threading.main_thread():
            waiting.set()

    with ThreadPoolExecutor(1) as pool:
        with engine.connect() as connection:
            barrier.mark(connection, message("t1"))
            checked = pool.submit(patient.check, message("t1"))
            assert waiting.wait(DEADLINE)
            assert not checked.done()
            (connection.commit if commits else connection.rollback)()
        assert checked.result(DEADLINE) is (COMMIT if commits else ROLLBACK)


def test_transactions_raced_by_checks_in_threads(barrier: Barrier, engine: Engine) -> None:
    """Two checks and a local transaction for each of many ids at once: ROLLBACK is told if and only if none commits."""
    ids = [f"t{number}" for number in range(100)]
    told: dict[str, set[LocalTransactionState]] = {name: set() for name in ids}

    def local(name: str) -> None:
        try:
            pay(barrier, name)
        except BarrierError as refused:
            told[name].add(refused.state)

    def check(name: str) -> None:
        told[name].add(barrier.check(message(name)))

    with ThreadPoolExecutor(6) as pool:
        work = []
        for number, name in enumerate(ids):
            work += [pool.submit(check, name) for _ in range(number % 3)]
            work.append(pool.submit(local, name))
            work.append(pool.submit(check, name))
        for done in work:
            done.result(DEADLINE)
    committed = paid(engine)
    assert set(committed.values()) <= {1}
    for name in ids:
        assert told[name] - {UNKNOWN} <= {COMMIT if name in committed else ROLLBACK}
        assert barrier.check(message(name)) is (COMMIT if name in committed else ROLLBACK)
    # Both orders have happened, else nothing was tested.
    assert {state for states in told.values() for state in states} >= {COMMIT, ROLLBACK}


RACER = """
import sys
from datetime import timedelta
from sqlalchemy import create_engine, text
from checkback.producer import Barrier, BarrierError, Message
url, work = sys.argv[1:]
engine = create_engine(url, connect_args={"timeout": 30} if url.startswith("sqlite") else {})
barrier = Barrier(engine, wait=timedelta(seconds=30))
def run(name):
    message = Message("payments", b"", transaction_id=name).stored_at(0, 7, "orders")
    if work == "check":
        return barrier.check(message)
    try:
        with barrier.local_transaction(message) as connection:
            connection.execute(text("INSERT INTO account VALUES (:id)"), {"id": name})
        return barrier.check(message)
    except BarrierError as refused:
        return refused.state
for line in sys.stdin:
    print(run(line.strip()).value, flush=True)
"""


@pytest.mark.processes
def test_transactions_raced_by_checks_of_another_process(barrier: Barrier, engine: Engine, database_url: str) -> None:
    """Two processes get the same id at once, 100 times; what both were told is what the database has."""
    racers = {
        work: subprocess.Popen(
            [sys.executable, "-c", RACER, database_url, work],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        for work in ("check", "local")
    }
    told: dict[str, list[str]] = {}
    for number in range(100):
        name = f"t{number}"
        order = [racers["check"], racers["local"]]
        for racer in order if number % 2 else reversed(order):
            assert racer.stdin is not None
            racer.stdin.write(f"{name}\n")
        told[name] = [racer.stdout.readline().strip() for racer in order if racer.stdout is not None]
    for racer in racers.values():
        racer.communicate(timeout=DEADLINE)
    committed = paid(engine)
    assert set(committed.values()) <= {1}
    assert told == {name: ["COMMIT" if name in committed else "ROLLBACK"] * 2 for name in told}
    assert 0 < len(committed) < 100  # both orders have happened


@pytest.mark.processes
def test_killed_between_commit_and_op_is_commit(barrier: Barrier, engine: Engine, database_url: str) -> None:
    """Kill -9 right after the local commit, or right before it: the check finds out which."""
    code = """
import os, signal, sys
from sqlalchemy import create_engine, text
from checkback.producer import Barrier, Message
barrier = Barrier(create_engine(sys.argv[1]))
message = Message("payments", b"", transaction_id=sys.argv[2]).stored_at(0, 7, "orders")
try:
    with barrier.local_transaction(message) as connection:
        connection.execute(text("INSERT INTO account VALUES (:id)"), {"id": sys.argv[2]})
        if sys.argv[2] == "before":
            os.kill(os.getpid(), signal.SIGKILL)
finally:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    for name in ("before", "after"):
        run = subprocess.run([sys.executable, "-c", code, database_url, name], check=False, timeout=60)
        assert run.returncode == -9
    assert [barrier.check(message(name)) for name in ("before", "after")] == [ROLLBACK, COMMIT]
    assert paid(engine) == {"after": 1}


def test_mark_in_a_session_of_the_orm(barrier: Barrier, engine: Engine) -> None:
    with Session(engine) as session, session.begin():
        barrier.mark(session.connection(), message("t1"))
        session.execute(text("INSERT INTO account VALUES ('t1')"))
    assert barrier.check(message("t1")) is COMMIT


def test_mark_in_asyncio(barrier: Barrier, engine: Engine, database_url: str) -> None:
    """SQLAlchemy's asyncio, and the check in a thread."""
    pytest.importorskip("aiosqlite", reason="aiosqlite is not installed")
    asynchronous = pytest.importorskip("sqlalchemy.ext.asyncio")

    async def run() -> list[LocalTransactionState]:
        own = asynchronous.create_async_engine(database_url.replace("sqlite:", "sqlite+aiosqlite:"))
        async with own.begin() as connection:
            await connection.run_sync(barrier.mark, message("t1"))
            await connection.execute(text("INSERT INTO account VALUES ('t1')"))
        async with own.connect() as connection:
            await connection.run_sync(barrier.mark, message("t2"))
            await connection.rollback()
        autocommit = own.execution_options(isolation_level="AUTOCOMMIT")
        async with autocommit.connect() as connection:
            with pytest.raises(CheckbackError, match="commits by itself"):
                await connection.run_sync(barrier.mark, message("t3"))
        await own.dispose()
        return [await asyncio.to_thread(barrier.check, message(name)) for name in ("t1", "t2", "t3")]

    assert asyncio.run(run()) == [COMMIT, ROLLBACK, ROLLBACK]
    assert paid(engine) == {"t1": 1}


def test_barrier_of_a_connection(barrier: Barrier, engine: Engine) -> None:
    with engine.connect() as connection:
        own = Barrier(connection)
        pay(own, "t1")
        assert own.check(message("t1")) is COMMIT
        assert own.check(message("t2")) is ROLLBACK
    assert paid(engine) == {"t1": 1}


def test_autocommit_is_refused(barrier: Barrier, engine: Engine) -> None:
    """There the mark would say COMMIT before anything else has committed."""
    own = Barrier(engine.execution_options(isolation_level="AUTOCOMMIT"))
    for use in (lambda: pay(own, "t1"), lambda: own.check(message("t1"))):
        with pytest.raises(CheckbackError, match="commits by itself"):
            use()
    assert not paid(engine)
    pay(barrier, "t1")


def test_begin_of_ones_own_on_sqlite_is_a_transaction(tmp_path: object) -> None:
    """SQLAlchemy's recipe for savepoints: the driver's isolation_level is None, and BEGIN is sent by an event."""
    engine = create_engine(f"sqlite:///{tmp_path}/own.db")

    @event.listens_for(engine, "connect")
    def _(driver: object, _record: object) -> None:
        driver.isolation_level = None  # type: ignore[attr-defined]

    @event.listens_for(engine, "begin")
    def _begin(connection: object) -> None:
        connection.exec_driver_sql("BEGIN")  # type: ignore[attr-defined]

    barrier = Barrier(engine)
    barrier.create_table()
    with pytest.raises(ZeroDivisionError), barrier.local_transaction(message("t1")):
        raise ZeroDivisionError
    assert barrier.check(message("t1")) is ROLLBACK
    with barrier.local_transaction(message("t2")):
        pass
    assert barrier.check(message("t2")) is COMMIT


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_stricter_isolation_is_as_safe(postgres_url: str, level: str) -> None:
    engine = create_engine(postgres_url, isolation_level=level)
    barrier = Barrier(engine, f"barrier_{level[:6].strip().lower()}", wait=timedelta(seconds=DEADLINE))
    barrier.create_table()
    with ThreadPoolExecutor(1) as pool:
        with barrier.local_transaction(message("t1")):
            checked = pool.submit(barrier.check, message("t1"))
        assert checked.result(DEADLINE) in {COMMIT, UNKNOWN}
    assert barrier.check(message("t1")) is COMMIT
    assert barrier.check(message("t2")) is ROLLBACK
    engine.dispose()


def test_table_missing_is_an_error(engine: Engine) -> None:
    """Not UNKNOWN: nobody would ever notice."""
    with pytest.raises(DBAPIError, match="checkback_barrier"):
        Barrier(engine).check(message("t1"))


def test_create_table_twice_keeps_the_marks(barrier: Barrier) -> None:
    pay(barrier, "t1")
    barrier.create_table()
    assert barrier.check(message("t1")) is COMMIT


def test_purge_deletes_the_old_marks(barrier: Barrier) -> None:
    pay(barrier, "t1")
    assert barrier.purge() == 0
    assert barrier.purge(timedelta(seconds=-1)) == 2


def test_constraint_of_the_business_is_not_the_barriers(barrier: Barrier, engine: Engine) -> None:
    with engine.begin() as connection:
        connection.execute(text("CREATE UNIQUE INDEX one ON account (transaction_id)"))
        connection.execute(text("INSERT INTO account VALUES ('t1')"))
    with pytest.raises(IntegrityError):
        pay(barrier, "t1")
    assert barrier.check(message("t1")) is ROLLBACK


def test_longest_transaction_id_fits(barrier: Barrier) -> None:
    with barrier.local_transaction(message("x" * 1024)):
        pass
    assert barrier.check(message("x" * 1024)) is COMMIT


def test_engine_of_one_connection_is_refused() -> None:
    with pytest.raises(CheckbackError, match="all connections of the engine are one"):
        Barrier(create_engine("sqlite://", poolclass=StaticPool))


def test_other_databases_are_refused() -> None:
    class Oracle:
        name = "oracle"

    class Bind:
        dialect = Oracle()

    with pytest.raises(CheckbackError, match="oracle is not supported"):
        Barrier(Bind())  # type: ignore[arg-type]
