"""An idempotent consumer: each message of a topic is applied once, however often it is read.

A topic table has each committed message once, but a consumer may crash between applying a message and storing its
offset. It therefore records the message in the same database transaction that applies it.

A mark is kept by the half message's place, which another lake has, too, and so has one that was recreated or restored.
It therefore says when the message was born, which `land`, `reconcile`, `rebuild` and a restore leave as it is.
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
from checkback.producer.listener import logger

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection, Engine

_OTHER_FIX = "give each lake a table of its own, MessageApply(table); of a lake that is gone purge the marks"
_FIX = "begin it again, with the earlier messages; do not end it in the block, nor continue after an error that ends it"


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
            Column("born_timestamp", BigInteger, nullable=False),
            Column("applied_at", DateTime(timezone=True), nullable=False),
        )

    def create_table(self, engine: Engine) -> None:
        """Create the table if it does not exist; call it at deployment."""
        fit(engine.dialect, "MessageApply")
        with engine.begin() as connection:
            connection.execute(CreateTable(self.table, if_not_exists=True))

    @contextmanager
    def idempotent(
        self,
        connection: Connection,
        group: str,
        topic: str,
        half_queue_id: int,
        half_queue_offset: int,
        born_timestamp: int | datetime,
    ) -> Iterator[bool]:
        """True if the group has not applied the message before: then apply it in the block, through ``connection``.

        ``group``: who applies it; each group applies each message. The others are columns of the topic table;
        ``half_queue_id`` and ``half_queue_offset`` identify the message in its lake. ``born_timestamp``: ms, as
        MessageExt has it, or a datetime; without a time zone it is local time, as in Spark's rows.

        The mark is part of the connection's current transaction, and the block a savepoint in it: an exception rolls
        back only the block and the mark. Waits for a concurrent transaction of the group that applies the same
        message. Raises CheckbackError for an invalid group, if the mark says another born time, and at the end of a
        block in which the transaction was ended, by an error perhaps: what it had applied before is undone, too.
        """
        fit(connection.dialect, "idempotent")
        if not is_group(group):
            fix = "give the consumer group: letters, digits, _ and -, at most 120"
            raise CheckbackError(f"{group!r} is not a group's name", "idempotent", fix)
        columns = self.table.c
        # Of pandas they may be NumPy's, which SQLite stores as other keys than the same numbers of Python.
        place = {"half_queue_id": int(half_queue_id), "half_queue_offset": int(half_queue_offset)}
        message = {"topic": topic, **place}
        row = {"consumer_group": group, **message}
        where = f"{group}, {topic}, message {half_queue_id}/{half_queue_offset}"
        mark = [columns[name] == value for name, value in row.items()]
        born = round(born_timestamp.timestamp() * 1000) if isinstance(born_timestamp, datetime) else int(born_timestamp)
        values = {**row, "born_timestamp": born, "applied_at": datetime.now(timezone.utc)}
        if not insert_once(connection, self.table, values):
            if connection.execute(select(columns.born_timestamp).where(*mark)).scalar() not in (None, born):
                what = f"table {self.table.name} has the mark of another message at this place, of another lake or a "
                other = CheckbackError(f"{what}restored one", where, _OTHER_FIX)
                logger.error("%s", other)  # a consumer logs a listener's error without its text
                raise other
            yield False
            return
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
#: ``MessageApply.idempotent`` for the table ``message_apply``
idempotent = _DEFAULT.idempotent
