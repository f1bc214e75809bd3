"""Tables in a folder, with half messages in every state, made without Spark; and a clock."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake import DeltaTable

from checkback.operate.action import Outcome, act
from checkback.operate.operations import OperatorSignature
from checkback.operate.operator_tables import FileStore
from checkback.operate.request import ending
from checkback.operate.resume import resuming
from checkback.operate.transaction import Asked, Place
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from checkback.operate.operator_tables import OperatorTables

QUEUE = 2_000_000_000
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
ALICE = OperatorSignature("alice", "ticket 7: the database says so")
BOB = OperatorSignature("bob", "no: it does not")


class Watched:
    """A store; `turn` is called before each thing that is done with it."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self.at_once = store.at_once

    def turn(self, name: str, appends: bool) -> None:
        """Before the table is read, or appended to."""

    def has(self, name: str) -> bool:
        return self._store.has(name)

    def rows(self, name: str, equal: Mapping[str, Collection[Any]], columns: Sequence[str] | None = None) -> pa.Table:
        self.turn(name, appends=False)
        return self._store.rows(name, equal, columns)

    def last_version(self, name: str, app: str) -> int | None:
        return self._store.last_version(name, app)

    def operators_queues(self) -> set[int]:
        return self._store.operators_queues()

    def append(
        self, name: str, rows: pa.Table, app: str, first: int, each: Mapping[str, int] = MappingProxyType({})
    ) -> bool:
        self.turn(name, appends=True)
        return self._store.append(name, rows, app, first, each)

    def append_each(self, name: str, rows: pa.Table, apps: Sequence[str]) -> bool:
        self.turn(name, appends=True)
        return self._store.append_each(name, rows, apps)


