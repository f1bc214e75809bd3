"""Rows of `half` and `op` as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.reconcile.columns import half_events, op_events
from checkback.reconcile.segment import Kind
from checkback.schemas import OP
from reconcile.frames import half_frame, op_frame
from reconcile.messages import T0, T0_US, T1, T1_US, half

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_events_carry_identity_and_times_as_integers(spark: SparkSession) -> None:
    """An op that names no transaction has the mark for it; a half and its own op have the same hashes."""
    message = half_events(half_frame(spark, half(1, stored=T1))).collect()[0]
    own, bare = op_events(op_frame(spark, (1, "tx-1", "orders"), (1, None, "orders"))).collect()
    assert (message["group"], message["transaction"]) == (own["group"], own["transaction"])
    assert bare["transaction"] == 0
    assert (message["born"], message["store"], message["immunity"]) == (T0_US // 1000, T1_US, -1)
    assert own["store"] == T0.timestamp() * 1_000_000


def test_delivered_is_taken_from_the_check_query_only(spark: SparkSession) -> None:
    """It carries the check's number; from anybody else it is an unknown state, and so is any other word."""
    said = [
        ("DELIVERED", "check", "check 12"),
        ("DELIVERED", "check", None),
        ("DELIVERED", "check", "check many"),
        ("DELIVERED", "producer", "check 12"),
        ("DELIVERED", None, "check 12"),
        ("UNDELIVERED", "check", "check 12"),
        ("UNDELIVERED", "producer", "check 12"),
        ("COMMIT", "check", "check 12"),
        ("?", "check", "check 12"),
    ]
    rows = [(0, 1, "tx-1", "orders", state, source, remark, T0, T0) for state, source, remark in said]
    found = op_events(spark.createDataFrame(rows, OP)).select("kind", "immunity").collect()
    assert [(Kind(row["kind"]), row["immunity"]) for row in found] == [
        (Kind.DELIVERED, 12),
        (Kind.DELIVERED, -1),
        (Kind.DELIVERED, -1),
        (Kind.UNKNOWN, -1),
        (Kind.UNKNOWN, -1),
        (Kind.UNDELIVERED, 12),
        (Kind.UNKNOWN, -1),
        (Kind.COMMIT, -1),
        (Kind.UNKNOWN, -1),
    ]
