"""Output of the demonstration: counts while it runs, and at the end how each transaction was decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F
from rich.console import Console, Group
from rich.table import Table

from checkback.errors import StorageError

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from checkback.storage.tables import Tables

_COLOUR = {"COMMIT": "green", "ROLLBACK": "yellow", "DISCARD": "red"}


@dataclass(frozen=True)
class Progress:
    """Transactions and checks so far."""

    pending: int
    committed: int
    rolled_back: int
    discarded: int
    checks: int

    @classmethod
    def read(cls, spark: SparkSession, tables: Tables, transactions: int) -> Progress:
        """From the current tables."""
        states = tables.read(spark, "decisions").groupBy("state").count().collect()
        by_state = {row["state"]: row["count"] for row in states}
        return cls(
            pending=transactions - sum(by_state.values()),
            committed=by_state.get("COMMIT", 0),
            rolled_back=by_state.get("ROLLBACK", 0),
            discarded=by_state.get("DISCARD", 0),
            checks=tables.read(spark, "check_requests").count(),
        )

    def line(self) -> str:
        """One line for display."""
        return (
            f"[bold]{self.pending:4}[/] pending  [green]{self.committed:4}[/] committed  "
            f"[yellow]{self.rolled_back:4}[/] rolled back  [cyan]{self.checks:5}[/] checks sent  "
            f"[red]{self.discarded:4}[/] discarded"
        )


def decisions(spark: SparkSession, tables: Tables) -> list[Row]:
    """The rows of `decisions`, in queue order."""
    return tables.read(spark, "decisions").orderBy("queue_id", "queue_offset").collect()


def show(console: Console, rows: list[Row], labels: dict[str, str], published: dict[str, int]) -> None:
    """The tables of outcomes: each transaction, then the totals."""
    each = Table("offset", "script of the producer", "group", "topic", "decision", "by", "checks", box=None)
    for row in rows:
        state = f"[{_COLOUR[row['state']]}]{row['state']}[/]" + (f" {row['reason']}" if row["reason"] else "")
        each.add_row(
            str(row["queue_offset"]),
            labels.get(row["transaction_id"], ""),
            row["producer_group"],
            row["real_topic"],
            state,
            row["source"],
            str(row["check_times"]),
        )
    sums = Table("decision", "by", "transactions", box=None)
    counted: dict[tuple[str, str], int] = {}
    for row in rows:
        key = (row["state"], row["source"])
        counted[key] = counted.get(key, 0) + 1
    for (state, source), n in sorted(counted.items()):
        sums.add_row(f"[{_COLOUR[state]}]{state}[/]", source, str(n))
    topics = Table("topic", "messages", box=None)
    for topic, n in sorted(published.items()):
        topics.add_row(topic, str(n))
    console.print(Group(each, "", sums, "", topics))


def published(spark: SparkSession, tables: Tables, rows: list[Row]) -> dict[str, int]:
    """Topic -> number of messages in its table. Raises StorageError if one is there twice."""
    counts = {}
    for topic in {row["real_topic"] for row in rows if row["state"] == "COMMIT"}:
        messages = tables.read(spark, f"topics/{topic}")
        total, once = messages.select(F.count("*"), F.count_distinct("half_queue_id", "half_queue_offset")).collect()[0]
        if total != once:
            raise StorageError(f"{total - once} messages are in it twice", where=tables.location(f"topics/{topic}"))
        counts[topic] = total
    return counts
