"""Transactions whose end is known beforehand, by their offset: what is sent of them, and what must become of them."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.storage.delta_log import DeltaLog
from checkback.storage.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUP = "orders"
TOPICS = ("a", "b")
CHECK_MAX = 3
COMMIT, ROLLBACK, UNKNOWN, DISCARD = "COMMIT", "ROLLBACK", "UNKNOWN", "DISCARD"

#: by offset modulo their number: ops (state, group), answers to the checks, and the state in the end
FATES: tuple[tuple[tuple[tuple[str, str], ...], tuple[str, ...], str], ...] = (
    (((COMMIT, GROUP),), (UNKNOWN,), COMMIT),
    (((COMMIT, GROUP),), (UNKNOWN,), COMMIT),
    (((ROLLBACK, GROUP),), (UNKNOWN,), ROLLBACK),
    (((COMMIT, GROUP), (COMMIT, GROUP)), (UNKNOWN,), COMMIT),
    (((ROLLBACK, GROUP), (COMMIT, GROUP)), (UNKNOWN,), ROLLBACK),
    (((COMMIT, "others"), (COMMIT, GROUP)), (UNKNOWN,), COMMIT),
    (((COMMIT, "others"),), (UNKNOWN, ROLLBACK), ROLLBACK),
    ((), (COMMIT,), COMMIT),
    ((), (UNKNOWN, UNKNOWN, COMMIT), COMMIT),
    ((), (UNKNOWN,), DISCARD),
)


def name(offset: int) -> str:
    """The transaction id."""
    return f"t-{offset}"


def answers(offsets: Iterable[int]) -> dict[str, Sequence[str]]:
    """The script of the producer that is asked."""
    return {name(offset): FATES[offset % len(FATES)][1] for offset in offsets}


def state(offset: int) -> str:
    """How it must end."""
    return FATES[offset % len(FATES)][2]


def ended_by_op(offset: int) -> bool:
    """Is it decided without any check?"""
    return any(group == GROUP for _, group in FATES[offset % len(FATES)][0])


class Lander:
    """Appends half messages and ops to the tables, as a producer's gateway would."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.landed = 0
        for table in ("half", "op"):
            DeltaLog.create(table, f"{root}/{table}")
        self._logs = {table: DeltaLog(table, f"{root}/{table}") for table in ("half", "op")}

    def land(self, number: int) -> None:
        """The next ``number`` transactions; every other time their ops come first."""
        offsets = range(self.landed, self.landed + number)
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        writes = [("half", [_half(offset, now) for offset in offsets]), ("op", [*_ops(offsets, now)])]
        for table, rows in writes if (self.landed // number) % 2 else reversed(writes):
            self._append(table, rows)
        self.landed += number

    def _append(self, table: str, rows: list[dict[str, Any]]) -> None:
        with FileWriter(self.root) as writer:
            writer.write(table, pa.Table.from_pylist(rows, schema=arrow_schema(table)))
            files = writer.close()
        self._logs[table].commit(files)


def body(offset: int) -> bytes:
    """The message."""
    return f"body of {offset}".encode()


def _half(offset: int, now: datetime) -> dict[str, Any]:
    return {
        "queue_id": 0,
        "queue_offset": offset,
        "transaction_id": name(offset),
        "producer_group": GROUP,
        "real_topic": TOPICS[offset % len(TOPICS)],
        "real_queue_id": 0,
        "body": body(offset),
        "born_timestamp": now,
        "store_timestamp": now,
    }


def _ops(offsets: Iterable[int], now: datetime) -> Iterable[dict[str, Any]]:
    for offset in offsets:
        for number, (said, group) in enumerate(FATES[offset % len(FATES)][0]):
            yield {
                "queue_id": 0,
                "half_offset": offset,
                "transaction_id": name(offset),
                "producer_group": group,
                "state": said,
                "source": "producer",
                "born_timestamp": datetime.fromtimestamp(now.timestamp() + number / 1000, timezone.utc),
                "store_timestamp": now,
            }
