"""Rows of the tables as batches would have written them, or should not have: a transaction at a time."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pyarrow as pa

from checkback.reconcile.records.segment_records import REJECTION
from checkback.settings import Settings
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from checkback.reconcile.records.segment_records import Reason

#: (table, row)
Row: TypeAlias = tuple[str, dict[str, Any]]

#: time of the last batch that is done, and of the one that is under way
DONE = datetime(2026, 1, 2, tzinfo=timezone.utc)
UNDER_WAY = DONE + timedelta(seconds=2)
BORN = DONE - timedelta(hours=1)
DECIDED = BORN + timedelta(minutes=30)
#: of the batch before the last one: its clock was set back
SET_BACK = DECIDED - timedelta(minutes=5)
LONG_AGO = DONE - timedelta(hours=73)
CHECK_MAX = 3
#: the column of `batches` that counts decisions of a state
COUNTED = {"COMMIT": "committed", "ROLLBACK": "rolled_back", "DISCARD": "discarded", "CANCEL": "cancelled"}
#: by table, the column with the time of the batch
BATCH_TIME = {
    "decisions": "decided_at",
    "discarded": "discarded_at",
    "deliveries": "delivered_at",
    "check_requests": "requested_at",
    "unpublished": "unpublished_at",
}


def ms(time: datetime) -> int:
    """Milliseconds since the epoch."""
    return round(time.timestamp() * 1000)


@dataclass(frozen=True)
class Transaction:
    """Rows about one offset of a half queue. Each takes other values of its columns."""

    queue: int
    offset: int = 0
    born: datetime = BORN
    body: bytes = b"body"

    @property
    def key(self) -> dict[str, Any]:
        """The columns that name it in most tables."""
        name = f"tx-{self.queue}-{self.offset}"
        return {
            "queue_id": self.queue,
            "queue_offset": self.offset,
            "transaction_id": name,
            "producer_group": "orders",
        }

    def _message(self) -> dict[str, Any]:
        return {
            "real_topic": "a",
            "real_queue_id": 3,
            "tags": None,
            "keys": "key",
            "properties": [("b", "2"), ("a", "1")],
            "body": self.body,
            "born_timestamp": self.born,
            "store_timestamp": self.born + timedelta(seconds=1),
            "check_immunity_s": None,
        }

    def half(self, **other: Any) -> Row:
        """Its half message."""
        return "half", self.key | self._message() | other

    def op(self, state: str = "COMMIT", **other: Any) -> Row:
        """An op of the producer's."""
        row = {name: value for name, value in self.key.items() if name != "queue_offset"}
        landed = self.born + timedelta(seconds=2)
        row |= {"queue_offset": self.offset, "state": state, "source": "producer", "remark": None}
        return "op", row | {"born_timestamp": landed, "store_timestamp": landed} | other

    def published(self, topic: str = "a", **other: Any) -> Row:
        """It in a topic, its properties in another order."""
        message = self._message()
        row = self.key | {name: message[name] for name in ("tags", "keys", "body", "born_timestamp")}
        row |= {
            "half_queue_id": self.queue,
            "half_queue_offset": self.offset,
            "queue_id": 3,
            "properties": message["properties"][::-1],
            "half_store_timestamp": message["store_timestamp"],
            "published_at": DECIDED,
            "batch_id": 0,
        }
        del row["queue_offset"]
        return f"topics/{topic}", row | other

    def unpublished(self, topic: str = "a", **other: Any) -> Row:
        """It waiting for its topic's table."""
        row = self.published()[1] | {"real_topic": topic, "reason": "why", "application": "q"}
        return "unpublished", row | {"unpublished_at": row.pop("published_at")} | other

    def decision(self, state: str = "COMMIT", **other: Any) -> Row:
        """A decision."""
        nobody = state == "DISCARD"
        row = self.key | {
            "real_topic": "a",
            "state": state,
            "source": "checkback" if nobody else "producer",
            "reason": "CHECK_MAX" if nobody else None,
            "check_times": CHECK_MAX if nobody else 0,
            "decided_at": DECIDED,
            "batch_id": 0,
        }
        return "decisions", row | other

    def discarded(self, **other: Any) -> Row:
        """It in `discarded`."""
        row = {"check_times": CHECK_MAX, "reason": "CHECK_MAX", "discarded_at": DECIDED, "batch_id": 0}
        return "discarded", self.key | self._message() | row | other

    def check(self, times: int = 1, after: timedelta | None = None) -> Row:
        """A check, ``after`` its birth: 7 s, then every minute."""
        at = self.born + (timedelta(seconds=7 + 60 * (times - 1)) if after is None else after)
        row = {"real_topic": "a", "check_times": times, "born_timestamp": self.born, "requested_at": at, "batch_id": 0}
        return "check_requests", self.key | row

    def checks(self, number: int = CHECK_MAX) -> list[Row]:
        """Its first checks."""
        return [self.check(times) for times in range(1, number + 1)]

    def rejected_half(self) -> Row:
        """A half message that came for its offset again."""
        return self._rejected("half", "{}", f"repeated (queue_id, queue_offset) {self.queue}/{self.offset}")

    def rejected_op(self, reason: Reason) -> Row:
        """An op that was not obeyed."""
        raw = json.dumps({"queue_id": self.queue, "queue_offset": self.offset})
        return self._rejected("op", raw, REJECTION[reason])

    def _rejected(self, source: str, raw: str, reason: str) -> Row:
        return "rejected", {"source": source, "raw": raw, "reason": reason, "file": None, "rejected_at": DECIDED}

    def committed(self) -> list[Row]:
        """All rows of one that went well."""
        return [self.half(), self.op(), self.published(), self.decision()]

    def rolled_back(self) -> list[Row]:
        """All rows of one that was rolled back."""
        return [self.half(), self.op("ROLLBACK"), self.decision("ROLLBACK")]

    def given_up(self) -> list[Row]:
        """All rows of one that nobody knew."""
        return [self.half(), *self.checks(), self.decision("DISCARD"), self.discarded()]


