"""Builds the rows of `rejected` for a batch's rejected ops and half messages: joins, DataFrame in, DataFrame out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.reconcile.publish.event_columns import identity_columns, is_cancel, store_us
from checkback.reconcile.records.segment_records import REJECTION, Action, Reason
from checkback.storage.dataframes import frame
from checkback.storage.spark_schemas import HALF

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.reconcile.records.actions import Actions

_ROW_AND_IDENTITY = ["queue_id", "queue_offset", "store_us", "group_hash", "transaction_hash"]
_FIELDS = {
    "queue_id": "queue_id",
    "queue_offset": "offset",
    "store_us": "store",
    "group_hash": "group",
    "transaction_hash": "transaction",
    "action": "action",
    "detail": "detail",
}


def action_rows(spark: SparkSession, actions: Actions) -> DataFrame:
    """The actions as rows: queue_id, queue_offset, store_us and both hashes; action, detail, batch_time."""
    fields = actions.columns(_FIELDS.values())
    columns = {name: pa.array(fields[field]) for name, field in _FIELDS.items()}
    return frame(spark, pa.table(columns)).withColumn("batch_time", F.lit(actions.batch_time))


def rejected_ops(actions: DataFrame, op: DataFrame, half: DataFrame) -> DataFrame:
    """Rows of `rejected` for the ops that were not applied.

    An op whose half is already decided (LATE_OP) is a harmless duplicate if group and transaction match the half's;
    only otherwise it is rejected. The state no longer has the half's identity: `half` has, until retention removes it.
    """
    about = actions.where(F.col("action").isin(int(Action.REJECT_OP), int(Action.LATE_OP)))
    about = about.select(*_ROW_AND_IDENTITY, "action", "detail", "batch_time").distinct()
    ops = op.select("*", store_us(), *identity_columns())
    found = ops.join(F.broadcast(about), on=_ROW_AND_IDENTITY, how="inner")
    found = found.where(_is_about())
    owner = half.groupBy("queue_id", "queue_offset").agg(
        F.min_by(F.struct("producer_group", "transaction_id"), store_us()).alias("owner"),
    )
    judged = found.join(owner, on=["queue_id", "queue_offset"], how="left")
    late = F.col("action") == Action.LATE_OP
    other_group = late & (F.col("owner.producer_group") != F.col("producer_group"))
    other_id = late & (F.col("owner.transaction_id") != F.col("transaction_id"))  # null: it states none
    reason = (
        F.when(other_group, F.lit(REJECTION[Reason.WRONG_GROUP]))
        .when(other_id, F.lit(REJECTION[Reason.WRONG_TRANSACTION_ID]))
        .when(late & F.col("owner").isNull(), F.lit(REJECTION[Reason.NO_HALF]))
        .when(~late, _text_of(F.col("detail")))
    )
    return judged.select(
        F.lit("op").alias("source"),
        raw_op().alias("raw"),
        reason.alias("reason"),
        F.lit(None).cast("string").alias("file"),
        _time_of_batch().alias("rejected_at"),
    ).where(F.col("reason").isNotNull())


def _is_about() -> Column:
    """Whether the action is about this op: ops that landed together may differ only in their state."""
    refused = F.col("action") == Action.REJECT_OP
    for_state, for_cancel = (
        refused & (F.col("detail") == int(reason)) for reason in (Reason.UNKNOWN_STATE, Reason.NOT_SCHEDULED)
    )
    decides = F.coalesce(F.col("state").isin("COMMIT", "ROLLBACK"), F.lit(False))
    cancels = is_cancel()
    return F.when(decides, ~for_state & ~for_cancel).when(cancels, refused & ~for_state).otherwise(for_state)


def raw_op() -> Column:
    """A row of `op` as JSON, for the column raw."""
    born = F.unix_millis("born_timestamp").alias("born_timestamp")
    columns = ("transaction_id", "producer_group", "state", "source", "remark")
    return F.to_json(F.struct("queue_id", "queue_offset", *columns, born))


def rejected_halves(actions: DataFrame, half: DataFrame) -> DataFrame:
    """Rows of `rejected` for half messages at an offset seen before. Without the body."""
    about = actions.where(F.col("action") == Action.REJECT_HALF).select(*_ROW_AND_IDENTITY, "batch_time").distinct()
    rows = half.select("*", store_us(), *identity_columns())
    found = rows.join(F.broadcast(about), on=_ROW_AND_IDENTITY, how="inner").dropDuplicates(_ROW_AND_IDENTITY)
    names = [name for name in HALF.names if name != "body"]
    offset = F.concat_ws("/", "queue_id", "queue_offset")
    return found.select(
        F.lit("half").alias("source"),
        F.to_json(F.struct(*names)).alias("raw"),
        F.concat(F.lit("repeated (queue_id, queue_offset) "), offset).alias("reason"),
        F.lit(None).cast("string").alias("file"),
        _time_of_batch().alias("rejected_at"),
    )


def _time_of_batch() -> Column:
    return F.timestamp_millis("batch_time")


def _text_of(code: Column) -> Column:
    text = F.lit(None).cast("string")
    for reason, words in REJECTION.items():
        text = F.when(code == int(reason), F.lit(words)).otherwise(text)
    return text
