"""The credits service: a PushConsumer that credits accounts, each message once. A process that may be killed.

`python -m examples.bank.credits DATABASE ROOT`. Position and credit are one transaction of its database
(SqlPositions). A message that cannot be credited is tried again, then it is a dead letter.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from datetime import timedelta
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    Table,
    create_engine,
    func,
    insert,
    select,
    update,
)

from checkback.consumer import ConsumeResult, MessageExt, PushConsumer, SqlPositions
from examples.bank.plan import ACCOUNTS, TAG, TOPIC

if TYPE_CHECKING:
    from pathlib import Path

CONSUMER_GROUP = "credits"
#: pauses before the retries of a message, and how many; RocketMQ's levels would take hours
_LEVELS, _RETRIES = (timedelta(milliseconds=200), timedelta(milliseconds=500)), 3
_SESSION_TIMEOUT = timedelta(seconds=3)

_META = MetaData()
ACCOUNT = Table("account", _META, Column("id", Integer, primary_key=True), Column("balance", Integer, nullable=False))
#: the messages that were credited
CREDIT = Table(
    "credit", _META, Column("half_queue_offset", Integer), Column("amount", Integer), Column("account", Integer)
)


class ClosedAccountError(Exception):
    """There is no such account."""


def open_books(file: Path | str) -> Engine:
    """The service's database, created if needed."""
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 30})
    _META.create_all(engine)
    SqlPositions(engine).create_table()
    with engine.begin() as connection:
        if connection.execute(select(func.count()).select_from(ACCOUNT)).scalar_one() == 0:
            connection.execute(insert(ACCOUNT), [{"id": number, "balance": 0} for number in range(ACCOUNTS)])
    return engine


def credit(message: MessageExt, connection: Connection) -> ConsumeResult:
    """Credit one message, in the transaction that keeps the position. Raises ClosedAccountError."""
    order = json.loads(message.body)
    credited = update(ACCOUNT).where(ACCOUNT.c.id == order["creditor"])
    if connection.execute(credited.values(balance=ACCOUNT.c.balance + order["amount"])).rowcount == 0:
        raise ClosedAccountError
    row = {"half_queue_offset": message.half_queue_offset, "amount": order["amount"], "account": order["creditor"]}
    connection.execute(insert(CREDIT), row)
    return ConsumeResult.SUCCESS


def main(arguments: list[str]) -> int:
    """Credit the topic's messages, until the process is ended."""
    file, root = arguments
    consumer = PushConsumer(
        CONSUMER_GROUP,
        root,
        credit,
        positions=SqlPositions(open_books(file)),
        threads=4,
        session_timeout=_SESSION_TIMEOUT,
        retry_levels=_LEVELS,
        max_reconsume_times=_RETRIES,
    )
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    with consumer.subscribe(TOPIC, TAG):
        ended.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
