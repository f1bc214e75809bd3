"""A name whose plain xxhash64 is another group's: its op ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from checkback.reconcile.publish.event_columns import half_events, op_events
from checkback.reconcile.records.segment_records import NOT_STATED
from reconcile.frames import half_frame, op_frame
from reconcile.messages import half
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: computed: xxhash64 of this name, seed 42, is that of "orders"
_COLLIDES = "-ZtIkm5SjQ6feh7ldNMSc04RvwwHVYHqyceT1AIn"
#: of this transaction id it is 0
_ZERO = "5ycOC_GE8f9DUs<TyUPiYfDsm^3;b3n1o[bbE2tk"


def test_colliding_names_have_other_hashes(spark: SparkSession) -> None:
    (own,) = half_events(half_frame(spark, half(1))).collect()
    (alien,) = op_events(op_frame(spark, (1, None, _COLLIDES))).collect()
    assert own["group"] != alien["group"]


def test_transaction_id_that_is_stated_is_never_taken_for_none(spark: SparkSession) -> None:
    (op,) = op_events(op_frame(spark, (1, _ZERO, "orders"))).collect()
    assert op["transaction"] != NOT_STATED


def test_op_of_a_colliding_group_ends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """It is rejected, and the owner's op is obeyed."""
    lake = Lakehouse(spark, tmp_path)
    lake.land("half", *_halves(0, 1))
    lake.land("op", _op(0, "COMMIT", _COLLIDES), _op(1, "ROLLBACK", _COLLIDES))
    lake.run(lake.settings())
    lake.land("op", _op(0, "ROLLBACK", "orders"), _op(1, "COMMIT", "orders"))
    lake.run(lake.settings())
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "ROLLBACK"), (1, "COMMIT")]
    assert [(json.loads(raw)["producer_group"], reason) for raw, reason in lake.rows("rejected", "raw", "reason")] == [
        (_COLLIDES, "wrong producer_group: not that of the half message")
    ] * 2


def _halves(*offsets: int) -> list[dict[str, object]]:
    common = {"producer_group": "orders", "real_topic": "t"}
    return [common | {"queue_offset": offset, "transaction_id": f"t{offset}"} for offset in offsets]


def _op(offset: int, state: str, group: str) -> dict[str, object]:
    return {"queue_offset": offset, "state": state, "producer_group": group, "source": "producer"}
