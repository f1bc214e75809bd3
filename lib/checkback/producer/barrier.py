"""The barrier: once a check was answered ROLLBACK, the local transaction cannot commit any more.

The idea is DTM's branch barrier. A check that finds nothing cannot tell whether the local transaction failed or is only
late. Instead of reading it inserts a rollback mark, unless there is a commit mark. The local transaction first inserts
its commit mark, in the same database transaction as the business changes. The key is unique, so the database decides
which of the two wins.

A mark is that of a half message, identified by its place (docs/protocol.md, rule 13): the row "@0/12 order-4711". The
row "order-4711", beside it, stands for the transaction as a whole: it commits at one place only. Transaction ids are
unique in their producer group only, so the group is part of each row's key.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import Column, Connection, DateTime, MetaData, String, Table, bindparam, delete, text
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import StaticPool
from sqlalchemy.schema import CreateTable

from checkback.errors import CheckbackError
from checkback.messages.durations import seconds_of
from checkback.messages.limits import GROUP_MAX, TRANSACTION_ID_MAX
from checkback.producer.deduplication import fit, refuse_autocommit, why_lost
from checkback.producer.listener import LocalTransactionState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine, TextClause

    from checkback.check.wire import CheckRequest
    from checkback.producer.message import Message

    Transaction = Message | CheckRequest


#: states of the transaction's row: committed at one place; so far only checked
PLACED, CHECKED = "PLACED", "CHECKED"
#: what the mark of a place begins with
_PLACE = re.compile(r"@[0-9]+/[0-9]+ ")
#: longest transaction id, in characters, that the mark of a place has unhashed
_WHOLE = 900


class MarkKey(NamedTuple):
    """The keys of the rows of a transaction and of its half message."""

    group: str
    whole: str
    place: str

    @classmethod
    def of(cls, transaction: Transaction) -> MarkKey:
        """Raises CheckbackError for a message without a place, and for an id that could be the mark of a place."""
        whole = transaction.transaction_id
        if _PLACE.match(whole):
            raise CheckbackError("begins as the mark of a half message does", f"transaction {whole}", "use another id")
        group = transaction.producer_group
        if transaction.place is None or not group:
            fix = "give the barrier the message that execute_local_transaction was given"
            raise CheckbackError(
                "the message has no queue_id, queue_offset and producer_group", f"transaction {whole}", fix
            )
        queue_id, queue_offset = transaction.place
        # The column is 1,024 characters long, as an id may be. Hashes need not differ: a place has one transaction.
        name = whole if len(whole) <= _WHOLE else sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(group, whole, f"@{queue_id}/{queue_offset} {name}")


class MarkStates(NamedTuple):
    """The states of both rows."""

    whole: str
    place: str

    @property
    def state(self) -> LocalTransactionState:
        """The state of the half message."""
        return LocalTransactionState(self.place)

    @property
    def elsewhere(self) -> bool:
        """Has the transaction committed as another half message?"""
        return self.whole == PLACED and self.state is LocalTransactionState.ROLLBACK


class Statements(NamedTuple):
    """The barrier's SQL, for SQLite and PostgreSQL, made once: SQLAlchemy would compile several rows each time.

    Each is one round trip. Rows are inserted in the same order everywhere: the first one queues all transactions, so
    there are no deadlocks.
    """

    mark: TextClause
    check: TextClause
    states: TextClause
    undo: TextClause

    @classmethod
    def of(cls, table: str) -> Statements:
        """For the table of this (quoted) name."""
        into = f"INSERT INTO {table} (producer_group, transaction_id, state, marked_at) VALUES"
        conflict = "ON CONFLICT (producer_group, transaction_id) DO"
        update = f"UPDATE SET state = excluded.state, marked_at = excluded.marked_at WHERE {table}.state = '{CHECKED}'"
        of_group = "producer_group = :group AND transaction_id"
        select = f"SELECT transaction_id, state FROM {table} WHERE {of_group} IN (:whole, :place)"  # noqa: S608
        undo = f"UPDATE {table} SET state = :state WHERE {of_group} = :row"  # noqa: S608 - a quoted name

        def insert(sql: str) -> TextClause:
            now = bindparam("now", type_=DateTime(timezone=True))
            return text(sql).bindparams(now).execution_options(preserve_rowcount=True)

        return cls(
            mark=insert(
                f"{into} (:group, :whole, '{PLACED}', :now), (:group, :place, 'COMMIT', :now) {conflict} {update}"
            ),
            check=insert(
                f"{into} (:group, :whole, '{CHECKED}', :now), (:group, :place, 'ROLLBACK', :now) {conflict} NOTHING"
            ),
            states=text(select),
            undo=text(undo),
        )


#: PostgreSQL: lock_not_available, serialization_failure, deadlock_detected
_PG_BUSY = frozenset({"55P03", "40001", "40P01"})


class BarrierError(CheckbackError):
    """The transaction already has a mark, or has lost its own. ``state``: what the listener should return.

    ROLLBACK: a check of this half message was answered so, or the transaction has committed as another half message.
    COMMIT: it has committed before, as this one. UNKNOWN: its block's database transaction was rolled back, and a check
    will say so for ever. ``committed``: it has committed, as this one or another.
    """

    def __init__(self, what: str, where: str = "", fix: str = "", state: str = "", committed: bool = False) -> None:
        super().__init__(what, where, fix)
        self.args = (what, where, fix, state, committed)
        self.state = LocalTransactionState(state)
        self.committed = committed


class Barrier:
    """Marks of local transactions in the business database: SQLite or PostgreSQL, through SQLAlchemy 2.

    ``bind``: an engine, or a connection used by nothing else; ``table``: its name, of all producer groups of the
    database; ``wait``: how long a check waits for a local transaction in progress.
    Raises CheckbackError for another database, or an engine with a single shared connection (StaticPool).
    """

    def __init__(
        self, bind: Engine | Connection, table: str = "checkback_barrier", wait: timedelta = timedelta(seconds=2)
    ) -> None:
        fit(bind.dialect, "Barrier")
        if not isinstance(bind, Connection) and isinstance(bind.pool, StaticPool):
            raise CheckbackError(
                "all connections of the engine are one: a check would see what is not committed",
                "Barrier",
                "use a database in a file",
            )
        self._bind = bind
        self._wait_ms = max(1, round(seconds_of("wait", wait) * 1000))  # 0 means no timeout in PostgreSQL
        #: for migrations: a row for each transaction, and one for each place at which it was marked
        self.table = Table(
            table,
            MetaData(),
            Column("producer_group", String(GROUP_MAX), primary_key=True),
            Column("transaction_id", String(TRANSACTION_ID_MAX), primary_key=True),
            Column("state", String(8), nullable=False),
            Column("marked_at", DateTime(timezone=True), nullable=False),
        )
        self._statements = Statements.of(bind.dialect.identifier_preparer.format_table(self.table))

    def create_table(self) -> None:
        """Create the table if it does not exist; call it at deployment, before the first transaction."""
        with self._begin() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    @contextmanager
    def local_transaction(self, transaction: Transaction) -> Iterator[Connection]:
        """A connection in a transaction that begins with the commit mark; the end of the block commits both.

        ``transaction``: the message that ``execute_local_transaction`` was given. Raises BarrierError, before the block
        runs, if there is a mark already; and at its end, if the transaction no longer has the mark: the block has
        rolled it back, or has caught an error that did.
        """
        key = MarkKey.of(transaction)
        with self._begin() as connection:
            self.mark(connection, transaction)
            yield connection
            if in_progress := connection.in_transaction():
                self._refuse_lost(connection, key)
        if not in_progress:  # the block itself has ended it, by a commit perhaps
            with self._begin() as connection:
                self._refuse_lost(connection, key)

    def mark(self, connection: Connection, transaction: Transaction) -> None:
        """Insert the commit mark in the connection's current transaction: for an ORM session or asyncio's run_sync.

        Call it before the business's statements, so that their lock waits do not delay it. Raises BarrierError if there
        is a mark already; the transaction must then be rolled back. Nobody looks at the end whether the mark is still
        there: do not catch a database error in the transaction, except around a savepoint (``begin_nested``).
        """
        key = MarkKey.of(transaction)
        changed = self._execute(connection, self._statements.mark, key)
        if changed == 2:  # both rows
            return
        found = self._states(connection, key)
        if changed:
            found = self._undo(connection, key, found)
        told = "it has committed before" if found.state is LocalTransactionState.COMMIT else "a check said ROLLBACK"
        raise BarrierError(
            "it has committed as another half message" if found.elsewhere else told,
            f"transaction {key.whole} of {key.group}",
            "do nothing, and say what state says",
            found.state.value,
            found.elsewhere or found.state is LocalTransactionState.COMMIT,
        )

    def check(self, transaction: Transaction) -> LocalTransactionState:
        """The answer for ``check_local_transaction``: COMMIT, or ROLLBACK, after which it can never commit.

        Also what ``execute_local_transaction`` returns when its work has failed. ``transaction``: the check or message.
        ROLLBACK holds for this half message: the transaction may commit, or have committed, as another one. UNKNOWN if
        the local transaction is in progress and does not end within ``wait``. The rollback mark is committed before
        this returns.
        """
        key = MarkKey.of(transaction)
        try:
            with self._begin() as connection, self._retry_policy(connection):
                self._execute(connection, self._statements.check, key)
                return self._states(connection, key).state
        except DBAPIError as error:
            if not _busy(error):
                raise
            return LocalTransactionState.UNKNOWN

    def purge(self, older_than: timedelta = timedelta(days=7)) -> int:
        """Delete older marks; returns their number.

        Keep them longer than transaction.max_age, 72 hours by default, and than a gateway that is down may keep
        acknowledged half messages to itself (docs/gateway.md).
        """
        before = datetime.now(timezone.utc) - older_than
        with self._begin() as connection:
            return connection.execute(delete(self.table).where(self.table.c.marked_at < before)).rowcount

    def _execute(self, connection: Connection, statement: TextClause, key: MarkKey) -> int:
        """Insert marks; the number of rows that were inserted or changed."""
        refuse_autocommit(connection, self.table.name)
        return connection.execute(statement, {**key._asdict(), "now": datetime.now(timezone.utc)}).rowcount

    def _refuse_lost(self, connection: Connection, key: MarkKey) -> None:
        why = why_lost(lambda: self._has_commit_mark(connection, key))
        if why is not None:
            fix = "catch a database error only around a savepoint, begin_nested(), and do not roll back in the block"
            raise BarrierError(why, f"transaction {key.whole} of {key.group}", fix, LocalTransactionState.UNKNOWN.value)

    def _has_commit_mark(self, connection: Connection, key: MarkKey) -> bool:
        rows = connection.execute(self._statements.states, key._asdict())
        return (key.place, LocalTransactionState.COMMIT.value) in [(row[0], row[1]) for row in rows]

    def _states(self, connection: Connection, key: MarkKey) -> MarkStates:
        rows = connection.execute(self._statements.states, key._asdict())
        states = {str(row[0]): str(row[1]) for row in rows}
        return MarkStates(states[key.whole], states[key.place])

    def _undo(self, connection: Connection, key: MarkKey, found: MarkStates) -> MarkStates:
        """Undo the change of one row when the other had a mark, lest the caller commits it; the states without it."""
        rollback = LocalTransactionState.ROLLBACK.value
        if found.whole == PLACED and found.place == rollback:
            undone, row, state = found._replace(whole=CHECKED), key.whole, CHECKED
        else:
            undone, row, state = found._replace(place=rollback), key.place, rollback
        connection.execute(self._statements.undo, {"group": key.group, "row": row, "state": state})
        return undone

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        if isinstance(self._bind, Connection):
            with self._bind.begin():
                yield self._bind
        else:
            with self._bind.begin() as connection:
                yield connection

    @contextmanager
    def _retry_policy(self, connection: Connection) -> Iterator[None]:
        """Set the lock timeout to ``wait``."""
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


def _busy(error: DBAPIError) -> bool:
    """True if the error is a lock held by another transaction."""
    code = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
    locked = isinstance(error, OperationalError) and "locked" in str(error.orig)  # SQLite has no code on Python 3.10
    return code in _PG_BUSY or locked
