"""What a batch did not take: joins, DataFrame in, DataFrame out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as F

from checkback.reconcile.publish.event_columns import identity_columns, store_us
from checkback.reconcile.publish.rejected import action_rows, rejected_halves, rejected_ops
from checkback.reconcile.records.segment_records import REJECTION, Action, Reason
from reconcile.frames import half_frame, op_frame
from reconcile.messages import BATCH_MS, T0, T0_US, T1, T1_US, action, actions, half

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _with_identity(rows: DataFrame, frame: DataFrame) -> DataFrame:
    """Actions with the hashes of the rows that they are about."""
    group, transaction = identity_columns()
    hashes = frame.select(store_us(), group, transaction)
    return rows.drop("group_hash", "transaction_hash").join(hashes, "store_us")


@pytest.mark.parametrize(
    ("name", "group", "reason"),
    [
        ("tx-1", "orders", None),
        ("tx-9", "orders", REJECTION[Reason.WRONG_TRANSACTION_ID]),
        ("tx-1", "others", REJECTION[Reason.WRONG_GROUP]),
    ],
)
def test_late_op_is_rejected_only_if_it_is_not_the_halfs_own(
    spark: SparkSession, name: str, group: str, reason: str | None
) -> None:
    """The state has forgotten a decided half: the tables still know whose it was, until retention removes it."""
    messages, op = half_frame(spark, half(1)), op_frame(spark, (1, name, group))
    late = _with_identity(action_rows(spark, actions(action(Action.LATE_OP, 1))), op)
    found = rejected_ops(late, op, messages).collect()
    assert [row["reason"] for row in found] == ([reason] if reason else [])
    removed = rejected_ops(late, op, messages.limit(0)).collect()
    assert [row["reason"] for row in removed] == [REJECTION[Reason.NO_HALF]]
    if reason:
        assert found[0]["source"] == "op"
        assert json.loads(found[0]["raw"])["transaction_id"] == name


@pytest.mark.spine("rejected ops")
def test_op_of_an_unknown_state_is_rejected_and_not_the_one_beside_it(spark: SparkSession) -> None:
    """They landed together, and agree in all but their state."""
    good = op_frame(spark, (1, "tx-1", "orders"))
    for state in ("COMIT", None):
        op = good.unionByName(good.withColumn("state", F.lit(state).cast("string")))
        about = action_rows(spark, actions(action(Action.REJECT_OP, 1, detail=Reason.UNKNOWN_STATE)))
        (found,) = rejected_ops(_with_identity(about, good), op, half_frame(spark, half(1))).collect()
        assert found["reason"] == REJECTION[Reason.UNKNOWN_STATE]
        assert json.loads(found["raw"]).get("state") == state


def test_repeated_half_is_recorded_without_its_body(spark: SparkSession) -> None:
    """The row that was not taken, by its own store time."""
    messages = half_frame(spark, half(1, "a", T0), half(1, "b", T1))
    rows = action_rows(spark, actions(action(Action.REJECT_HALF, 1, store_us=T1_US)))
    (found,) = rejected_halves(_with_identity(rows, messages.where(F.col("real_topic") == "b")), messages).collect()
    assert found["reason"] == "repeated (queue_id, queue_offset) 0/1"
    assert json.loads(found["raw"])["real_topic"] == "b"
    assert "body" not in json.loads(found["raw"])


def test_actions_become_rows(spark: SparkSession) -> None:
    """With the batch's time."""
    (row,) = action_rows(spark, actions(action(Action.REJECT_OP, 3, detail=Reason.NO_HALF))).collect()
    assert (row["queue_offset"], row["store_us"], row["detail"], row["batch_time"]) == (
        3,
        T0_US,
        Reason.NO_HALF,
        BATCH_MS,
    )
