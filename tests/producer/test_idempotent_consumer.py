"""Each message is applied once, on real databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone

import numpy as np
import pytest
from sqlalchemy import Connection, Engine, text

from checkback.errors import CheckbackError
from checkback.producer import MessageApply, idempotent


@pytest.fixture
def business(engine: Engine) -> Engine:
    MessageApply().create_table(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE credit (amount BIGINT)"))
    return engine


BORN = 1_700_000_000_123


def credit(
    connection: Connection,
    offset: int,
    topic: str = "payments",
    queue: int = 0,
    group: str = "billing",
    born: int | datetime = BORN,
) -> bool:
    with idempotent(connection, group, topic, queue, offset, born) as fresh:
        if fresh:
            connection.execute(text("INSERT INTO credit VALUES (:amount)"), {"amount": offset})
        return fresh


def credits_of(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return sorted(connection.scalars(text("SELECT amount FROM credit")))


def test_message_read_again_is_not_applied_again(business: Engine) -> None:
    for fresh in (True, False, False):
        with business.begin() as connection:
            assert credit(connection, 7) is fresh
            assert credit(connection, 7) is False
    assert credits_of(business) == [7]


def test_topic_queue_and_offset_name_a_message(business: Engine) -> None:
    with business.begin() as connection:
        assert credit(connection, 1)
        assert credit(connection, 2)
        assert credit(connection, 1, queue=1)
        assert credit(connection, 1, topic="refunds")
        assert credit(connection, 2**62)


def test_each_group_applies_each_message(business: Engine) -> None:
    """Two services that share a database: what one has applied is fresh for the other."""
    for group in ("billing", "shipping"):
        with business.begin() as connection:
            assert [credit(connection, offset, group=group) for offset in (1, 2, 1)] == [True, True, False]
    assert credits_of(business) == [1, 1, 2, 2]


def test_another_lakes_message_at_the_place_is_no_repetition(
    business: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    """Nor is one of a lake that was begun anew: it would never be applied, and nobody would know."""
    with business.begin() as connection:
        assert credit(connection, 7)
    with pytest.raises(CheckbackError, match="message_apply has the mark of another message") as error:  # noqa: SIM117
        with business.begin() as connection:
            credit(connection, 7, born=BORN + 1)
    assert caplog.messages == [str(error.value)]
    assert "billing, payments, message 0/7" in str(error.value)
    assert "MessageApply(table)" in str(error.value)
    with business.begin() as connection:
        assert not credit(connection, 7)
    MessageApply().purge(business, timedelta(seconds=-1))
    with business.begin() as connection:
        assert credit(connection, 7, born=BORN + 1)
    assert credits_of(business) == [7, 7]


def test_born_timestamp_is_that_of_a_message_or_of_a_row(business: Engine) -> None:
    """The consumer's is in ms; Spark's is a local time, with microseconds that are 0."""
    born = datetime.fromtimestamp(BORN / 1000, timezone.utc)
    with business.begin() as connection:
        assert credit(connection, 7)
        assert not credit(connection, 7, born=born)
        assert not credit(connection, 7, born=born.astimezone(timezone(timedelta(hours=5))))
        assert not credit(connection, 7, born=born.astimezone().replace(tzinfo=None))


def test_numpys_integers_name_the_same_message(business: Engine) -> None:
    """Those of a pandas row: SQLite would store them as bytes, and the message would be applied once more."""
    with business.begin() as connection:
        assert credit(connection, 7)
        assert not credit(connection, np.int64(7), queue=np.int32(0), born=np.int64(BORN))
    assert credits_of(business) == [7]


@pytest.mark.parametrize("group", ["", "two words", "x" * 121])
def test_message_without_a_group_is_refused(business: Engine, group: str) -> None:
    with business.begin() as connection, pytest.raises(CheckbackError, match="is not a group's name"):
        credit(connection, 1, group=group)
    assert credits_of(business) == []


def test_purge_deletes_the_old_marks(business: Engine) -> None:
    with business.begin() as connection:
        credit(connection, 1)
    assert MessageApply().purge(business) == 0
    with business.begin() as connection:
        assert not credit(connection, 1)
    assert MessageApply().purge(business, timedelta(seconds=-1)) == 1
    with business.begin() as connection:
        assert credit(connection, 1)


def test_transaction_rolled_back_takes_the_mark_with_it(business: Engine) -> None:
    with business.connect() as connection:
        assert credit(connection, 7)
        connection.rollback()
    assert credits_of(business) == []
    with business.begin() as connection:
        assert credit(connection, 7)
    assert credits_of(business) == [7]


def test_block_that_fails_is_undone_alone(business: Engine) -> None:
    """The batch goes on without it, and it is fresh the next time."""

    def fail(connection: Connection) -> None:
        with idempotent(connection, "billing", "payments", 0, 2, BORN) as fresh:
            assert fresh
            connection.execute(text("INSERT INTO credit VALUES (2)"))
            raise ZeroDivisionError

    with business.begin() as connection:
        assert credit(connection, 1)
        with pytest.raises(ZeroDivisionError):
            fail(connection)
        with pytest.raises(Exception, match="no_such_table"), idempotent(connection, "billing", "payments", 0, 3, BORN):
            connection.execute(text("INSERT INTO no_such_table VALUES (3)"))
        assert credit(connection, 4)
    assert credits_of(business) == [1, 4]
    with business.begin() as connection:
        assert [credit(connection, offset) for offset in (1, 2, 3, 4)] == [False, True, True, False]
    assert credits_of(business) == [1, 2, 3, 4]


def test_block_that_fails_with_its_transaction_leaves_nothing(business: Engine) -> None:
    with pytest.raises(ZeroDivisionError), business.begin() as connection:  # noqa: SIM117
        with idempotent(connection, "billing", "payments", 0, 2, BORN):
            raise ZeroDivisionError
    with business.begin() as connection:
        assert credit(connection, 2)


def test_consumers_raced_apply_each_message_once(business: Engine) -> None:
    def work(offset: int) -> bool:
        with business.begin() as connection:
            return credit(connection, offset)

    with ThreadPoolExecutor(6) as pool:
        fresh = list(pool.map(work, [offset for offset in range(50) for _ in range(4)]))
    assert sum(fresh) == 50
    assert credits_of(business) == list(range(50))


def test_autocommit_is_refused(business: Engine) -> None:
    own = business.execution_options(isolation_level="AUTOCOMMIT")
    with own.connect() as connection, pytest.raises(CheckbackError, match="commits by itself"):
        credit(connection, 1)
    assert credits_of(business) == []
