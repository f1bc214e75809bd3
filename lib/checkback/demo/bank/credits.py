"""The credits service: reads the topic table and credits accounts, each message once. A process that may be killed.

`python -m checkback.demo.bank.credits DATABASE TABLE`. It stores no position, only the messages applied: after a
restart it rereads the whole topic, and applies what is new.
"""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
from deltalake import DeltaTable
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, func, insert, select, update

from checkback.demo.bank.plan import ACCOUNTS, TOPIC
from checkback.producer import MessageApply

if TYPE_CHECKING:
    from pathlib import Path

_META = MetaData()
ACCOUNT = Table("account", _META, Column("id", Integer, primary_key=True), Column("balance", Integer, nullable=False))
APPLIED = MessageApply()
_COLUMNS = ["half_queue_id", "half_queue_offset", "body"]
_POLL_S = 0.5


def open_books(file: Path | str) -> Engine:
    """The service's database, created if needed."""
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 30})
    _META.create_all(engine)
    APPLIED.create_table(engine)
    with engine.begin() as connection:
        if connection.execute(select(func.count()).select_from(ACCOUNT)).scalar_one() == 0:
            connection.execute(insert(ACCOUNT), [{"id": number, "balance": 0} for number in range(ACCOUNTS)])
    return engine


def apply(engine: Engine, queue_id: int, offset: int, body: bytes) -> bool:
    """Credit one message, idempotently; False if it was credited before."""
    order = json.loads(body)
    with engine.begin() as connection, APPLIED.consumed(connection, TOPIC, queue_id, offset) as fresh:
        if fresh:
            credited = update(ACCOUNT).where(ACCOUNT.c.id == order["creditor"])
            connection.execute(credited.values(balance=ACCOUNT.c.balance + order["amount"]))
        return fresh


def main(arguments: list[str]) -> int:
    """Credit the topic's messages, until the process is ended."""
    file, place = arguments
    engine = open_books(file)
    version = -1
    while True:
        if DeltaTable.is_deltatable(place) and (table := DeltaTable(place)).version() > version:
            for file in table.file_uris():
                for row in pq.read_table(file, columns=_COLUMNS).to_pylist():
                    apply(engine, row["half_queue_id"], row["half_queue_offset"], row["body"])
            version = table.version()
        time.sleep(_POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