def batch(batch_id: int, time: datetime, application: str | None = "query", **other: Any) -> Row:
    """The row of a batch that was decided with the default settings, but CHECK_MAX, and did nothing."""
    row: dict[str, Any] = {
        "application": application,
        "batch_id": batch_id,
        "batch_time": time,
        "finished_at": time + timedelta(seconds=1),
        "checkback_version": "0.1.0",
        "timeout_ms": 6_000,
        "check_interval_ms": 60_000,
        "check_max": CHECK_MAX,
        "max_age_ms": 72 * 3_600_000,
        "check_jitter_ms": 0,
        "count_undelivered": True,
        **dict.fromkeys((*COUNTED.values(), "scheduled", "checks", "rejected", "unpublished"), 0),
        "table_versions": [],
    }
    return "batches", row | other


def batch_of(row: Row) -> datetime | None:
    """The time of the batch that wrote a row; None = none did."""
    name, values = row
    return values.get("published_at" if name.startswith("topics/") else BATCH_TIME.get(name, ""))


def in_batches(rows: list[Row], idle: Iterable[datetime] = (), **rules: Any) -> tuple[list[Row], int]:
    """The rows, in batches with ids by their times, and a row of each up to DONE; and the id of that one.

    What is later is of the batch after it. ``idle``: times of batches besides, that did nothing.
    """
    there = {DONE, *idle, *(time for time in map(batch_of, rows) if time is not None and time <= DONE)}
    times = sorted(there, key=lambda time: DONE - timedelta(seconds=1) if time == SET_BACK else time)
    numbers = {time: number for number, time in enumerate(times)}
    found: list[Row] = []
    counts: dict[datetime, Counter[str]] = defaultdict(Counter)
    for name, row in rows:
        time = batch_of((name, row))
        found.append((name, row if time is None else row | {"batch_id": numbers.get(time, len(times))}))
        if time is not None and name == "decisions":
            counts[time][COUNTED[row["state"]]] += 1
            counts[time]["scheduled"] += row.get("deliver_at") is not None
        elif time is not None and name == "deliveries":
            counts[time]["delivered"] += 1
        elif time is not None and name == "check_requests":
            counts[time]["checks"] += 1
    found += [batch(number, time, **{**rules, **counts[time], **_finished(time)}) for time, number in numbers.items()]
    return found, len(times) - 1


def _finished(time: datetime) -> dict[str, Any]:
    """When a batch was, if not by its own time."""
    return {"finished_at": DONE - timedelta(milliseconds=500)} if time == SET_BACK else {}


def write(spark: SparkSession | None, tables: Tables, rows: list[Row]) -> None:
    """Make the tables that the rows need, and append them. Without Spark if tables are written by files."""
    spark = cast("SparkSession", spark)
    of_table: dict[str, list[dict[str, Any]]] = {}
    for name, row in rows:
        of_table.setdefault(name, []).append(row)
    tables.create(spark, *of_table)
    for name, content in of_table.items():
        tables.append_arrow(spark, pa.Table.from_pylist(content, arrow_schema(name)), name)


def checkpoint(
    root: Path, half_version: int = 1_000_000, done: datetime = DONE, batch_id: int = 0, *, rules: int | None = None
) -> None:
    """The log of a reconcile query whose batch with this id is done and the next under way, two seconds later.

    ``rules``: the first batch whose rules it keeps; None = it is of a release that kept none.
    """
    folder = root / "_checkpoints/reconcile"
    source = {"reservoirId": "t", "reservoirVersion": half_version, "index": -1, "isStartingVersion": False}
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    for number, time in enumerate((done, done + (UNDER_WAY - DONE)), batch_id):
        lines = ["v1", json.dumps({"batchTimestampMs": ms(time)}), json.dumps(source), json.dumps(source)]
        (folder / f"offsets/{number}").write_text("\n".join(lines))
    (folder / f"commits/{batch_id}").write_text("v1\n{}")
    (folder / "metadata").write_text(json.dumps({"id": "query"}))
    if rules is not None:
        (folder / "rules").mkdir()
        (folder / f"rules/{rules}").write_text("{}")


def written(root: Path, rows: list[Row], *, size: int | None = None, idle: Iterable[datetime] = ()) -> int:
    """Write the rows, `in_batches`, into tables in a folder, and the checkpoint. Returns the last batch's id.

    ``size``: rows of a commit; None = all are in one.
    """
    found, done = in_batches(rows, idle)
    tables = Tables.of(Settings.model_validate({"storage": {"root": str(root)}}).storage)
    step = len(found) if size is None else size
    for first in range(0, len(found), step):
        write(None, tables, found[first : first + step])
    checkpoint(root, batch_id=done)
    return done
