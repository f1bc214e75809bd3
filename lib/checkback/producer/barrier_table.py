"""The rows of the barrier's table: their keys, what their states say, and the SQL. No connection.

A mark is that of a half message, identified by its place (docs/protocol.md, rule 13): the row "@0/12 order-4711". The
row "order-4711" beside it stands for the whole transaction, which commits at one place only. Transaction ids are a
producer group's own, so the group is part of every key.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import DateTime, bindparam, text

from checkback.errors import CheckbackError
from checkback.producer.listener import LocalTransactionState

if TYPE_CHECKING:
    from sqlalchemy import TextClause

    from checkback.check.wire import CheckRequest
    from checkback.producer.message import Message

    #: what a mark is for: the message of ``execute_local_transaction``, or a check
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
    """The barrier's SQL, for SQLite and PostgreSQL, made once: SQLAlchemy would compile several rows each time anew.

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