class Lakehouse:
    """The tables of a folder. Each row lands a second after the one before, the first after ``now``."""

    def __init__(self, root: Path, now: datetime = T0) -> None:
        self.root = str(root)
        self.tables = Tables(root=self.root, by_files=True)
        for name in ("half", "op", "decisions", "discarded"):
            DeltaLog.create(name, self.tables.location(name))
        self._now = now

    def copied(self, root: Path) -> Lakehouse:
        """The same in another folder, which takes a tenth of the time."""
        shutil.copytree(self.root, root)
        return Lakehouse(root, self._now)

    def clock(self) -> datetime:
        """A second later than the last time."""
        self._now += timedelta(seconds=1)
        return self._now

    def half(
        self, offset: int, transaction_id: str = "tx", group: str = "orders", queue: int = 0, **more: Any
    ) -> Place:
        """A half message lands."""
        row = {
            "queue_id": queue,
            "queue_offset": offset,
            "transaction_id": transaction_id,
            "producer_group": group,
            "real_topic": "payments",
            "real_queue_id": 3,
            "tags": "tag",
            "keys": "key",
            "properties": [("k", "v")],
            "body": b"body of " + transaction_id.encode(),
            "check_immunity_s": 30,
        }
        self._append("half", row | self._times() | more)
        return Place(queue, offset)

    def op(self, place: Place, state: str = "COMMIT", **more: Any) -> None:
        """An op of the producer lands."""
        row = {"transaction_id": "tx", "producer_group": "orders", "state": state, "source": "producer"}
        own = {"queue_id": place.queue_id, "queue_offset": place.queue_offset}
        self._append("op", own | row | self._times() | more)

    def decide(self, place: Place, state: str, source: str = "producer", deliver_at: datetime | None = None) -> None:
        """`reconcile` decides; a discarded message goes to `discarded`."""
        half = next(row for row in self.rows("half") if (row["queue_id"], row["queue_offset"]) == place)
        reason = "CHECK_MAX" if state == "DISCARD" else None
        more = {"state": state, "source": source, "reason": reason, "check_times": 15, "batch_id": 1}
        self._append("decisions", self._own(half) | more | {"decided_at": self.clock(), "deliver_at": deliver_at})
        if state in ("DISCARD", "CANCEL"):
            more |= {"reason": "CANCELLED"} if state == "CANCEL" else {}
            self._append("discarded", half | more | {"discarded_at": self.clock()})

    def deliver(self, place: Place) -> None:
        """`reconcile` publishes a scheduled message."""
        half = next(row for row in self.rows("half") if (row["queue_id"], row["queue_offset"]) == place)
        DeltaLog.create("deliveries", self.tables.location("deliveries"))
        self._append("deliveries", self._own(half) | {"delivered_at": self.clock(), "batch_id": 2})

    def leave_unpublished(self, place: Place, transaction_id: str, reason: str) -> None:
        """`reconcile` puts a message into `unpublished`: its topic's table does not take it."""
        DeltaLog.create("unpublished", self.tables.location("unpublished"))
        row = {"half_queue_id": place.queue_id, "half_queue_offset": place.queue_offset, "reason": reason}
        self._append("unpublished", row | {"transaction_id": transaction_id, "producer_group": "orders"})

    def remove(self, name: str) -> None:
        """All rows of a table."""
        shutil.rmtree(self.tables.location(name))
        DeltaLog.create(name, self.tables.location(name))

    def cancel(self, asked: Asked | None = None, signed: OperatorSignature = ALICE, **more: Any) -> Outcome:
        """As the command with --yes."""
        return act(self._store(**more), asked or Asked("tx"), QUEUE, ending("CANCEL", signed, self.clock))

    def discarded(self) -> Place:
        """A discarded message, at 0/12."""
        place = self.half(12)
        self.decide(place, "DISCARD", "checkback")
        return place

    def check(self, place: Place, times: int, outcome: str, error: str | None = None) -> None:
        """A check is sent, and answered."""
        half = next(row for row in self.rows("half") if (row["queue_id"], row["queue_offset"]) == place)
        own = self._own(half) | {"check_times": times, "batch_id": times}
        self._append("check_requests", own | {"born_timestamp": half["born_timestamp"], "requested_at": self.clock()})
        self._append("check_answers", own | {"outcome": outcome, "error": error, "answered_at": self.clock()})

    def resolve(
        self, state: str, asked: Asked | None = None, signed: OperatorSignature = ALICE, **more: Any
    ) -> Outcome:
        """As the command with --yes."""
        return act(self._store(**more), asked or Asked("tx"), QUEUE, ending(state, signed, self.clock))

    def resume(self, asked: Asked | None = None, signed: OperatorSignature = ALICE, **more: Any) -> Outcome:
        """As the command with --yes."""
        return act(self._store(**more), asked or Asked("tx"), QUEUE, resuming(QUEUE, signed, self.clock))

    def store(self) -> FileStore:
        """A store that has seen nothing yet, as a new process has it."""
        return FileStore(Tables(root=self.root, by_files=True))

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of a table, in the order of landing."""
        if not DeltaLog.exists(self.tables.location(name)):
            return []
        found: list[dict[str, Any]] = DeltaTable(self.tables.location(name)).to_pyarrow_table().to_pylist()
        time = {"half": "store_timestamp", "op": "store_timestamp", "operations": "at"}.get(name)
        return sorted(found, key=lambda row: row[time]) if time else found

    def versions(self) -> dict[str, int]:
        """The version of each table that is there: what is written counts one of them up."""
        places = {name: self.tables.location(name) for name in SCHEMAS}
        return {name: DeltaTable(place).version() for name, place in places.items() if DeltaLog.exists(place)}

    def _store(self, store: OperatorTables | None = None) -> OperatorTables:
        return store or self.store()

    def _own(self, half: dict[str, Any]) -> dict[str, Any]:
        names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic")
        return {name: half[name] for name in names}

    def _times(self) -> dict[str, Any]:
        now = self.clock()
        return {"born_timestamp": now - timedelta(milliseconds=5), "store_timestamp": now}

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with FileWriter(self.root) as writer:
            writer.write(name, pa.Table.from_pylist([row], schema=arrow_schema(name)))
            files = writer.close()
        DeltaLog.create(name, self.tables.location(name))
        DeltaLog(name, self.tables.location(name)).commit(files)
