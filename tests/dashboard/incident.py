"""An evening on call, as tables: an outage, a wrong endpoint, a topic that does not take its messages, dead letters.

`python -m dashboard.incident FOLDER` writes them into a folder.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.consumer.group import rebalance
from checkback.consumer.group.group_state import GroupState, Member, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.position import QUEUES, Position
from checkback.settings import Storage
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from support.query_times import append, made_at, table
from support.stories import BATCH_TIME, Row, Transaction, batch, batch_of, checkpoint, ms

if TYPE_CHECKING:
    from collections.abc import Iterable

#: the endpoints of the groups billing and shipping
DOWN, WRONG = "http://10.0.0.7:8080/check", "http://10.0.0.8:8080/chekc"
REFUSED, NOT_FOUND = "connection refused", "status 404"
NOT_TAKEN = "its table has no column amount: add it, or move the table away"
POISON = "KeyError at ledger.py:41"
#: when billing was answered last, and when it was not answered first
ANSWERED, SILENT = timedelta(minutes=12), timedelta(minutes=10)
#: when the first message for refunds was not taken; from a batch's time to its end
UNPUBLISHED, FINISHED = timedelta(minutes=4), timedelta(seconds=1)

_TIMES = BATCH_TIME | {
    "half": "store_timestamp",
    "op": "store_timestamp",
    "check_answers": "answered_at",
    "batches": "finished_at",
    "dead_letters": "dead_at",
}


def _of(group: str, topic: str, rows: Iterable[Row]) -> list[Row]:
    about = {"producer_group": group, "real_topic": topic}
    named = []
    for name, row in rows:
        kept = {key: value for key, value in about.items() if key in row}
        named.append((name, row | kept))
    return named


def _answer(half: Transaction, times: int, at: datetime, outcome: str, endpoint: str, **more: Any) -> Row:
    row = {"real_topic": "a", "check_times": times, "endpoint": endpoint, "outcome": outcome, "error": None}
    row |= {"latency_ms": 12, "answered_at": at, "failed_tries": [], "batch_id": times, "delivered": True}
    return "check_answers", half.key | row | more


def _asked(half: Transaction, at: datetime, endpoint: str, error: str, delivered: bool) -> list[Row]:
    """Checks of a half message, one a minute, that nobody answers."""
    rows = [half.half()]
    for times in range(1, 4):
        later = at + timedelta(minutes=times - 1)
        rows.append(half.check(times, later - half.born))
        rows.append(_answer(half, times, later, "NO_ANSWER", endpoint, error=error, delivered=delivered))
    return rows


def story(now: datetime) -> list[Row]:
    """All rows but those of the batches and of the consumers."""
    billing = [Transaction(0, offset, now - SILENT - timedelta(minutes=1)) for offset in range(3)]
    before = Transaction(0, 9, now - ANSWERED - timedelta(minutes=1))
    decided = now - ANSWERED
    rows = _of(
        "billing",
        "invoices",
        [
            *(before.half(), before.check(1), _answer(before, 1, decided, "COMMIT", DOWN)),
            *(before.op(source="check"), before.decision(source="check", check_times=1, decided_at=decided)),
            before.published("invoices", published_at=decided),
            *(row for half in billing for row in _asked(half, now - SILENT, DOWN, REFUSED, delivered=False)),
        ],
    )
    shipping = [Transaction(1, offset, now - timedelta(minutes=7)) for offset in range(2)]
    rows += _of(
        "shipping",
        "parcels",
        (
            row
            for half in shipping
            for row in _asked(half, now - timedelta(minutes=6), WRONG, NOT_FOUND, delivered=True)
        ),
    )
    for offset in range(4):
        half, at = Transaction(2, offset, now - timedelta(minutes=5)), now - UNPUBLISHED
        unpublished = half.unpublished("refunds", reason=NOT_TAKEN, unpublished_at=at)
        rows += _of("orders", "refunds", [half.half(), half.op(), half.decision(decided_at=at), unpublished])
    for offset in range(6):
        half, at = Transaction(3, offset, now - timedelta(minutes=3)), now - timedelta(minutes=2)
        said = half.published("payments", published_at=at)
        rows += _of("orders", "payments", [half.half(), half.op(), half.decision(decided_at=at), said])
    return rows


def _in_batches(rows: list[Row], last: datetime) -> list[Row]:
    """The rows with the ids of their batches, and the row of each batch; ``last``: time of one that did nothing."""
    times = sorted({last, *(time for time in map(batch_of, rows) if time is not None)})
    found = [(name, row | _numbered(times, batch_of((name, row)))) for name, row in rows]
    for number, time in enumerate(times):
        of = Counter(name for name, row in rows if batch_of((name, row)) == time)
        # Each topic's table is made by version 0 and has a single batch.
        versions = [(name, 1) for name in of if name.startswith("topics/")]
        counts = {"committed": of["decisions"], "checks": of["check_requests"], "unpublished": of["unpublished"]}
        found.append(batch(number, time, "q", table_versions=versions, check_max=15, **counts))
    return found


def _numbered(times: list[datetime], time: datetime | None) -> dict[str, int]:
    return {} if time is None else {"batch_id": times.index(time)}


def _dead_letter(rows: list[Row], now: datetime) -> Row:
    """The second message of payments, which the consumer group ledger gave up."""
    row = [row for name, row in rows if name == "topics/payments"][1]
    about = {"consumer_group": "ledger", "topic": "payments", "reconsume_times": 16, "reason": POISON}
    return "dead_letters", row | about | {"dead_at": now - timedelta(minutes=1)}


def build(root: Path) -> datetime:
    """Write the tables into a folder, each row committed at its time; returns what is now."""
    now = datetime.now(timezone.utc)
    now -= timedelta(microseconds=now.microsecond % 1000)  # as the times of batches, which Spark has in ms
    slices: dict[str, dict[datetime, list[dict[str, Any]]]] = {name: {} for name in SCHEMAS}
    last = now - timedelta(seconds=20)
    rows = _in_batches(story(now), last)
    for name, row in [*rows, _dead_letter(rows, now)]:
        slices.setdefault(name, {}).setdefault(row[_TIMES.get(name, "published_at")], []).append(row)
    for name, of_time in slices.items():
        made_at(table(root, name), 0, ms(now - timedelta(hours=1)))
        for at, content in sorted(of_time.items()):
            made_at(str(root / name), append(root, name, content), ms(at))
    checkpoint(root, done=last, batch_id=max(row["batch_id"] for name, row in rows if name == "batches"))
    _consumers(Tables.of(Storage(root=str(root), sync=False)), now)
    return now


def _consumers(tables: Tables, now: datetime) -> None:
    """The group ledger, which has given up one message and failed with it."""
    member = Member("ledger-1", 3, ms(now), frozenset({"payments"}), POISON, session_timeout_ms=1_000)
    queues = {MessageQueue("payments", number): QueueState(Position()) for number in range(QUEUES)}
    state = rebalance.take(GroupState({member.name: member}, queues), member.name)
    poisoned = MessageQueue("payments", 3)
    state = state.with_queues({poisoned: replace(state.queues[poisoned], dead_letters=1)})
    GroupTable(tables, "ledger").update(lambda _: state)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
