"""The example of two services: their local transactions, and the books after a run with kills."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select

from checkback.consumer import ConsumeResult, MessageExt
from checkback.producer import CheckRequest, LocalTransactionState, Message
from examples.bank.accounts import ACCOUNT as DEBITED
from examples.bank.accounts import Debit, Order
from examples.bank.accounts import open_books as open_debits
from examples.bank.books import Books
from examples.bank.credits import ACCOUNT as CREDITED
from examples.bank.credits import ClosedAccountError, credit
from examples.bank.credits import open_books as open_credits
from examples.bank.plan import (
    ACCOUNTS,
    CLOSED_ACCOUNT,
    GROUP,
    OPENING,
    RECEIPT_DELAY,
    RECEIPTS,
    TOPIC,
    Fate,
    Transfer,
    transfers,
)
from examples.bank.run import IN_VAIN, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COUNT = 40
_SEND = Message(topic=TOPIC, body=b"", transaction_id="transfer-1").stored_at(0, 0, GROUP)
_RECEIPT = Message(topic=RECEIPTS, body=b"", transaction_id="receipt-1").stored_at(0, 1, GROUP)
_T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def _check(message: Message) -> CheckRequest:
    assert message.place is not None
    return CheckRequest(*message.place, message.transaction_id, GROUP, message.topic, 1, 0)


def _order(amount: int) -> Order:
    return Order(_transfer(amount), _RECEIPT)


def _transfer(amount: int, fate: Fate = Fate.PLAIN) -> Transfer:
    return Transfer(number=1, debtor=3, creditor=4, amount=amount, fate=fate)


@given(st.integers(), st.integers(20, 300))
def test_plan_is_the_seeds_and_has_every_trouble(seed: int, count: int) -> None:
    """The same for the same seed: a run can be done again."""
    plan = transfers(seed, count)
    assert plan == transfers(seed, count)
    assert [transfer.number for transfer in plan] == list(range(count))
    assert {transfer.fate for transfer in plan} == set(Fate)


def test_debit_commits_once_and_says_so_when_asked(tmp_path: Path) -> None:
    """Run again, it changes nothing."""
    engine = open_debits(tmp_path / "a.db")
    listener = Debit(engine)
    for _ in range(2):
        assert listener.execute_local_transaction(_SEND, _order(10)) is LocalTransactionState.COMMIT
    for message in (_SEND, _RECEIPT):
        assert listener.check_local_transaction(_check(message)) is LocalTransactionState.COMMIT
    with engine.connect() as connection:
        total = connection.execute(select(func.sum(DEBITED.c.balance))).scalar_one()
    assert total == ACCOUNTS * OPENING - 10


@pytest.mark.parametrize("amount", [OPENING + 1])
def test_debit_without_money_rolls_back(tmp_path: Path, amount: int) -> None:
    """And stays so."""
    listener = Debit(open_debits(tmp_path / "a.db"))
    assert listener.execute_local_transaction(_SEND, _order(amount)) is LocalTransactionState.ROLLBACK
    assert listener.check_local_transaction(_check(_SEND)) is LocalTransactionState.ROLLBACK


@pytest.mark.parametrize("checked", [_SEND, _RECEIPT], ids=["transfer", "receipt"])
def test_debit_cannot_be_made_after_a_check_was_told_rollback(tmp_path: Path, checked: Message) -> None:
    """The barrier: the answer holds for ever, for both messages."""
    listener = Debit(open_debits(tmp_path / "a.db"))
    assert listener.check_local_transaction(_check(checked)) is LocalTransactionState.ROLLBACK
    assert listener.execute_local_transaction(_SEND, _order(10)) is LocalTransactionState.ROLLBACK


def test_a_credit_to_a_closed_account_is_refused(tmp_path: Path) -> None:
    """And changes nothing."""
    engine = open_credits(tmp_path / "c.db")
    open_account, closed = _transfer(10), replace(_transfer(7), creditor=CLOSED_ACCOUNT)
    with engine.begin() as connection:
        assert credit(_message(open_account), connection) is ConsumeResult.SUCCESS
    with engine.begin() as connection, pytest.raises(ClosedAccountError):
        credit(_message(closed), connection)
    with engine.connect() as connection:
        assert connection.execute(select(func.sum(CREDITED.c.balance))).scalar_one() == 10


def _message(transfer: Transfer) -> MessageExt:
    return MessageExt(TOPIC, 0, None, None, None, None, {}, transfer.body(), 0, 0, 7, 0, 0)


def test_faults_of_the_books_are_named() -> None:
    """Money lost, a debit that was not published, a message without a debit, receipts that are wrong."""
    books = Books(2, {"a": 5}, ACCOUNTS * OPENING - 5, 3, 1, 2, {"b": ("COMMIT", "producer", 0)}, 0)
    books = replace(books, receipts={"c": _T0}, delivered=(("c", _T0), ("c", _T0 + RECEIPT_DELAY)))
    assert [fault.split(":")[0] for fault in books.faults()] == [
        f"{ACCOUNTS * OPENING - 5} + 3 + 0 is not {ACCOUNTS * OPENING}",
        "debited and not committed",
        "committed and not debited",
        "5 was debited, 3 credited and 0 is dead",
        "debited, and no receipt",
        "receipts without a debit",
        "receipts delivered twice",
        "receipts delivered before their time",
    ]


def test_books_balance_after_a_run_with_kills(spark: SparkSession, tmp_path: Path) -> None:
    """Gateway, producer and consumer are killed; each transfer is made whole or not at all."""
    seed = Random().randrange(10**6)
    print(f"seed {seed}; logs in {tmp_path}")
    outcome = run(tmp_path, _COUNT, seed, lambda _: spark, print)
    books = outcome.books
    assert books.faults() == []
    assert books.finished(_COUNT)
    assert books.in_vain >= IN_VAIN  # the outage that notebooks/incident.ipynb tells
    assert all(outcome.deaths[name] for name in ("gateway", "accounts", "credits")), outcome.deaths
    closed = [transfer for transfer in transfers(seed, _COUNT) if transfer.fate is Fate.CLOSED]
    assert list(books.dead) == [each.amount for each in closed if each.transaction_id in books.debits]
    for transfer in transfers(seed, _COUNT):
        if transfer.transaction_id not in books.decisions:
            continue  # killed before its half message was sent
        state, source, _ = books.decisions[transfer.transaction_id]
        if transfer.fate is Fate.POOR:
            assert state == "ROLLBACK"
        if transfer.fate is Fate.KILLED_BEFORE:
            assert (state, source) == ("ROLLBACK", "check")
        if transfer.fate in (Fate.KILLED_AFTER, Fate.SILENT):
            assert source == "check"
        assert (state == "COMMIT") == (transfer.transaction_id in books.debits)


def test_books_balance_with_accounts_in_java(spark: SparkSession, tmp_path: Path, java: list[str]) -> None:
    """RocketMQ's own client, and the same kills."""
    seed = Random().randrange(10**6)
    print(f"seed {seed}; logs in {tmp_path}")
    outcome = run(tmp_path, _COUNT, seed, lambda _: spark, print, java=True)
    books = outcome.books
    assert books.faults() == []
    assert books.finished(_COUNT)
    assert all(outcome.deaths[name] for name in ("gateway", "accounts", "credits")), outcome.deaths
    ends = {fate: [books.decision(one) for one in transfers(seed, _COUNT) if one.fate is fate] for fate in Fate}
    states = {fate: {end[0] for end in found if end is not None} for fate, found in ends.items()}
    assert states[Fate.POOR] <= {"ROLLBACK"}
    assert states[Fate.KILLED_BEFORE] <= {"ROLLBACK"}
    assert "COMMIT" in states[Fate.PLAIN]
