"""With Spark: `reconcile` obeys what the operator did; and tables that only Spark can write."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import create_engine

from checkback.application.queries import reconcile
from checkback.cli import main
from checkback.operate.action import act
from checkback.operate.operations import half_row
from checkback.operate.operator_tables import FileStore, SparkStore, open_tables
from checkback.operate.resume import resuming
from checkback.operate.transaction import Asked, Place
from checkback.producer import (
    Barrier,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    Message,
    TransactionListener,
    check_app,
)
from checkback.settings import Settings
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from operate.fixtures import ALICE, BOB, QUEUE, Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Orders(TransactionListener):
    """Answers by its barrier."""

    def __init__(self, barrier: Barrier) -> None:
        self._barrier = barrier

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState:
        raise NotImplementedError

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState:
        return self._barrier.check(check)


@pytest.mark.spine("an operator ends and resumes transactions")
def test_reconcile_obeys_the_operator(spark: SparkSession, tmp_path: Path) -> None:
    """Two pending transactions are decided by the operator's ops, and a discarded one is resumed.

    Its producer is asked anew, about the half message that it knows, and says COMMIT: the message is published once.
    The old decision and the discarded row stay.
    """
    barrier = Barrier(create_engine(f"sqlite:///{tmp_path}/orders.db"))
    barrier.create_table()
    with barrier.local_transaction(Message("payments", b"", transaction_id="gone").stored_at(0, 0, "orders")):
        pass
    now = datetime.now(timezone.utc)
    young: dict[str, Any] = {"born_timestamp": now, "store_timestamp": now, "check_immunity_s": 3600}
    lake = Lakehouse(tmp_path / "data")
    lake.half(0, "gone", check_immunity_s=0)  # its one check finds no endpoint: discarded
    lake.half(1, "paid", **young)
    lake.half(2, "unpaid", **young)
    with CheckServer(check_app({"orders": Orders(barrier)}, secret=None)) as producer:
        content: dict[str, Any] = {
            "storage": {"root": lake.root},
            "transaction": {"check_max": 1, "check_interval": "1ms"},
            "reconcile": {"partitions": 1, "segment_size": 64},
        }
        for _ in range(2):
            reconcile(spark, Settings.model_validate(content), available_now=True)
        content["producers"] = {"orders": {"endpoints": [producer.url]}}
        settings = Settings.model_validate(content)
        assert [(row["queue_offset"], row["state"]) for row in lake.rows("decisions")] == [(0, "DISCARD")]
        options = ("--actor", "alice", "--reason", "ticket 7", "--yes", "--set", f"storage.root={lake.root}")
        for command in (["resolve", "paid", "--commit"], ["resolve", "unpaid", "--rollback"], ["resume", "gone"]):
            assert main(["tx", *command, *options]) == 0
        reconcile(spark, settings, available_now=True)
    names = ("queue_id", "queue_offset", "transaction_id", "state", "source", "check_times")
    decisions = sorted(tuple(row[name] for name in names) for row in lake.rows("decisions"))
    assert decisions == [
        (0, 0, "gone", "DISCARD", "checkback", 1),
        (0, 1, "paid", "COMMIT", "operator", 0),
        (0, 2, "unpaid", "ROLLBACK", "operator", 0),
        (QUEUE, 0, "gone", "COMMIT", "check", 1),
    ]
    checks = [(row["queue_id"], row["queue_offset"], row["check_times"]) for row in lake.rows("check_requests")]
    assert sorted(checks) == [(0, 0, 1), (QUEUE, 0, 1)]
    published = {row["transaction_id"]: row for row in lake.rows("topics/payments")}
    assert len(lake.rows("topics/payments")) == len(published) == 2
    assert (published["gone"]["body"], published["gone"]["half_queue_id"]) == (b"body of gone", QUEUE)
    assert dict(published["gone"]["properties"])["CHECKBACK_RESUMED_FROM"] == "0/0"
    assert [(row["queue_id"], row["queue_offset"]) for row in lake.rows("discarded")] == [(0, 0)]
    assert {row["action"] for row in lake.rows("operations")} == {"RESOLVE_COMMIT", "RESOLVE_ROLLBACK", "RESUME"}
    assert lake.rows("rejected") == []


def test_tables_that_only_spark_writes(spark: SparkSession, lake: Lakehouse) -> None:
    """The same rows, each once: a second writer's append is skipped by Spark, and he is told."""
    place = lake.half(1)
    lake.decide(place, "DISCARD", "checkback")
    store = SparkStore(spark, Tables(root=lake.root))
    outcome = act(store, Asked("tx", place=place), QUEUE, resuming(QUEUE, ALICE, lake.clock))
    assert outcome.operation.new_place == Place(QUEUE, 0)
    (row,) = [row for row in lake.rows("half") if row["queue_id"] == QUEUE]
    (discarded,) = lake.rows("discarded")
    assert pa.Table.from_pylist([row], schema=arrow_schema("half")) == half_row(
        discarded, Place(QUEUE, 0), ALICE, outcome.operation.at
    )
    late = half_row(discarded, Place(QUEUE, 0), BOB, outcome.operation.at)
    assert not store.append("half", late, f"operator/{QUEUE}", 0)
    assert len(lake.rows("half")) == 2
    assert [row["actor"] for row in lake.rows("operations")] == ["alice"]


def test_store_is_sparks_where_the_files_are_not_plain(spark: SparkSession, lake: Lakehouse) -> None:
    """In a clustered table; or when the settings say so."""
    settings = Settings.model_validate({"storage": {"root": lake.root}})
    with open_tables(settings) as store:
        assert isinstance(store, FileStore)
    with open_tables(Settings.model_validate({"storage": {"root": lake.root, "writer": "spark"}})) as store:
        assert isinstance(store, SparkStore)
    spark.sql(f"ALTER TABLE delta.`{lake.root}/op` CLUSTER BY (queue_offset)")
    with open_tables(settings) as store:
        assert isinstance(store, SparkStore)
