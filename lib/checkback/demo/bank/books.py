"""Both services' databases and Checkback's tables, read from outside, for progress and for the final balance."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable

from checkback.demo.bank.plan import ACCOUNTS, OPENING


@dataclass(frozen=True)
class Books:
    """State of both services, and Checkback's decisions.

    ``in_vain``: most unanswered checks of one transaction; ``dead``: the amounts in `dead_letters`.
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

    @classmethod
    def read(cls, root: Path) -> Books:
        """The current state."""
        accounts, credits_ = root / "accounts.db", root / "credits.db"
        rows = _rows(root / "data" / "decisions", "transaction_id", "state", "source", "check_times")
        answers = _rows(root / "data" / "check_answers", "outcome", "check_times")
        return cls(
            begun=_one(accounts, "SELECT count(*) FROM begun"),
            debits=dict(_all(accounts, "SELECT transaction_id, amount FROM debit")),
            debtors=_one(accounts, "SELECT sum(balance) FROM account"),
            creditors=_one(credits_, "SELECT sum(balance) FROM account"),
            credited=_one(credits_, "SELECT count(*) FROM credit"),
            landed=len(_rows(root / "data" / "half", "queue_offset")),
            decisions={row["transaction_id"]: (row["state"], row["source"], row["check_times"]) for row in rows},
            checks=len(_rows(root / "data" / "check_requests", "queue_offset")),
            dead=tuple(json.loads(row["body"])["amount"] for row in _rows(root / "data" / "dead_letters", "body")),
            in_vain=max((row["check_times"] for row in answers if row["outcome"] == "NO_ANSWER"), default=0),
        )

    @property
    def states(self) -> Counter[str]:
        """Decisions by state."""
        return Counter(state for state, _, _ in self.decisions.values())

    @property
    def pending(self) -> int:
        """Number of transactions that have landed and are not decided."""
        return self.landed - len(self.decisions)

    def finished(self, transfers: int) -> bool:
        """Whether every transfer is begun, every transaction decided, and every committed one credited or dead."""
        consumed = self.credited + len(self.dead)
        return self.begun == transfers and self.pending == 0 and consumed == self.states["COMMIT"]

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
        return found

    def line(self, transfers: int) -> str:
        """One line of progress."""
        states = self.states
        return (
            f"[bold]{self.begun:4}[/] of {transfers} begun  [bold]{self.pending:3}[/] pending  "
            f"[green]{states['COMMIT']:4}[/] committed  [yellow]{states['ROLLBACK']:3}[/] rolled back  "
            f"[red]{states['DISCARD']:3}[/] discarded  [cyan]{self.checks:4}[/] checks sent  "
            f"[green]{self.credited:4}[/] credited  [red]{len(self.dead)}[/] dead"
        )


def _rows(place: Path, *columns: str) -> list[dict[str, Any]]:
    if not DeltaTable.is_deltatable(str(place)):
        return []
    # Not to_pyarrow_table: its reader threads call Python, and abort a process that exits (apache/arrow#34314).
    files = DeltaTable(str(place)).file_uris()
    rows: list[dict[str, Any]] = pq.read_table(files, columns=list(columns)).to_pylist() if files else []
    return rows


def _all(file: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(file, timeout=30)) as connection:
        return connection.execute(query).fetchall()


def _one(file: Path, query: str) -> int:
    return int(_all(file, query)[0][0] or 0)
