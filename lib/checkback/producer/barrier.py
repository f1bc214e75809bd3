"""The barrier: once a check was answered ROLLBACK, the local transaction cannot commit any more.

The idea is DTM's branch barrier. A check that finds nothing cannot tell whether the local transaction failed or is only
late. Instead of reading it inserts a rollback mark under the transaction id, unless there is a commit mark. The local
transaction first inserts its commit mark, in the same database transaction as the business changes. The key is unique,
so the database decides which of the two wins.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError
from checkback.producer.deduplication import fit, insert_once
from checkback.producer.listener import LocalTransactionState

# isort: split
from sqlalchemy import Column, Connection, DateTime, MetaData, String, Table, delete, select, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

#: PostgreSQL: lock_not_available, serialization_failure, deadlock_detected
_PG_BUSY = frozenset({"55P03", "40001", "40P01"})


class BarrierError(CheckbackError):
    """The transaction already has a mark. ``state``: that mark's, which the listener should return.

    ROLLBACK: a check was answered so, and nothing may commit. COMMIT: it has committed before.
    """

    def __init__(self, what: str, where: str = "", fix: str = "", state: str = "") -> None:
        super().__init__(what, where, fix)
        self.args = (what, where, fix, state)
        self.state = LocalTransactionState(state)


class Barrier:
    """Marks of local transactions in the business database: SQLite or PostgreSQL, through SQLAlchemy 2.

    ``bind``: an engine, or a connection used by nothing else; ``table``: the table's name, one for each producer group
    with its own transaction ids; ``wait_s``: how long a check waits for a local transaction in progress.
    Raises CheckbackError for another database, or an engine with a single shared connection (StaticPool).
    """

    def __init__(self, bind: Engine | Connection, table: str = "checkback_barrier", wait_s: float = 2.0) -> None:
        fit(bind.dialect, "Barrier")
        if not isinstance(bind, Connection) and isinstance(bind.pool, StaticPool):
            raise CheckbackError(
                "all connections of the engine are one: a check would see what is not committed",
                "Barrier",
                "use a database in a file",
            )
        self._bind = bind
        self._wait_ms = max(1, round(wait_s * 1000))  # 0 means no timeout in PostgreSQL
        #: for migrations: one row for each transaction
        self.table = Table(
            table,
            MetaData(),
            Column("transaction_id", String(1024), primary_key=True),
            Column("state", String(8), nullable=False),
            Column("marked_at", DateTime(timezone=True), nullable=False),
        )

    def create_table(self) -> None:
        """Create the table if it does not exist; call it at deployment, before the first transaction."""
        with self._begin() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    @contextmanager
    def local_transaction(self, transaction_id: str) -> Iterator[Connection]:
        """A connection in a transaction that begins with the commit mark; the end of the block commits both.

        Raises BarrierError, before the block runs, if there is a mark already.
        """
        with self._begin() as connection:
            self.mark(connection, transaction_id)
            yield connection

    def mark(self, connection: Connection, transaction_id: str) -> None:
        """Insert the commit mark in the connection's current transaction: for an ORM session or asyncio's run_sync.

        Call it before the business's statements, so that their lock waits do not delay it. Raises BarrierError if there
        is a mark already; the transaction must then be rolled back.
        """
        if insert_once(connection, self.table, _row(transaction_id, LocalTransactionState.COMMIT)):
            return
        state = self._state(connection, transaction_id)
        told = "a check was told ROLLBACK" if state is LocalTransactionState.ROLLBACK else "it has committed before"
        raise BarrierError(told, f"transaction {transaction_id}", "do nothing, and say what state says", state.value)

    def check(self, transaction_id: str) -> LocalTransactionState:
        """The answer for ``check_local_transaction``: COMMIT, or ROLLBACK, after which it can never commit.

        UNKNOWN if the local transaction is in progress and does not end within ``wait_s``. The rollback mark is
        committed before this returns.
        """
        try:
            with self._begin() as connection, self._patience(connection):
                insert_once(connection, self.table, _row(transaction_id, LocalTransactionState.ROLLBACK))
                state = self._state(connection, transaction_id)
        except DBAPIError as error:
            if not _busy(error):
                raise
            return LocalTransactionState.UNKNOWN
        return state

    def purge(self, older_than: timedelta = timedelta(days=7)) -> int:
        """Delete older marks; returns their number. Keep them longer than transaction.reserved, 72 hours by default."""
        before = datetime.now(timezone.utc) - older_than
        with self._begin() as connection:
            return connection.execute(delete(self.table).where(self.table.c.marked_at < before)).rowcount

    def _state(self, connection: Connection, transaction_id: str) -> LocalTransactionState:
        found = select(self.table.c.state).where(self.table.c.transaction_id == transaction_id)
        return LocalTransactionState(connection.execute(found).scalar_one())

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        if isinstance(self._bind, Connection):
            with self._bind.begin():
                yield self._bind
        else:
            with self._bind.begin() as connection:
                yield connection

    @contextmanager
    def _patience(self, connection: Connection) -> Iterator[None]:
        """Set the lock timeout to wait_s."""
        if connection.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = {self._wait_ms}"))
            yield
            return
        before = connection.execute(text("PRAGMA busy_timeout")).scalar_one()
        connection.execute(text(f"PRAGMA busy_timeout = {self._wait_ms}"))
        try:
            yield
        finally:
            connection.execute(text(f"PRAGMA busy_timeout = {before}"))


def _row(transaction_id: str, state: LocalTransactionState) -> dict[str, Any]:
    return {"transaction_id": transaction_id, "state": state.value, "marked_at": datetime.now(timezone.utc)}


def _busy(error: DBAPIError) -> bool:
    """True if the error is a lock held by another transaction."""
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    locked = isinstance(error, OperationalError) and "locked" in str(error.orig)  # SQLite has no code on Python 3.10
    return code in _PG_BUSY or locked
