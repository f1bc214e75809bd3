"""An evening on call, as tables: an outage, a wrong endpoint, a topic that does not take its messages, dead letters.

`python -m dashboard.incident FOLDER` writes them into a folder.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checkback.consumer import group_state
from checkback.consumer.group_state import GroupState, Member, MessageQueue, QueueState
from checkback.consumer.group_table import GroupTable
from checkback.consumer.position import QUEUES, Position
from checkback.settings import Storage
from checkback.storage.schemas import SCHEMAS
from checkback.storage.tables import Tables
from support.inspect_times import append, made_at, table
from support.stories import BATCH_TIME, Row, Transaction, batch, checkpoint, ms

if TYPE_CHECKING:
    from collections.abc import Iterable

#: the endpoints of the groups billing and shipping
DOWN, WRONG = "http://10.0.0.7:8080/check", "http://10.0.0.8:8080/chekc"
REFUSED, NOT_FOUND = "connection refused", "HTTP 404"
NOT_TAKEN = "its table has no column amount: add it, or move the table away"
POISON = "KeyError at ledger.py:41"
#: when billing was answered last, and when it was not answered first
ANSWERED, SILENT = timedelta(minutes=12), timedelta(minutes=10)
#: when the first message for refunds was not taken; from a batch's time to its end
PARKED, FINISHED = timedelta(minutes=4), timedelta(seconds=1)

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
    """All rows but those of the consumers."""
    billing = [Transaction(0, offset, now - SILENT - timedelta(minutes=1)) for offset in range(3)]
    before = Transaction(0, 9, now - ANSWERED - timedelta(minutes=1))
    decided = now - ANSWERED
    rows = _of(
        "billing",
        "invoices",
        [
            *(before.half(), before.check(1), _answer(before, 1, decided, "COMMIT", DOWN)),
            *(before.op(source="check"), before.decision(source="check", check_times=1, decided_at=decided)),
            before.published("invoices", committed_at=decided),
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
        half, at = Transaction(2, offset, now - timedelta(minutes=5)), now - PARKED
        parked = half.unpublished("refunds", reason=NOT_TAKEN, unpublished_at=at, batch_id=1)
        rows += _of("orders", "refunds", [half.half(), half.op(), half.decision(decided_at=at, batch_id=1), parked])
    for offset in range(6):
        half, at = Transaction(3, offset, now - timedelta(minutes=3)), now - timedelta(minutes=2)
        said = half.published("payments", committed_at=at, batch_id=2)
        rows += _of("orders", "payments", [half.half(), half.op(), half.decision(decided_at=at, batch_id=2), said])
    done = {"application": "q", "checkback_version": "0.1.0"}
    rows.append(batch(0, decided, committed=1, table_versions=[("topics/invoices", 1)], **done))
    rows.append(batch(1, now - PARKED, committed=4, unpublished=4, **done))
    rows.append(batch(2, now - timedelta(minutes=2), committed=6, table_versions=[("topics/payments", 1)], **done))
    return rows


def dead_letter(now: datetime) -> Row:
    """The message that the consumer group ledger gave up."""
    row = Transaction(3, 1, now - timedelta(minutes=3)).published("payments", batch_id=2)[1]
    about = {"consumer_group": "ledger", "topic": "payments", "reconsume_times": 16, "reason": POISON}
    return "dead_letters", row | about | {"dead_at": now - timedelta(minutes=1)}


def build(root: Path) -> datetime:
    """Write the tables into a folder, each row committed at its time; returns what is now."""
    now = datetime.now(timezone.utc)
    slices: dict[str, dict[datetime, list[dict[str, Any]]]] = {name: {} for name in SCHEMAS}
    for name, row in [*story(now), dead_letter(now)]:
        slices.setdefault(name, {}).setdefault(row[_TIMES.get(name, "committed_at")], []).append(row)
    for name, of_time in slices.items():
        made_at(table(root, name), 0, ms(now - timedelta(hours=1)))
        for at, rows in sorted(of_time.items()):
            made_at(str(root / name), append(root, name, rows), ms(at))
    checkpoint(root, done=now - timedelta(seconds=20), batch_id=2)
    _consumers(Tables.of(Storage(root=str(root), sync=False)), now)
    return now


def _consumers(tables: Tables, now: datetime) -> None:
    """The group ledger, which has given up one message and failed with it."""
    member = Member("ledger-1", 3, ms(now), frozenset({"payments"}), POISON)
    queues = {MessageQueue("payments", number): QueueState(Position()) for number in range(QUEUES)}
    state = group_state.take(GroupState({member.name: member}, queues), member.name)
    poisoned = MessageQueue("payments", 3)
    state = state.with_queues({poisoned: replace(state.queues[poisoned], dead_letters=1)})
    GroupTable(tables, "ledger").update(lambda _: state)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
