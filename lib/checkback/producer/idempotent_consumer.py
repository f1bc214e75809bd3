"""An idempotent consumer: each message of a topic is applied once, however often it is read.

A topic table has each committed message once, but a consumer may crash between applying a message and storing its
offset. It therefore records the message in the same database transaction that applies it.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, delete, select
from sqlalchemy.schema import CreateTable

from checkback.errors import CheckbackError
from checkback.messages.limits import GROUP_MAX, TOPIC_MAX
from checkback.messages.names import is_group
from checkback.producer.deduplication import fit, insert_once, why_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

_FIX = "begin it anew, with the messages before; in the block do not end it, nor go on after an error that does"


class MessageApply:
    """The table of applied messages; ``table`` is its name. SQLite or PostgreSQL."""

    def __init__(self, table: str = "message_apply") -> None:
        #: for migrations: one row for each message that a consumer group has applied
        self.table = Table(
            table,
            MetaData(),
            Column("consumer_group", String(GROUP_MAX), primary_key=True),
            Column("topic", String(TOPIC_MAX), primary_key=True),
            Column("half_queue_id", Integer, primary_key=True, autoincrement=False),
            Column("half_queue_offset", BigInteger, primary_key=True, autoincrement=False),
            Column("applied_at", DateTime(timezone=True), nullable=False),
        )

    def create_table(self, engine: Engine) -> None:
        """Create the table if it does not exist; call it at deployment."""
        fit(engine.dialect, "MessageApply")
        with engine.begin() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    @contextmanager
    def consumed(
        self, connection: Connection, group: str, topic: str, half_queue_id: int, half_queue_offset: int
    ) -> Iterator[bool]:
        """True if the group has not applied the message before: then apply it in the block, through ``connection``.

        ``group``: who applies it; each group applies each message. ``half_queue_id`` and ``half_queue_offset`` are
        columns of the topic table; together they identify the message.

        The mark is part of the connection's current transaction, and the block a savepoint in it: an exception rolls
        back only the block and the mark. Waits for a concurrent transaction of the group that applies the same
        message. Raises CheckbackError for an invalid group, and at the end of a block in which the transaction was
        ended, by an error perhaps: what it had applied before is undone, too.
        """
        fit(connection.dialect, "consumed")
        if not is_group(group):
            fix = "give the consumer group: letters, digits, _ and -, at most 120"
            raise CheckbackError(f"{group!r} is not a group's name", "consumed", fix)
        columns = self.table.c
        message = {"topic": topic, "half_queue_id": half_queue_id, "half_queue_offset": half_queue_offset}
        row = {"consumer_group": group, **message}
        if not insert_once(connection, self.table, {**row, "applied_at": datetime.now(timezone.utc)}):
            yield False
            return
        where = f"{group}, {topic}, message {half_queue_id}/{half_queue_offset}"
        mark = [columns[name] == value for name, value in row.items()]
        # Savepoint after the mark: SQLite's driver begins the transaction at the first INSERT only, and a savepoint
        # before it would be the transaction.
        try:
            with connection.begin_nested():
                yield True
        except BaseException as error:
            if connection.in_transaction():  # else it is rolled back already
                undone = connection.execute(delete(self.table).where(*mark)).rowcount
                if not undone and isinstance(error, Exception):  # SQLite, by itself
                    raise CheckbackError("an error has rolled back the whole transaction", where, _FIX) from error
            raise
        why = why_lost(lambda: connection.execute(select(columns.topic).where(*mark)).first() is not None)
        if why is not None:
            raise CheckbackError(why, where, _FIX)

    def purge(self, engine: Engine, older_than: timedelta = timedelta(days=7)) -> int:
        """Delete older marks, of all groups; returns their number.

        Keep them longer than a group may fall behind: a message that it reads again without its mark is applied again.
        """
        before = datetime.now(timezone.utc) - older_than
        with engine.begin() as connection:
            return connection.execute(delete(self.table).where(self.table.c.applied_at < before)).rowcount


_DEFAULT = MessageApply()
#: ``MessageApply.consumed`` for the table ``message_apply``
consumed = _DEFAULT.consumed
