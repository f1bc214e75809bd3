"""The rows of the barrier's table: their keys, what their states say, and the SQL. No connection.

A mark is that of a half message, identified by its place (docs/protocol.md, rule 13): the row "@0/12 order-4711". The
row "order-4711" beside it stands for the whole transaction, which commits at one place only. With the state COMMIT or
ROLLBACK it is the mark of the bare transaction id, as made by the release before and by services with one gateway:
either kind of mark excludes the other. Transaction ids are a producer group's own, so the group is part of every key.
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

    #: what a mark is for: the message of ``execute_local_transaction``, a check, or a bare transaction id
    Transaction = Message | CheckRequest | str

#: state of the transaction's row where its marks have places: committed at one of them; so far only checked
PLACED, CHECKED = "PLACED", "CHECKED"
#: what the mark of a place begins with
_PLACE = re.compile(r"@[0-9]+/[0-9]+ ")
#: longest transaction id, in characters, that the mark of a place has unhashed
_WHOLE = 900


class MarkKey(NamedTuple):
    """The keys of a transaction's marks. ``place``: None for a bare transaction id."""

    group: str
    whole: str
    place: str | None

    @classmethod
    def of(cls, transaction: Transaction, producer_group: str | None = None) -> MarkKey:
        """``producer_group``: whose a bare transaction id is; a message and a check know theirs.

        Raises CheckbackError for a message without a place or of another group, for an id without a group, and for an
        id that could be the mark of a place.
        """
        whole = transaction if isinstance(transaction, str) else transaction.transaction_id
        if _PLACE.match(whole):
            raise CheckbackError("begins as the mark of a half message does", f"transaction {whole}", "use another id")
        if isinstance(transaction, str):
            if not producer_group:
                fix = "give producer_group, or the message or check in place of the id"
                what = "ids are unique in their producer group only, which is not given"
                raise CheckbackError(what, f"transaction {whole}", fix)
            return cls(producer_group, whole, None)
        group = transaction.producer_group
        if transaction.place is None or not group:
            fix = "give the barrier the message that execute_local_transaction was given"
            raise CheckbackError(
                "the message has no queue_id, queue_offset and producer_group", f"transaction {whole}", fix
            )
        if producer_group not in (None, group):
            raise CheckbackError(f"it is of the group {group}", f"transaction {whole}", f"do not give {producer_group}")
        queue_id, queue_offset = transaction.place
        # The column is 1,024 characters long, as an id may be. Hashes need not differ: a place has one transaction.
        name = whole if len(whole) <= _WHOLE else sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
        return cls(group, whole, f"@{queue_id}/{queue_offset} {name}")

    @property
    def rows(self) -> int:
        """The number of rows."""
        return 1 if self.place is None else 2

    def values(self) -> dict[str, str]:
        """The parameters of a statement that inserts them."""
        return {"group": self.group, "whole": self.whole} | ({} if self.place is None else {"place": self.place})


class MarkStates(NamedTuple):
    """The states of both rows."""

    whole: str
    place: str | None

    @property
    def state(self) -> LocalTransactionState:
        """The state of the half message: a mark of the bare transaction id holds for all of them."""
        if self.whole not in (PLACED, CHECKED):
            return LocalTransactionState(self.whole)
        if self.place is None:
            return LocalTransactionState.COMMIT if self.whole == PLACED else LocalTransactionState.ROLLBACK
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
    mark_place: TextClause
    check: TextClause
    check_place: TextClause
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
            mark=insert(f"{into} (:group, :whole, 'COMMIT', :now) {conflict} NOTHING"),
            mark_place=insert(
                f"{into} (:group, :whole, '{PLACED}', :now), (:group, :place, 'COMMIT', :now) {conflict} {update}"
            ),
            check=insert(f"{into} (:group, :whole, 'ROLLBACK', :now) {conflict} {update}"),
            check_place=insert(
                f"{into} (:group, :whole, '{CHECKED}', :now), (:group, :place, 'ROLLBACK', :now) {conflict} NOTHING"
            ),
            states=text(select),
            undo=text(undo),
        )
