"""From actions to the rows of the tables: each step as a DataFrame in and a DataFrame out."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import functions as F

from checkback import tables
from checkback.reconcile import rows
from checkback.reconcile.processor import ACTIONS_SCHEMA
from checkback.reconcile.segment import Action, Reason, Source
from checkback.reconcile.summary import sum_up

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)
T1 = datetime(2026, 1, 1, 0, 0, 1, tzinfo=timezone.utc)
T0_US, T1_US = 1_767_225_600_000_000, 1_767_225_601_000_000
BATCH_MS = T1_US // 1000


def _half(spark: SparkSession, *offsets_and_times: tuple[int, datetime, str]) -> DataFrame:
    content = [
        (0, offset, f"tx-{offset}", "orders", topic, 3, "tag", "key", {"k": "v"}, bytearray([offset]), T0, stored, None)
        for offset, stored, topic in offsets_and_times
    ]
    return spark.createDataFrame(content, tables.HALF)


def _action(action: Action, offset: int, store_us: int = T0_US, detail: int = 0, repeated: int = 0) -> dict[str, Any]:
    return {
        "action": int(action),
        "queue_id": 0,
        "queue_offset": offset,
        "check_times": 2,
        "detail": int(detail),
        "repeated": repeated,
        "store_us": store_us,
        "batch_time": BATCH_MS,
    }


def _actions(spark: SparkSession, *content: dict[str, Any]) -> DataFrame:
    """Actions with the identities of the offsets' own transactions."""
    names = [field.split()[0] for field in ACTIONS_SCHEMA.split(", ")]
    plain = spark.createDataFrame(
        [tuple(row.get(name, 0) for name in names) for row in content], ACTIONS_SCHEMA
    ).withColumns(
        {
            "transaction_id": F.concat(F.lit("tx-"), F.col("queue_offset").cast("string")),
            "producer_group": F.lit("orders"),
        }
    )
    group, transaction = rows.identity_columns()
    return plain.withColumns({"group_hash": group, "transaction_hash": transaction}).select(*names)


def test_commit_becomes_a_row_of_its_topic_only(spark: SparkSession) -> None:
    """All of the message, under the names of the topic table."""
    half = _half(spark, (1, T0, "a"), (2, T0, "b"), (3, T0, "a"))
    actions = _actions(spark, _action(Action.COMMIT, 1), _action(Action.COMMIT, 2), _action(Action.ROLLBACK, 3))
    found = rows.topic_rows(rows.acted_on(half, actions, sum_up(actions, 16)), "a", 7)
    expected = spark.createDataFrame(
        [(0, 1, 3, "tx-1", "orders", "tag", "key", {"k": "v"}, bytearray([1]), T0, T0, T1, 7)], tables.TOPIC
    )
    assert_df_equality(found, expected, ignore_nullable=True, ignore_metadata=True)


def test_decisions_say_state_source_and_reason(spark: SparkSession) -> None:
    """One row a decision; a check is none."""
    half = _half(spark, *((offset, T0, "a") for offset in (1, 2, 3, 4)))
    actions = _actions(
        spark,
        _action(Action.COMMIT, 1, detail=Source.CHECK),
        _action(Action.ROLLBACK, 2, detail=Source.OPERATOR),
        _action(Action.DISCARD, 3, detail=Reason.EXPIRED),
        _action(Action.CHECK, 4),
    )
    messages = rows.acted_on(half, actions, sum_up(actions, 16))
    expected = spark.createDataFrame(
        [
            (0, 1, "tx-1", "orders", "a", "COMMIT", "check", None, 2, T1, 7),
            (0, 2, "tx-2", "orders", "a", "ROLLBACK", "operator", None, 2, T1, 7),
            (0, 3, "tx-3", "orders", "a", "DISCARD", "checkback", "EXPIRED", 2, T1, 7),
        ],
        tables.DECISIONS,
    )
    found = rows.decision_rows(messages, 7)
    assert_df_equality(found, expected, ignore_nullable=True, ignore_metadata=True, ignore_row_order=True)
    requests = rows.request_rows(messages, 7).collect()
    assert [(row["queue_offset"], row["check_times"]) for row in requests] == [(4, 2)]


