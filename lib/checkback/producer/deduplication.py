"""Shared by the barrier and the idempotent consumer: unique marks in a business database, with SQLAlchemy."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import inspect
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError
from sqlalchemy.schema import CreateTable

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import Connection, Dialect, Table

DIALECTS = ("sqlite", "postgresql")
#: PostgreSQL: undefined_column, invalid_column_reference; and how SQLite, which has no codes for them, says the same
_PG_OTHER_KEY = frozenset({"42703", "42P10"})
_SQLITE_OTHER_KEY = ("has no column named", "no such column", "ON CONFLICT clause does not match")


def fit(dialect: Dialect, where: str) -> None:
    """Raise CheckbackError for an unsupported database."""
    if dialect.name not in DIALECTS:
        raise CheckbackError(f"{dialect.name} is not supported", where, "use SQLite or PostgreSQL")


def create_once(connection: Connection, table: Table) -> None:
    """Create the table if it does not exist. Raises CheckbackError for an existing one with another key."""
    connection.execute(CreateTable(table, if_not_exists=True))
    key = inspect(connection).get_pk_constraint(table.name)["constrained_columns"]
    if set(key) != set(table.primary_key.columns.keys()):
        raise _other_key(table)


@contextmanager
def keyed(table: Table) -> Iterator[None]:
    """A database's error that tells of another key than the table's becomes a CheckbackError."""
    try:
        yield
    except DBAPIError as error:
        code, told = getattr(error.orig, "sqlstate", None), str(error.orig)
        if code not in _PG_OTHER_KEY and not any(text in told for text in _SQLITE_OTHER_KEY):
            raise
        raise _other_key(table) from error


def _other_key(table: Table) -> CheckbackError:
    key = ", ".join(table.primary_key.columns.keys())
    return CheckbackError(
        f"its primary key is not ({key}): an earlier release has created it",
        f"table {table.name}",
        "rename or drop it, and create it again",
    )


def insert_once(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """True if the row was inserted; False if its key exists, committed or inserted by this transaction.

    Waits for an uncommitted transaction that inserted the key: PostgreSQL for the row, SQLite for the database's write
    lock. Raises CheckbackError in autocommit mode, where a mark would outlive its transaction, and for a table with
    another key.
    """
    refuse_autocommit(connection, table.name)
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(values).on_conflict_do_nothing(index_elements=table.primary_key.columns)
    with keyed(table):
        return connection.execute(statement, execution_options={"preserve_rowcount": True}).rowcount == 1


def why_lost(written: Callable[[], bool]) -> str | None:
    """Why a block's transaction no longer has what was written at its beginning; None: it still has it.

    ``written``: looks for it through the block's connection. A COMMIT would not tell: that of a transaction which an
    error has aborted is a ROLLBACK without an error in PostgreSQL, and SQLite ends a transaction by itself.
    """
    try:
        return None if written() else "its transaction was rolled back"
    except Exception:  # noqa: BLE001 - the driver's or SQLAlchemy's; it names the consequence, not the cause
        return "its transaction was ended, or aborted by an error"


def refuse_autocommit(connection: Connection, where: str) -> None:
    """Raise CheckbackError in autocommit mode."""
    if _autocommits(connection):
        raise CheckbackError(
            "the connection commits by itself", where, "use one with transactions, not isolation_level=AUTOCOMMIT"
        )


def _autocommits(connection: Connection) -> bool:
    adapter: Any = connection.connection.dbapi_connection
    if connection.dialect.name == "sqlite":
        driver: Any = connection.connection.driver_connection  # asyncio's adapter has no in_transaction
        # isolation_level None with an explicit BEGIN, SQLAlchemy's recipe for savepoints, does have a transaction.
        own = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
        return own and not driver.in_transaction
    return getattr(adapter, "autocommit", False) is True
