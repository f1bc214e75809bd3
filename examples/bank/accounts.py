"""The accounts service: debits accounts in local transactions, and answers checks. A process that may be killed.

Two messages end as the debit does: the transfer, and the debtor's receipt, which is delivered some time later.
`python -m examples.bank.accounts DATABASE GATEWAY PORT SEED COUNT`. After a restart it continues with the
transfers that it has not begun; those already begun are resolved by check-backs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import (
    Column,
    Connection,
    Engine,
    Integer,
    MetaData,
    String,
    Table,
    create_engine,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from checkback.producer import (
    Barrier,
    BarrierError,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    Message,
    SendStatus,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
    check_app,
)
from examples.bank.plan import (
    ACCOUNTS,
    GROUP,
    OPENING,
    RECEIPT_DELAY,
    RECEIPTS,
    TAG,
    TOPIC,
    Fate,
    Transfer,
    transfers,
)

if TYPE_CHECKING:
    from pathlib import Path

#: environment variable with the group's secret
SECRET = "CHECKBACK_DEMO_SECRET"  # noqa: S105 - a name
_THREADS = 4
_AGAIN_S = 0.5

_META = MetaData()
ACCOUNT = Table("account", _META, Column("id", Integer, primary_key=True), Column("balance", Integer, nullable=False))
DEBIT = Table(
    "debit",
    _META,
    Column("transaction_id", String, primary_key=True),
    Column("account", Integer, nullable=False),
    Column("amount", Integer, nullable=False),
)
#: transfers that were begun, whatever their outcome
BEGUN = Table("begun", _META, Column("number", Integer, primary_key=True))


class TooLittleMoneyError(Exception):
    """The account's balance is below the amount."""


def open_books(file: Path | str) -> Engine:
    """The service's database, created if needed."""
    engine = create_engine(f"sqlite:///{file}", connect_args={"timeout": 30})
    _META.create_all(engine)
    Barrier(engine).create_table()
    with engine.begin() as connection:
        if connection.execute(select(func.count()).select_from(ACCOUNT)).scalar_one() == 0:
            connection.execute(insert(ACCOUNT), [{"id": number, "balance": OPENING} for number in range(ACCOUNTS)])
    return engine


@dataclass(frozen=True)
class Order:
    """A transfer, and the half message of its receipt."""

    transfer: Transfer
    receipt: Message


class Debit(TransactionListener):
    """The local transaction: the debit, behind a barrier, so that the answer to a check is final.

    It commits the marks of both messages: whichever is checked first, both end as the debit does.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._barrier = Barrier(engine)

    def execute_local_transaction(self, message: Message, arg: Order) -> LocalTransactionState | None:
        """Debit the amount from the debtor's account."""
        fate = arg.transfer.fate
        if fate is Fate.KILLED_BEFORE:
            _die()
        try:
            with self._barrier.local_transaction(message) as connection:
                self._barrier.mark(connection, arg.receipt)
                _debit(connection, message.transaction_id, arg.transfer)
        except TooLittleMoneyError:
            return self._barrier.check(message)  # ROLLBACK, and marked so
        except BarrierError as error:
            return error.state
        if fate is Fate.KILLED_AFTER:
            _die()
        return LocalTransactionState.UNKNOWN if fate is Fate.SILENT else LocalTransactionState.COMMIT

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """COMMIT if the debit exists; otherwise ROLLBACK, and the barrier prevents a later debit."""
        return self._barrier.check(check)


class Receipt(TransactionListener):
    """The local transaction of a receipt is its transfer, which is sent when the receipt's half message is stored."""

    def __init__(self, debit: Debit, transfers: TransactionProducer) -> None:
        self._debit = debit
        self._transfers = transfers

    def execute_local_transaction(self, message: Message, arg: Transfer) -> LocalTransactionState | None:
        """Send the transfer; the receipt ends as it does."""
        transfer = Message(
            topic=TOPIC,
            body=arg.body(),
            tags=TAG,
            transaction_id=arg.transaction_id,
        )
        return send(self._transfers, transfer, Order(arg, message)).local_transaction_state

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        """As of its transfer."""
        return self._debit.check_local_transaction(check)


def send(producer: TransactionProducer, message: Message, arg: Transfer | Order) -> TransactionSendResult:
    """Send it, again while the gateway is away: with its own transaction id, a message lands once."""
    while (result := producer.send_in_transaction(message, arg)).send_status is SendStatus.NO_ANSWER:
        time.sleep(_AGAIN_S)
    return result


def _debit(connection: Connection, transaction_id: str, transfer: Transfer) -> None:
    enough = (ACCOUNT.c.id == transfer.debtor) & (ACCOUNT.c.balance >= transfer.amount)
    debited = update(ACCOUNT).where(enough).values(balance=ACCOUNT.c.balance - transfer.amount)
    if connection.execute(debited).rowcount == 0:
        raise TooLittleMoneyError
    row = {"transaction_id": transaction_id, "account": transfer.debtor, "amount": transfer.amount}
    connection.execute(insert(DEBIT), row)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _begin(engine: Engine, transfer: Transfer) -> bool:
    """Record that the transfer is begun; False if it was begun before, by an earlier process of the service."""
    try:
        with engine.begin() as connection:
            connection.execute(insert(BEGUN), {"number": transfer.number})
    except IntegrityError:
        return False
    return True


def main(arguments: list[str]) -> int:
    """Answer checks until the process is ended, and send the transfers that are not begun."""
    file, gateway, port, seed, count = arguments
    engine = open_books(file)
    debit = Debit(engine)
    plan = transfers(int(seed), int(count))

    def begin(transfer: Transfer) -> None:
        receipt = Message(topic=RECEIPTS, body=transfer.body(), transaction_id=transfer.receipt_id, delay=RECEIPT_DELAY)
        if _begin(engine, transfer):
            send(receipts, receipt, transfer)

    app = check_app({GROUP: debit}, secret=os.environ[SECRET])
    with (
        CheckServer(app, port=int(port)),
        TransactionProducer(GROUP, gateway, debit) as debits,
        TransactionProducer(GROUP, gateway, Receipt(debit, debits)) as receipts,
    ):
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(begin, plan))
        while True:  # checks may arrive as long as anything is pending
            time.sleep(3600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
