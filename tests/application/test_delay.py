"""Delayed messages and messages without a transaction on real tables: each published once, at its time, or cancelled.

What is due "later" here is due a millisecond after its decision, and so in the next run; "never" is an hour away.
"""

from __future__ import annotations

import shutil
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from application.test_rebuild import breaking
from checkback.application.queries import reconcile
from checkback.application.rebuild import rebuild
from checkback.consumer import PushConsumer
from checkback.errors import CheckbackError
from checkback.query.answers import Answers, records
from checkback.query.frames import Frames
from checkback.query.state_store import state_segments
from checkback.reconcile.lost_checkpoint.batch_recovery import finish
from checkback.reconcile.lost_checkpoint.interrupted_batch import find
from checkback.reconcile.state.partition_batch import kind_of
from checkback.reconcile.state.registered_timers import timers_of
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS, arrow_schema
from checkback.storage.tables import Tables
from consumer.heard import Heard
from reconcile.messages import half
from support.rows import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LATER, NEVER = {"delay_ms": 1}, {"delay_ms": 3_600_000}


class Lake:
    """Tables, and what lands in them."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root / "data"
        self.settings = Settings.model_validate(
            {
                "storage": {"root": str(self.root)},
                "transaction": {"timeout": "1h"},
                "reconcile": {"partitions": 1, "segment_size": 64},  # most tests have one segment
            }
        )
        self.tables = Tables.of(self.settings.storage)
        self.tables.create(spark, *SCHEMAS)

    def land(self, *rows: dict[str, Any]) -> None:
        """Half messages."""
        self._append("half", [row | {"store_timestamp": _now(), "born_timestamp": _now()} for row in rows])

    def end(self, state: str, *offsets: int, source: str = "producer", name: str = "tx") -> None:
        """Ops."""
        names = ("queue_id", "queue_offset", "transaction_id", "producer_group", "state", "source", "remark")
        rows = [(0, offset, f"{name}-{offset}", "orders", state, source, None) for offset in offsets]
        times = {"born_timestamp": _now(), "store_timestamp": _now()}
        self._append("op", [dict(zip(names, row, strict=True)) | times for row in rows])

    def _append(self, name: str, rows: list[dict[str, Any]]) -> None:
        self.tables.append_arrow(self.spark, pa.Table.from_pylist(rows, arrow_schema(name)), name)

    def reconcile(self) -> None:
        """A scheduled run."""
        reconcile(self.spark, self.settings, available_now=True)

    def lose_checkpoint(self) -> dict[str, int]:
        """Rebuild it; the rows that the rebuild has added by table."""
        shutil.rmtree(Path(self.settings.storage.checkpoints_root) / "reconcile")
        rebuilt = rebuild(self.spark, self.settings, lambda _: None)
        assert rebuilt is not None
        return rebuilt.finished

    def offsets(self, name: str, where: str = "") -> list[int]:
        """Offsets in a table, of decisions with a state."""
        column = "half_queue_offset" if name.startswith("topics/") else "queue_offset"
        if where:
            return sorted(offset for offset, state in rows_of(self.root, name, column, "state") if state == where)
        return sorted(offset for (offset,) in rows_of(self.root, name, column))

    def assert_published_in_time(self) -> None:
        """Each delivery, and its message, in one batch, and not before its time."""
        messages = rows_of(self.root, "topics/a", "half_queue_offset", "published_at", "batch_id")
        published = {offset: (at, batch) for offset, at, batch in messages}
        assert len(published) == len(messages)
        for offset, due, at, batch in rows_of(
            self.root, "deliveries", "queue_offset", "deliver_at", "delivered_at", "batch_id"
        ):
            assert at >= due
            assert published[offset] == (at, batch)


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    """Empty tables."""
    return Lake(spark, tmp_path)


@pytest.mark.spine("delayed messages")
def test_scheduled_messages_are_published_at_their_time_or_cancelled(lake: Lake) -> None:
    """COMMIT decides at once; a message without a transaction needs no op, and both kinds may be delayed."""
    hour = timedelta(hours=1)
    lake.land(
        half(0),
        half(1) | LATER,
        half(2) | {"deliver_at": _now() - hour},
        half(3) | {"deliver_at": _now() + hour},
        half(4) | NEVER,
        half(5) | NEVER | {"committed": True},
        half(6) | {"committed": True},
        half(7) | LATER,
        half(8) | {"delay_ms": 7_200_000, "committed": True},
    )
    lake.end("COMMIT", 0, 1, 2, 3, 4)
    lake.end("ROLLBACK", 7)
    lake.reconcile()
    assert lake.offsets("decisions", "COMMIT") == [0, 1, 2, 3, 4, 5, 6, 8]
    assert lake.offsets("decisions", "ROLLBACK") == [7]
    assert lake.offsets("topics/a") == [0, 2, 6]
    due = dict(rows_of(lake.root, "decisions", "queue_offset", "deliver_at"))
    decided = dict(rows_of(lake.root, "decisions", "queue_offset", "decided_at"))
    assert [offset for offset, at in sorted(due.items()) if at is not None] == [1, 3, 4, 5, 8]
    assert due[4] - decided[4] == due[5] - decided[5] == hour
    lake.end("CANCEL", 4, 0, 7, source="operator")
    lake.end("CANCEL", 5, source="check")
    lake.reconcile()
    assert lake.offsets("topics/a") == [0, 1, 2, 6]
    assert lake.offsets("deliveries") == [1]
    assert lake.offsets("decisions", "CANCEL") == lake.offsets("discarded") == [4]
    assert sorted(reason.split(":")[0] for (reason,) in rows_of(lake.root, "rejected", "reason")) == [
        "not scheduled",
        "not scheduled",
        "unknown state",
    ]
    lake.assert_published_in_time()
    counts = "committed", "rolled_back", "scheduled", "delivered", "cancelled", "rejected"
    told = rows_of(lake.root, "batches", *counts)
    assert [sum(column) for column in zip(*told, strict=True)] == [8, 1, 5, 1, 1, 3]
    _assert_inspection_tells(lake, due)


def _assert_inspection_tells(lake: Lake, due: dict[int, datetime]) -> None:
    """What is scheduled and until when; the status, the lineage, the state store and a snapshot agree."""
    rows = {row["queue_offset"]: row for row in Frames(lake.settings, lake.spark).scheduled().collect()}
    assert {offset: row["source"] for offset, row in rows.items()} == dict.fromkeys((3, 5, 8), "producer")
    assert 3_000 < rows[5]["due_in_s"] <= 3_600 < rows[8]["due_in_s"] <= 7_200
    status = Answers(lake.settings).status()
    assert status.facts is not None
    assert status.facts.scheduled == (3, round(due[3].timestamp() * 1000))
    decisions = {state: recent for state, _, recent in status.facts.decisions}
    assert decisions == {"COMMIT": 8, "ROLLBACK": 1, "CANCEL": 1}
    stories = {offset: Answers(lake.settings).lineage(f"tx-{offset}")["event"].to_pylist() for offset in (1, 3, 4, 8)}
    assert stories == {
        1: ["HALF", "OP", "DECISION", "DELIVERED", "PUBLISHED"],
        3: ["HALF", "OP", "DECISION"],
        4: ["HALF", "OP", "DECISION", "OP", "DECISION", "DISCARDED"],
        8: ["HALF", "DECISION"],
    }
    latency = Frames(lake.settings, lake.spark).decision_latency().agg({"decisions": "sum"}).first()
    assert latency is not None
    assert latency[0] == 9
    (segment,) = state_segments(lake.spark, lake.settings).collect()
    assert (segment["pending"], segment["scheduled"], segment["oldest"]) == (0, 3, 0)
    snapshot = Frames(lake.settings, lake.spark).snapshot()
    assert (snapshot.decisions.count(), snapshot.deliveries.count()) == (10, 1)


def test_a_consumer_hears_a_delayed_message_once_when_it_is_published(lake: Lake) -> None:
    """Not when it is scheduled, nor when the consumer's own retries come due beside it."""
    lake.land(half(0), half(1) | LATER, half(2) | LATER | {"committed": True}, half(3) | NEVER, half(4) | NEVER)
    lake.end("COMMIT", 0, 1, 3, 4)
    lake.reconcile()
    heard = Heard({0: 1, 1: 2})
    consumer = PushConsumer(
        "g", str(lake.root), heard, commit_interval=timedelta(seconds=0.05), retry_levels=[timedelta(seconds=0.01)]
    ).subscribe("a")
    with consumer:
        heard.wait_for_count(2)
        assert heard.offsets == [0, 0]
        lake.end("CANCEL", 4, source="operator")
        lake.land(half(5))
        lake.end("COMMIT", 5)
        lake.reconcile()
        heard.wait_for_count(7)
    assert heard.times == {0: 2, 1: 3, 2: 1, 5: 1}
    lake.assert_published_in_time()


