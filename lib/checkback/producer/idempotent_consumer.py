"""An idempotent consumer: each message of a topic is applied once, however often it is read.

A topic table has each committed message once, but a consumer may crash between applying a message and storing its
offset. It therefore records the message in the same database transaction that applies it.
"""

from __future__ import annotations

from contextlib import contextmanager
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, Column, DateTime, Integer, MetaData, String, Table, delete, select
from sqlalchemy.schema import CreateTable

from checkback.errors import CheckbackError
from checkback.messages.limits import TOPIC_MAX
from checkback.producer.deduplication import fit, insert_once, why_lost

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

_FIX = "begin it anew, with the messages before; in the block do not end it, nor go on after an error that does"


class MessageApply:
    """The table of applied messages; ``table`` is its name. SQLite or PostgreSQL."""

    def __init__(self, table: str = "message_apply") -> None:
        #: for migrations: one row for each message
        self.table = Table(
            table,
            MetaData(),
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
        self, connection: Connection, topic: str, half_queue_id: int, half_queue_offset: int
    ) -> Iterator[bool]:
        """True if the message was not applied before: then apply it in the block, through ``connection``.

        ``half_queue_id`` and ``half_queue_offset`` are columns of the topic table; together they identify the message.
        The mark is part of the connection's current transaction, and the block a savepoint in it: an exception rolls
        back only the block and the mark. Waits for a concurrent transaction that applies the same message. Raises
        CheckbackError at the end of a block in which the transaction was ended, by an error perhaps: what it had
        applied before is undone, too.
        """
        fit(connection.dialect, "consumed")
        columns = self.table.c
        row = {"topic": topic, "half_queue_id": half_queue_id, "half_queue_offset": half_queue_offset}
        if not insert_once(connection, self.table, {**row, "applied_at": datetime.now(timezone.utc)}):
            yield False
            return
        where = f"{topic}, message {half_queue_id}/{half_queue_offset}"
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


_DEFAULT = MessageApply()
#: ``MessageApply.consumed`` for the table ``message_apply``
consumed = _DEFAULT.consumed
