"""The audit of the crash tests finds what it is there to find."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import arrow_schema
from crash.books import audit
from crash.fates import CHECK_MAX, COMMIT, DISCARD, GROUP, HOUR_MS, TOPICS, Lander, body, fate, state

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

_NUMBER = 40
_SECOND = timedelta(seconds=1)


class Tables:
    """Tables of 40 transactions, each ended as its fate says, and checked as often as it must be."""

    def __init__(self, root: Path, begun: datetime) -> None:
        self.root = str(root)
        self.begun = begun

    @classmethod
    def made(cls, root: Path) -> Tables:
        """They are written: some hundred commits."""
        Lander(str(root)).land(_NUMBER)
        tables = cls(root, datetime.now(timezone.utc))
        tables.end()
        return tables

    def copied(self, root: Path) -> Tables:
        """A copy in another folder."""
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        return Tables(root, self.begun)

    def end(self) -> None:
        """Have all transactions end."""
        for offset in range(_NUMBER):
            asked = CHECK_MAX if state(offset) == DISCARD else 0
            for times in range(1, asked + 1):
                self.check(offset, times)
            self.decide(offset, state(offset), asked)
            if fate(offset).delay_ms == HOUR_MS:
                self.cancel(offset)
            elif state(offset) == COMMIT:
                self.publish(offset)
            if state(offset) == DISCARD:
                self.add("discarded", queue_offset=offset)
            if any(group != GROUP for _, group in fate(offset).ops):
                self.reject(offset)
        for times in range(1, CHECK_MAX + 1):
            self.conclude(times, self.begun + times * 5 * _SECOND)
        self.conclude(99, self.begun + 60 * _SECOND)
        self.conclude(100, self.begun + 120 * _SECOND)

    def add(self, table: str, **row: Any) -> None:
        """Append a row."""
        DeltaLog.create(table, f"{self.root}/{table}")
        with FileWriter(self.root) as writer:
            rows = pa.Table.from_pylist([{"queue_id": 0, **row}], schema=arrow_schema(table))
            writer.write(table, rows)
            DeltaLog(table, f"{self.root}/{table}").commit(writer.close())

    def decide(self, offset: int, end: str, asked: int) -> None:
        at = self.begun + 60 * _SECOND
        due = self.due(offset) if end == COMMIT else None
        row = {"state": end, "check_times": asked, "decided_at": at, "deliver_at": due, "batch_id": 99}
        self.add("decisions", queue_offset=offset, **row)

    def due(self, offset: int) -> datetime | None:
        delay_ms = fate(offset).delay_ms
        return None if delay_ms is None else self.begun + 60 * _SECOND + timedelta(milliseconds=delay_ms)

    def cancel(self, offset: int) -> None:
        """By an op of an operator: decided, and kept."""
        self.op(offset, "CANCEL")
        at = self.begun + 120 * _SECOND
        self.add("decisions", queue_offset=offset, state="CANCEL", decided_at=at, batch_id=100)
        self.add("discarded", queue_offset=offset)

    def op(self, offset: int, said: str) -> None:
        self.add("op", queue_offset=offset, producer_group=GROUP, state=said, store_timestamp=self.begun)

    def publish(self, offset: int, seconds: float = 120) -> None:
        at, due = self.begun + seconds * _SECOND, self.due(offset)
        self.add(f"topics/{TOPICS[offset % len(TOPICS)]}", half_queue_offset=offset, body=body(offset), published_at=at)
        if due is not None:
            self.deliver(offset)

    def deliver(self, offset: int) -> None:
        at = self.begun + 120 * _SECOND
        self.add("deliveries", queue_offset=offset, deliver_at=self.due(offset), delivered_at=at, batch_id=100)

    def reject(self, offset: int) -> None:
        self.add("rejected", raw=f"the op of {offset}")

    def conclude(self, batch: int, at: datetime) -> None:
        self.add("batches", application="q", batch_id=batch, batch_time=at)

    def check(self, offset: int, times: int, seconds: float = 5) -> None:
        at = self.begun + times * seconds * _SECOND
        self.add("check_requests", queue_offset=offset, check_times=times, requested_at=at, batch_id=times)


def _op(tables: Tables) -> None:
    now = datetime.now(timezone.utc)
    row = {"queue_offset": 9, "producer_group": GROUP, "state": COMMIT, "source": "check", "store_timestamp": now}
    tables.add("op", **row)


def _unpublished(tables: Tables) -> None:
    for _ in range(2):
        tables.add("unpublished", half_queue_offset=0)


def _answered(tables: Tables) -> None:
    """One answer to the last check, and two ops of it."""
    now = datetime.now(timezone.utc)
    tables.add("check_answers", queue_offset=9, check_times=CHECK_MAX, outcome="UNKNOWN", answered_at=now)
    for _ in range(2):
        row = {"queue_offset": 9, "producer_group": GROUP, "state": "COUNTED", "source": "check"}
        tables.add("op", **row, store_timestamp=now)


def _published_early(tables: Tables) -> None:
    """Offset 70 in place of one of the forty."""
    _later(tables, 70).land(1)
    tables.decide(70, COMMIT, 0)
    tables.publish(70, 60)


def _never_delivered(tables: Tables) -> None:
    _later(tables, 72).land(1)
    tables.decide(72, COMMIT, 0)


_FAULTS: dict[str, Callable[[Tables], object]] = {
    "lost": lambda tables: Lander.land(_later(tables), 1),
    "decided twice": lambda tables: tables.decide(0, COMMIT, 0),
    "rejected twice": lambda tables: tables.reject(5),
    "rejected, and nobody else's": lambda tables: tables.reject(0),
    "published twice": lambda tables: tables.publish(0),
    "published without a COMMIT": lambda tables: tables.publish(2),
    "discarded and published": lambda tables: tables.add("discarded", queue_offset=0),
    "checked once more": lambda tables: tables.check(9, CHECK_MAX + 1),
    "checked after its decision": lambda tables: tables.check(0, 1),
    "discarded with its op there": _op,
    "unpublished twice": _unpublished,
    "one answer sent to op twice": _answered,
    "delivered twice": lambda tables: tables.deliver(30),
    "delivered without a delay": lambda tables: tables.deliver(31),
    "cancelled and published": lambda tables: tables.publish(33),
    "cancelled and delivered": lambda tables: tables.deliver(33),
    "cancelled twice": lambda tables: tables.cancel(33),
    "cancelled, and nobody asked for it": lambda tables: tables.cancel(37),
    "a CANCEL that nothing came of": lambda tables: tables.op(33, "CANCEL"),
    "published early": _published_early,
    "never delivered": _never_delivered,
    "concluded too early": lambda tables: tables.add("batches", batch_id=101, checks=1, table_versions=[]),
    "concluded twice": lambda tables: tables.conclude(99, tables.begun),
    "checked by a batch that is not concluded": lambda tables: tables.check(9, CHECK_MAX, 20),
}


def _later(tables: Tables, landed: int = _NUMBER) -> Lander:
    lander = Lander(tables.root)
    lander.landed = landed
    return lander


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Tables:
    return Tables.made(tmp_path_factory.mktemp("books"))


def test_good_books_are_good(good: Tables) -> None:
    books = audit(good.root, _SECOND, 3 * _SECOND)
    assert (books.transactions, books.lost, books.duplicated, books.faults) == (_NUMBER, [], [], [])
    assert books.good


@pytest.mark.parametrize("fault", _FAULTS)
def test_fault_is_found(good: Tables, tmp_path: Path, fault: str) -> None:
    tables = good.copied(tmp_path)
    _FAULTS[fault](tables)
    assert not audit(tables.root, _SECOND, 3 * _SECOND).good