@pytest.fixture(scope="module")
def broken_off(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The tables before a batch that schedules, delivers and cancels, and after it; it has died before its end."""
    lake = Lake(spark, tmp_path_factory.mktemp("after"))
    lake.land(half(0) | LATER, half(1) | NEVER, half(2) | LATER, half(3))
    lake.end("COMMIT", 0, 1, 2, 3)
    lake.reconcile()
    before = shutil.copytree(lake.root, tmp_path_factory.mktemp("before") / "data")
    lake.end("CANCEL", 1, source="operator")
    lake.land(half(4) | LATER, half(5) | {"committed": True}, half(6) | NEVER | {"committed": True})
    lake.end("COMMIT", 4)
    with pytest.MonkeyPatch.context() as patch:
        breaking(patch, lambda name: name != "batches")
        with pytest.raises(CheckbackError):
            lake.reconcile()
    assert (lake.offsets("topics/a"), lake.offsets("deliveries")) == ([0, 2, 3, 5], [0, 2])
    assert (lake.offsets("decisions"), lake.offsets("discarded")) == ([0, 1, 1, 2, 3, 4, 5, 6], [1])
    return before, lake.root


@pytest.mark.parametrize("survives", ["topics", "decisions", "deliveries", "discarded", "nothing"])
def test_nothing_is_lost_or_doubled_by_a_rebuild(
    spark: SparkSession, tmp_path: Path, broken_off: tuple[Path, Path], survives: str
) -> None:
    """The batch has written one of its tables, and died before the others."""
    before, after = broken_off
    data = shutil.copytree(after, tmp_path / "data")
    for name in {"topics", "decisions", "deliveries", "discarded"} - {survives}:
        shutil.rmtree(data / name)
        shutil.copytree(before / name, data / name)
    lake = Lake(spark, tmp_path)
    lake.lose_checkpoint()
    lake.reconcile()
    if survives == "nothing":  # whatever survives, the tables are the same by now
        assert lake.lose_checkpoint() == {}
    lake.end("CANCEL", 6, source="operator")
    lake.reconcile()
    assert lake.offsets("topics/a") == [0, 2, 3, 4, 5]
    assert lake.offsets("deliveries") == [0, 2, 4]
    assert lake.offsets("decisions", "COMMIT") == [0, 1, 2, 3, 4, 5, 6]
    assert lake.offsets("decisions", "CANCEL") == lake.offsets("discarded") == [1, 6]
    lake.assert_published_in_time()
    assert finish(spark, lake.tables, find(spark, lake.tables)) == {}


def test_rebuild_does_not_take_one_message_for_another_at_its_offset(lake: Lake) -> None:
    """`half` was restored to an older state, and the offsets of three messages that ended otherwise assigned again."""
    first, second, third = offsets = 0, 64, 128
    lake.land(half(first) | LATER, half(second) | {"delay_ms": 9 * 3_600_000}, half(third) | NEVER)
    lake.end("COMMIT", *offsets)
    lake.reconcile()
    lake.end("CANCEL", third, source="operator")
    lake.reconcile()
    for name in ("half", "op"):
        shutil.rmtree(lake.root / name)
    lake.tables = Tables.of(lake.settings.storage)
    lake.tables.create(lake.spark, "half", "op")
    lake.land(*(half(offset) | NEVER | {"transaction_id": f"new-{offset}"} for offset in offsets))
    lake.end("COMMIT", *offsets, name="new")
    for _ in range(2):
        lake.lose_checkpoint()
        lake.reconcile()
    scheduled = records(Answers(lake.settings).scheduled())
    told = [row for row in scheduled if row["transaction_id"].startswith("new")]
    assert [row["queue_offset"] for row in told] == [first, second, third]
    assert sorted(row["scheduled"] for row in state_segments(lake.spark, lake.settings).collect()) == [1, 1, 1]
    timers = [timer for _, _, timer in timers_of(lake.spark, lake.tables) if kind_of(timer).of_delivery]
    due = [round(row["deliver_at"].timestamp() * 1000) for row in told]
    assert len(timers) == len(due)
    assert max(timers) < max(due) + 8


def _now() -> datetime:
    return datetime.fromtimestamp(time.time(), timezone.utc)
