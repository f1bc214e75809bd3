"""How often each half message was checked, by the tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.reconcile.columns import op_events
from checkback.reconcile.segment import Kind

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def checks_so_far(check_requests: DataFrame, op: DataFrame) -> DataFrame:
    """By offset: checks so far that count, and when the last one was.

    Columns queue_id, offset, check_times INT, checked BIGINT (ms). A check that was taken back (docs/protocol.md,
    rule 9) does not count; when it was does.
    """
    key = ["queue_id", "offset"]
    last = F.max(F.struct("requested_at", "check_times")).alias("last")
    asked = check_requests.groupBy("queue_id", F.col("queue_offset").alias("offset")).agg(last)
    back = op_events(op).where(F.col("kind") == Kind.UNDELIVERED)
    back = back.groupBy(*key).agg(F.max(F.struct("store", "immunity")).alias("back"))
    # Taken back: no endpoint received the last one, and no other has followed.
    taken_back = (F.col("back.immunity") == F.col("last.check_times")) & (
        F.col("back.store") > F.unix_micros("last.requested_at")
    )
    return asked.join(back, on=key, how="left").select(
        *key,
        (F.col("last.check_times") - F.when(taken_back, 1).otherwise(0)).alias("check_times"),
        F.unix_millis("last.requested_at").alias("checked"),
    )
