"""Both services' databases and Checkback's tables, read from outside, for progress and for the final balance."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkback.storage.files import table_files
from checkback.storage.files.object_store import options_of
from checkback.storage.log.delta_log import DeltaLog
from examples.bank.plan import ACCOUNTS, OPENING, RECEIPT_DELAY, RECEIPTS, Transfer


@dataclass(frozen=True)
class Books:
    """State of both services, and Checkback's decisions.

    ``decisions``: those of transfers; ``receipts``: when each was committed; ``delivered``: when each row of their
    topic was. ``in_vain``: most unanswered checks of one transaction; ``dead``: the amounts in `dead_letters`.
    ``with_receipts``: the accounts service sends them. ``sent``: transfer -> transaction id of its message.
    """

    begun: int
    debits: dict[str, int]
    debtors: int
    creditors: int
    credited: int
    landed: int
    decisions: dict[str, tuple[str, str, int]]
    checks: int
    in_vain: int = 0
    dead: tuple[int, ...] = ()
    decided: int = 0
    receipts: dict[str, datetime] = field(default_factory=dict)
    delivered: tuple[tuple[str, datetime], ...] = ()
    with_receipts: bool = True
    sent: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, root: Path, place: str, with_receipts: bool = True) -> Books:
        """The current state. ``root``: the databases' folder; ``place``: that of the tables, or its URI."""
        accounts, credits_ = root / "accounts.db", root / "credits.db"
        # First, so that what is delivered has a decision below.
        delivered = _rows(f"{place}/topics/{RECEIPTS}", "transaction_id", "published_at")
        names = ("transaction_id", "real_topic", "state", "source", "check_times", "decided_at")
        rows = _rows(f"{place}/decisions", *names)
        transfers = [row for row in rows if row["real_topic"] != RECEIPTS]
        receipts = [row for row in rows if row["real_topic"] == RECEIPTS and row["state"] == "COMMIT"]
        answers = _rows(f"{place}/check_answers", "outcome", "check_times")
        halves = _rows(f"{place}/half", "transaction_id", "keys")
        debits = dict(_all(accounts, "SELECT transaction_id, amount FROM debit"))
        return cls(
            begun=_one(accounts, "SELECT count(*) FROM begun"),
            debits=debits,
            debtors=_one(accounts, "SELECT sum(balance) FROM account"),
            creditors=_one(credits_, "SELECT sum(balance) FROM account"),
            credited=_one(credits_, "SELECT count(*) FROM credit"),
            landed=len(halves),
            decisions={row["transaction_id"]: (row["state"], row["source"], row["check_times"]) for row in transfers},
            checks=len(_rows(f"{place}/check_requests", "queue_offset")),
            dead=tuple(json.loads(row["body"])["amount"] for row in _rows(f"{place}/dead_letters", "body")),
            decided=len(rows),
            receipts={row["transaction_id"]: row["decided_at"] for row in receipts},
            delivered=tuple((row["transaction_id"], row["published_at"]) for row in delivered),
            with_receipts=with_receipts,
            sent=_sent(halves, debits),
            in_vain=max((row["check_times"] for row in answers if row["outcome"] == "NO_ANSWER"), default=0),
        )

    @property
    def states(self) -> Counter[str]:
        """Decisions about transfers by state."""
        return Counter(state for state, _, _ in self.decisions.values())

    @property
    def pending(self) -> int:
        """Number of transactions that have landed and are not decided: transfers and receipts."""
        return self.landed - self.decided

    def finished(self, transfers: int) -> bool:
        """Whether every transfer is begun, every transaction decided, and what was committed is consumed.

        A transfer is credited or dead, a receipt delivered.
        """
        credited = self.credited + len(self.dead) == self.states["COMMIT"]
        decided = self.begun == transfers and self.pending == 0
        return decided and credited and len(self.delivered) >= len(self.receipts)

    def faults(self) -> list[str]:
        """Inconsistencies, in words; empty if the books balance."""
        found = []
        total = ACCOUNTS * OPENING
        dead = sum(self.dead)
        if self.debtors + self.creditors + dead != total:
            found.append(f"{self.debtors} + {self.creditors} + {dead} is not {total}: money was lost or made")
        committed = {name for name, (state, _, _) in self.decisions.items() if state == "COMMIT"}
        if lost := sorted(set(self.debits) - committed):
            found.append(f"debited and not committed: {', '.join(lost)}")
        if made := sorted(committed - set(self.debits)):
            found.append(f"committed and not debited: {', '.join(made)}")
        if sum(self.debits.values()) != self.creditors + dead:
            found.append(f"{sum(self.debits.values())} was debited, {self.creditors} credited and {dead} is dead")
        return [*found, *self.faults_of_receipts()]

    def decision(self, transfer: Transfer) -> tuple[str, str, int] | None:
        """Of a transfer: state, source and checks; None if no message of it has landed."""
        return self.decisions.get(self.sent.get(transfer.transaction_id, transfer.transaction_id))

    def faults_of_receipts(self) -> list[str]:
        """Each debit has one receipt, delivered once and not before its time; without a debit there is none."""
        found = []
        debited = {name.replace("transfer", "receipt") for name in self.debits if self.with_receipts}
        times = Counter(name for name, _ in self.delivered)
        if missing := sorted(debited - set(times)):
            found.append(f"debited, and no receipt: {', '.join(missing)}")
        if unfounded := sorted(set(times) - debited):
            found.append(f"receipts without a debit: {', '.join(unfounded)}")
        if again := sorted(name for name, number in times.items() if number > 1):
            found.append(f"receipts delivered twice: {', '.join(again)}")
        if early := sorted(
            name for name, at in self.delivered if name in self.receipts and at < self.receipts[name] + RECEIPT_DELAY
        ):
            found.append(f"receipts delivered before their time: {', '.join(early)}")
        return found

    def line(self, transfers: int) -> str:
        """One line of progress."""
        states = self.states
        return (
            f"[bold]{self.begun:4}[/] of {transfers} begun  [bold]{self.pending:3}[/] pending  "
            f"[green]{states['COMMIT']:4}[/] committed  [yellow]{states['ROLLBACK']:3}[/] rolled back  "
            f"[red]{states['DISCARD']:3}[/] discarded  [cyan]{self.checks:4}[/] checks sent  "
            f"[green]{self.credited:4}[/] credited  [red]{len(self.dead)}[/] dead  "
            f"[green]{len(self.delivered):4}[/] receipts"
        )


def _sent(halves: list[dict[str, Any]], debits: dict[str, int]) -> dict[str, str]:
    """Transfer -> transaction id, where RocketMQ's client made it: the one with the debit, if it sent several."""
    in_order = sorted(halves, key=lambda row: row["transaction_id"] in debits)
    return {row["keys"]: row["transaction_id"] for row in in_order if row["keys"]}


def _rows(place: str, *columns: str) -> list[dict[str, Any]]:
    if not DeltaLog.exists(place):
        return []
    # Not to_pyarrow_table: its reader threads call Python, and abort a process that exits (apache/arrow#34314).
    files = DeltaTable(place, storage_options=options_of(place) or None).file_uris()
    return [row for file in files for row in pq.read_table(table_files.source(file), columns=list(columns)).to_pylist()]


def _all(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        return connection.execute(query).fetchall()


def _one(file: Path, query: str) -> int:
    return int(_all(file, query)[0][0] or 0)
