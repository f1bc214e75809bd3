"""Positions in the consumer's own database: kept by the transaction that applies the message, so exactly once.

A row for each queue has its position, retries and dead letters, and a version. The transaction updates the row on
condition of the version that this member has read, before the listener's statements: of two members that believe to
own a queue one waits for the other and then finds another version.
"""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, Text, select, text, update
from sqlalchemy.exc import DataError, IntegrityError, OperationalError
from sqlalchemy.pool import QueuePool
from sqlalchemy.schema import CreateTable

from checkback.consumer.group.group_state import QueueState
from checkback.errors import FencedError, StorageError
from checkback.messages.limits import GROUP_MAX, TOPIC_MAX
from checkback.producer.deduplication import fit, insert_once, refuse_autocommit, why_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

    from checkback.consumer.group.group_state import MessageQueue


#: the longest that a load waits for another member's insert (ms)
_LOCK_MS = 200
#: PostgreSQL's SQLSTATE lock_not_available, of NOWAIT and of lock_timeout
_LOCK_NOT_AVAILABLE = "55P03"
_NO_ROW = "the queue's row is gone: the database was restored from an older backup, or is another one"
_OTHER_LAKE = "the row is that of another lake's group, or of one whose table is gone"
_OTHER_FIX = (
    "give each lake a table of its own, SqlPositions(engine, table); if the other lake is gone delete the group's "
    "rows; if only the group's table was recreated set their group_table_id to '{}'"
)
_RESTORE_IT = "restore it; or stop the group, and set where it goes on: checkback group reset"


class KeptState(NamedTuple):
    """A queue's row. ``state_id``: identifies what counts its dead letters; ``version``: of the row."""

    state: QueueState
    state_id: str
    version: int


class SqlPositions:
    """Positions of consumer groups in a database: SQLite or PostgreSQL, through SQLAlchemy 2.

    ``engine``: that of the effects; ``table``: the table's name. Raises CheckbackError for another database.
    """

    #: errors by which a database refuses what a transaction has written, and has rolled it back
    refusals = (IntegrityError, DataError)

    def __init__(self, engine: Engine, table: str = "consumer_positions") -> None:
        fit(engine.dialect, "SqlPositions")
        self.engine = engine
        #: for migrations: one row for each queue of a group
        self.table = Table(
            table,
            MetaData(),
            Column("consumer_group", String(GROUP_MAX), primary_key=True),
            Column("topic", String(TOPIC_MAX), primary_key=True),
            Column("queue_id", Integer, primary_key=True, autoincrement=False),
            Column("group_table_id", String(36), nullable=False),
            Column("state", Text, nullable=False),
            Column("state_id", String(32), nullable=False),
            Column("version", BigInteger, nullable=False),
            Column("updated_at", DateTime(timezone=True), nullable=False),
        )

    def create_table(self) -> None:
        """Create the table if it does not exist; call it at deployment."""
        with self.engine.begin() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    @property
    def most_connections(self) -> int | None:
        """How many connections the engine's pool opens at most; None = no limit, or unknown."""
        pool = self.engine.pool
        if not isinstance(pool, QueuePool) or pool._max_overflow < 0:
            return None
        return pool.size() + pool._max_overflow

    def load(self, group: str, queue: MessageQueue, start: QueueState, table_id: str) -> KeptState:
        """The queue's row; a new one begins at ``start``. ``table_id``: of the group's table, which names its lake.

        Retries and the position that an operator has put into ``start`` are taken over, once.

        In PostgreSQL it waits for no other transaction: a member that hangs, or whose machine is gone, may hold the
        row's lock for hours. Raises FencedError if another member writes the row meanwhile, StorageError if an open
        transaction holds its lock, if it is another lake's, or if it is gone: what the database lacks would count as
        consumed.
        """
        row, columns = self._where(group, queue), self.table.c
        same = [columns[name] == value for name, value in row.items()]
        wanted = select(self.table).where(*same).with_for_update(nowait=True)
        where = f"{group}, {queue.topic}/{queue.queue_id}"
        with _unlocked(where), self.engine.begin() as connection:
            refuse_autocommit(connection, self.table.name)
            if connection.dialect.name == "postgresql":
                connection.execute(text(f"SET LOCAL lock_timeout = {_LOCK_MS}"))
            found = connection.execute(wanted).one_or_none()
            if found is None and start.kept_by is not None and start.reset_id is None:
                raise StorageError(_NO_ROW, where, _RESTORE_IT)
            if found is None:
                begun = {"state": encode(start.with_resumed(start.retries)), "state_id": uuid.uuid4().hex, "version": 0}
                made = {**row, "group_table_id": table_id, **begun, "updated_at": _now()}
                insert_once(connection, self.table, made)
                found = connection.execute(wanted).one()
            if found.group_table_id != table_id:
                raise StorageError(_OTHER_LAKE, f"table {self.table.name}, {where}", _OTHER_FIX.format(table_id))
            state, version = decode(found.state), found.version
            resumed = state
            if start.reset_id is not None and start.reset_id != state.reset_id:
                resumed = state.reset(start.position, start.reset_id)
            resumed = resumed.with_resumed(start.retries)
            if resumed != state:
                self.keep(connection, group, queue, version, resumed)
                version += 1
        return KeptState(resumed, found.state_id, version)

    def keep(self, connection: Connection, group: str, queue: MessageQueue, version: int, state: QueueState) -> None:
        """Update the row as part of the connection's transaction; its version is then ``version`` + 1.

        Raises FencedError if it has another version than ``version``; the transaction must be rolled back.
        """
        columns = self.table.c
        where = [columns[name] == value for name, value in self._where(group, queue).items()]
        changed = update(self.table).where(*where, columns.version == version)
        values = {"state": encode(state), "version": version + 1, "updated_at": _now()}
        if connection.execute(changed.values(**values)).rowcount != 1:
            raise FencedError("another member consumes this queue", f"{group}, {queue.topic}/{queue.queue_id}")

    def why_lost(self, connection: Connection, group: str, queue: MessageQueue, version: int) -> str | None:
        """Why the connection's transaction no longer has the row that was kept with ``version``; None: it has."""
        columns = self.table.c
        where = [columns[name] == value for name, value in self._where(group, queue).items()]
        return why_lost(lambda: connection.execute(select(columns.version).where(*where)).scalar() == version)

    def _where(self, group: str, queue: MessageQueue) -> dict[str, Any]:
        return {"consumer_group": group, "topic": queue.topic, "queue_id": queue.queue_id}


@contextmanager
def _unlocked(where: str) -> Iterator[None]:
    """PostgreSQL's refusal to wait for a lock becomes a StorageError."""
    try:
        yield
    except OperationalError as error:
        if getattr(error.orig, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        what = "an open transaction holds its row: of another member in the middle of a call, or one that hangs"
        raise StorageError(what, where, "it is tried again; end a transaction that hangs") from error


def encode(state: QueueState) -> str:
    """A queue's state as JSON; without owner and epoch, which the group's table has."""
    return msgspec.json.encode(replace(state, owner=None, epoch=0, kept_by=None)).decode()


def decode(kept: str) -> QueueState:
    """The state that `encode` has written."""
    return msgspec.json.decode(kept, type=QueueState)


def _now() -> datetime:
    return datetime.now(timezone.utc)
