"""Rows of `half` and `op` as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.reconcile.columns import half_events, op_events
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
