"""Rows of `half` and `op` as integers."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from checkback.messages.limits import MS_MAX
from checkback.reconcile.publish.event_columns import half_events, op_events
from checkback.reconcile.records.segment_records import Kind
from checkback.reconcile.state.packed_events import EVENT_COLUMNS, PACKED_SCHEMA, packer, unpack
from checkback.storage.spark_schemas import HALF, OP
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
        ("COUNTED", "check", "check 12"),
        ("COUNTED", "check", None),
        ("COUNTED", "check", "check many"),
        ("COUNTED", "producer", "check 12"),
        ("COUNTED", None, "check 12"),
        ("COMMIT", "check", "check 12"),
        ("COMMIT", "producer", "check 12"),
        ("?", "check", "check 12"),
        ("CANCEL", "operator", "check 12"),
        ("CANCEL", "producer", None),
        ("CANCEL", "check", None),
        ("CANCEL", None, None),
    ]
    rows = [(0, 1, "tx-1", "orders", state, source, remark, T0, T0) for state, source, remark in said]
    found = op_events(spark.createDataFrame(rows, OP)).select("kind", "check").collect()
    assert [(Kind(row["kind"]), row["check"]) for row in found] == [
        (Kind.COUNTED, 12),
        (Kind.COUNTED, -1),
        (Kind.COUNTED, -1),
        (Kind.UNKNOWN, -1),
        (Kind.UNKNOWN, -1),
        (Kind.COMMIT, 12),
        (Kind.COMMIT, -1),
        (Kind.UNKNOWN, -1),
        (Kind.CANCEL, -1),
        (Kind.CANCEL, -1),
        (Kind.UNKNOWN, -1),
        (Kind.UNKNOWN, -1),
    ]


def test_delay_is_one_number_and_never_too_short(spark: SparkSession) -> None:
    """Other writers may set anything: no sum of a time and a delay overflows, no time is rounded down."""
    told: list[tuple[int | None, datetime | None, bool | None]] = [
        (None, None, None),
        (5_000, None, True),
        (0, None, False),
        (-5, None, None),
        (2**63 - 1, None, None),
        (-(2**63), None, None),
        (None, T1, None),
        (None, T1 + timedelta(microseconds=1), None),
        (None, datetime(1960, 1, 1, tzinfo=timezone.utc), None),
        (None, datetime(9999, 12, 31, tzinfo=timezone.utc), None),
        (7, T1, None),
    ]
    rows = [half(1) | dict(zip(("delay_ms", "deliver_at", "committed"), more, strict=True)) for more in told]
    found = half_events(half_frame(spark, *rows)).select("kind", "delay").collect()
    kinds = [Kind.MESSAGE if committed else Kind.HALF for _, _, committed in told]
    century = 100 * 366 * 86_400_000
    end = round(datetime(9999, 12, 31, tzinfo=timezone.utc).timestamp() * 1000)
    delays = [0, -5_000, 0, 0, -century, 0, T1_US // 1000, T1_US // 1000 + 1, 1, end, T1_US // 1000]
    assert [(Kind(row["kind"]), row["delay"]) for row in found] == list(zip(kinds, delays, strict=True))
    # Spark's times reach further than Python's.
    for micros, delay in ((2**63 - 1, MS_MAX), (-(2**63), 1)):
        far = half_frame(spark, half(1)).withColumn("deliver_at", F.timestamp_micros(F.lit(micros)))
        assert [row["delay"] for row in half_events(far).select("delay").collect()] == [delay]


def test_rows_that_are_no_messages_are_left_out_and_those_beside_them_keep_every_bit(spark: SparkSession) -> None:
    """Another writer may append nulls and negative numbers: they must not take a place, nor change other rows."""
    good = {"queue_id": 3, "queue_offset": 2**53 + 1, "transaction_id": "t", "producer_group": "g", "real_topic": "x"}
    bad: list[dict[str, Any]] = [
        *({name: None} for name in good),
        {"queue_id": -1},
        {"queue_offset": -(2**63)},
        {"queue_id": None, "queue_offset": None},
    ]
    nothing = dict.fromkeys(HALF.names)
    halves = spark.createDataFrame([tuple((nothing | good | more).values()) for more in [*bad, {}]], HALF).coalesce(1)
    op = {"queue_id": 3, "queue_offset": 2**53 + 1, "producer_group": "g", "state": "COMMIT"}
    bad = [{"queue_id": None}, {"queue_offset": None}, {"producer_group": None}, {"queue_offset": -1}]
    nothing = dict.fromkeys(OP.names)
    ops = spark.createDataFrame([tuple((nothing | op | more).values()) for more in [*bad, {}]], OP).coalesce(1)
    events = half_events(halves).union(op_events(ops)).select(*EVENT_COLUMNS)
    packed = events.mapInArrow(packer(4096), PACKED_SCHEMA).collect()
    assert {row["segment"] for row in packed} == {f"3/{(2**53 + 1) // 4096}"}
    found = unpack([bytes(row["events"]) for row in packed])
    assert sorted(found[["offset", "kind"]].tolist()) == [(2**53 + 1, Kind.HALF), (2**53 + 1, Kind.COMMIT)]
