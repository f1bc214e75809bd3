"""The shop: takes orders, each with its row in the outbox, in one local transaction."""

from __future__ import annotations

import json
from random import Random

import psycopg

ACCOUNTS, OPENING = 8, 10_000
TOPIC = "orders"
#: Columns of Debezium's outbox event router; ``transaction`` orders rows as they become visible.
_TABLES = """
CREATE TABLE account (id TEXT PRIMARY KEY, balance BIGINT NOT NULL);
CREATE TABLE outbox (
    id TEXT PRIMARY KEY, aggregatetype TEXT NOT NULL, aggregateid TEXT NOT NULL, type TEXT NOT NULL,
    payload TEXT NOT NULL, "timestamp" TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    seq BIGSERIAL, transaction XID8 NOT NULL DEFAULT pg_current_xact_id()
);
"""


def create(url: str) -> None:
    """The shop's tables, and its accounts."""
    with psycopg.connect(url) as database:
        database.execute(_TABLES)
        for number in range(ACCOUNTS):
            database.execute("INSERT INTO account VALUES (%s, %s)", (f"account-{number}", OPENING))


def sell(url: str, first: int, count: int) -> None:
    """Take ``count`` orders from number ``first`` on; each fifth is rolled back, with its row in the outbox."""
    random = Random(first)
    with psycopg.connect(url) as database:
        for number in range(first, first + count):
            account, amount = f"account-{random.randrange(ACCOUNTS)}", random.randrange(1, 20)
            _sell(database, f"order-{number}", account, amount)
            if number % 5:
                database.commit()
            else:
                database.rollback()


def _sell(database: psycopg.Connection, key: str, account: str, amount: int) -> None:
    payload = json.dumps({"account": account, "amount": amount})
    database.execute("UPDATE account SET balance = balance - %s WHERE id = %s", (amount, account))
    database.execute(
        "INSERT INTO outbox (id, aggregatetype, aggregateid, type, payload) VALUES (%s, %s, %s, 'created', %s)",
        (key, TOPIC, account, payload),
    )
