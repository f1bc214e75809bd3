"""Shared by the barrier and the idempotent consumer: unique marks in a business database, with SQLAlchemy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy.dialects import postgresql, sqlite

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Connection, Dialect, Table

DIALECTS = ("sqlite", "postgresql")


def fit(dialect: Dialect, where: str) -> None:
    """Raise CheckbackError for an unsupported database."""
    if dialect.name not in DIALECTS:
        raise CheckbackError(f"{dialect.name} is not supported", where, "use SQLite or PostgreSQL")


def insert_once(connection: Connection, table: Table, values: dict[str, Any]) -> bool:
    """True if the row was inserted; False if its key exists, committed or inserted by this transaction.

    Waits for an uncommitted transaction that inserted the key: PostgreSQL for the row, SQLite for the database's write
    lock. Raises CheckbackError in autocommit mode, where a mark would outlive its transaction.
    """
    refuse_autocommit(connection, table.name)
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    statement = insert(table).values(values).on_conflict_do_nothing(index_elements=table.primary_key.columns)
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
