"""Transactions whose end is known beforehand, by their offset: what is sent of them, and what must become of them."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

GROUP = "orders"
TOPICS = ("a", "b")
CHECK_MAX = 3
COMMIT, ROLLBACK, UNKNOWN, DISCARD = "COMMIT", "ROLLBACK", "UNKNOWN", "DISCARD"


class Fate(NamedTuple):
    """``ops`` (state, group), ``answers`` to the checks, and the ``state`` in the end.

    ``delay_ms``, ``committed``: as in `half`. ``cancelled``: an operator tries to cancel it.
    """

    ops: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]
    state: str
    delay_ms: int | None = None
    committed: bool = False
    cancelled: bool = False


_BY_OP = ((COMMIT, GROUP),)
HOUR_MS = 3_600_000
#: by offset modulo their number, in three of four tens of offsets
FATES = (
    Fate(_BY_OP, (UNKNOWN,), COMMIT),
    Fate(_BY_OP, (UNKNOWN,), COMMIT),
    Fate(((ROLLBACK, GROUP),), (UNKNOWN,), ROLLBACK),
    Fate(((COMMIT, GROUP), (COMMIT, GROUP)), (UNKNOWN,), COMMIT),
    Fate(((ROLLBACK, GROUP), (COMMIT, GROUP)), (UNKNOWN,), ROLLBACK),
    Fate(((COMMIT, "others"), (COMMIT, GROUP)), (UNKNOWN,), COMMIT),
    Fate(((COMMIT, "others"),), (UNKNOWN, ROLLBACK), ROLLBACK),
    Fate((), (COMMIT,), COMMIT),
    Fate((), (UNKNOWN, UNKNOWN, COMMIT), COMMIT),
    Fate((), (UNKNOWN,), DISCARD),
)
#: likewise, in every fourth ten: with a delay, without a transaction, or both
DELAYED = (
    Fate(_BY_OP, (UNKNOWN,), COMMIT, 1),
    Fate((), (UNKNOWN,), COMMIT, committed=True),
    Fate((), (UNKNOWN,), COMMIT, 1, committed=True),
    Fate(_BY_OP, (UNKNOWN,), COMMIT, HOUR_MS, cancelled=True),
    Fate((), (UNKNOWN, COMMIT), COMMIT, 1500, cancelled=True),
    Fate(((ROLLBACK, GROUP),), (UNKNOWN,), ROLLBACK, 1, cancelled=True),
    Fate((), (UNKNOWN,), COMMIT, 1500, committed=True, cancelled=True),
    Fate(_BY_OP, (UNKNOWN,), COMMIT, 3000),
    Fate((), (UNKNOWN,), DISCARD, 1),
    Fate(((COMMIT, "others"), (COMMIT, GROUP)), (UNKNOWN,), COMMIT, 1),
)


def fate(offset: int) -> Fate:
    """What is sent of a transaction, and what must become of it."""
    return (DELAYED if offset // 10 % 4 == 3 else FATES)[offset % 10]


def name(offset: int) -> str:
    """The transaction id."""
    return f"t-{offset}"


def answers(offsets: Iterable[int]) -> dict[str, Sequence[str]]:
    """The script of the producer that is asked."""
    return {name(offset): fate(offset).answers for offset in offsets}


def state(offset: int) -> str:
    """How it must end; a scheduled message may be cancelled then."""
    return fate(offset).state


def ended_by_op(offset: int) -> bool:
    """Is it decided without any check?"""
    return fate(offset).committed or any(group == GROUP for _, group in fate(offset).ops)


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

    def cancel(self, offsets: Iterable[int]) -> None:
        """An operator's ops CANCEL of those among the offsets whose fate it is."""
        now = datetime.fromtimestamp(time.time(), timezone.utc)
        rows = [_op(offset, "CANCEL", GROUP, now, "operator") for offset in offsets if fate(offset).cancelled]
        if rows:
            self._append("op", rows)

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
        "delay_ms": fate(offset).delay_ms,
        "committed": fate(offset).committed or None,
        "born_timestamp": now,
        "store_timestamp": now,
    }


def _ops(offsets: Iterable[int], now: datetime) -> Iterable[dict[str, Any]]:
    for offset in offsets:
        for number, (said, group) in enumerate(fate(offset).ops):
            born = datetime.fromtimestamp(now.timestamp() + number / 1000, timezone.utc)
            yield _op(offset, said, group, now) | {"born_timestamp": born}


def _op(offset: int, said: str, group: str, now: datetime, source: str = "producer") -> dict[str, Any]:
    return {
        "queue_id": 0,
        "queue_offset": offset,
        "transaction_id": name(offset),
        "producer_group": group,
        "state": said,
        "source": source,
        "born_timestamp": now,
        "store_timestamp": now,
    }