def test_body_is_left_behind_where_nobody_needs_it(spark: SparkSession) -> None:
    """Checks and rollbacks carry no bodies; commits and discards do."""
    half = _half(spark, *((offset, T0, "a") for offset in (1, 2, 3)))
    actions = _actions(spark, _action(Action.COMMIT, 1), _action(Action.ROLLBACK, 2), _action(Action.CHECK, 3))
    found = rows.acted_on(half, actions, sum_up(actions, 16)).collect()
    assert {row["queue_offset"]: row["body"] is not None for row in found} == {1: True, 2: False, 3: False}
    only_checks = _actions(spark, _action(Action.CHECK, 3))
    plan = rows.acted_on(half, only_checks, sum_up(only_checks, 16))
    assert [row["body"] for row in plan.collect()] == [None]


def test_decision_takes_the_row_that_the_segment_took(spark: SparkSession) -> None:
    """A second row of the same offset, landed later, is not published."""
    half = _half(spark, (1, T0, "a"), (1, T1, "b"))
    actions = _actions(spark, _action(Action.COMMIT, 1, store_us=T1_US))
    found = rows.acted_on(half, actions, sum_up(actions, 16)).collect()
    assert [row["real_topic"] for row in found] == ["b"]


def test_rows_that_cannot_be_told_apart_are_published_once(spark: SparkSession) -> None:
    """Same offset, same commit: one of them, always the same one, whatever their order."""
    actions = _actions(spark, _action(Action.COMMIT, 1, repeated=1))
    taken = set()
    for half in (_half(spark, (1, T0, "a"), (1, T0, "b")), _half(spark, (1, T0, "b"), (1, T0, "a"))):
        found = rows.acted_on(half, actions, sum_up(actions, 16)).collect()
        assert len(found) == 1
        taken.add(found[0]["real_topic"])
    assert len(taken) == 1


def _op(spark: SparkSession, *content: tuple[int, str, str]) -> DataFrame:
    made = [(0, offset, name, group, "COMMIT", "producer", None, T0, T0) for offset, name, group in content]
    return spark.createDataFrame(made, tables.OP)


@pytest.mark.parametrize(
    ("name", "group", "reason"),
    [
        ("tx-1", "orders", None),
        ("tx-9", "orders", rows.REJECTION[Reason.WRONG_TRANSACTION_ID]),
        ("tx-1", "others", rows.REJECTION[Reason.WRONG_GROUP]),
    ],
)
def test_late_op_is_rejected_only_if_it_is_not_the_halfs_own(
    spark: SparkSession, name: str, group: str, reason: str | None
) -> None:
    """The state has forgotten a decided half: the tables still know whose it was."""
    half, op = _half(spark, (1, T0, "a")), _op(spark, (1, name, group))
    group_hash, transaction_hash = rows.identity_columns()
    late = op.select(
        F.lit(int(Action.LATE_OP)).alias("action"),
        "queue_id",
        F.col("half_offset").alias("queue_offset"),
        F.lit(0).alias("detail"),
        rows.store_us(),
        group_hash,
        transaction_hash,
        F.lit(BATCH_MS).alias("batch_time"),
    )
    found = rows.rejected_ops(late, op, half).collect()
    assert [row["reason"] for row in found] == ([reason] if reason else [])
    if reason:
        assert found[0]["source"] == "op"
        assert json.loads(found[0]["raw"])["transaction_id"] == name


def test_repeated_half_is_recorded_without_its_body(spark: SparkSession) -> None:
    """The row that was not taken, by its own store time."""
    half = _half(spark, (1, T0, "a"), (1, T1, "b"))
    actions = _actions(spark, _action(Action.REJECT_HALF, 1, store_us=T1_US))
    (found,) = rows.rejected_halves(actions, half).collect()
    assert found["reason"] == "repeated (queue_id, queue_offset) 0/1"
    assert json.loads(found["raw"])["real_topic"] == "b"
    assert "body" not in json.loads(found["raw"])


def test_events_carry_identity_and_times_as_integers(spark: SparkSession) -> None:
    """An op that names no transaction has the mark for it; a half and its own op have the same hashes."""
    half = rows.half_events(_half(spark, (1, T1, "a"))).collect()[0]
    own, bare = rows.op_events(_op(spark, (1, "tx-1", "orders"), (1, None, "orders"))).collect()  # type: ignore[arg-type]
    assert (half["group"], half["transaction"]) == (own["group"], own["transaction"])
    assert bare["transaction"] == 0
    assert (half["born"], half["store"], half["immunity"]) == (T0_US // 1000, T1_US, -1)
