"""The timers of a checkpoint, read from Spark's state store (its `statestore` source)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.reconcile.checkpoint_owner import NAME
from checkback.reconcile.state.packed_events import parse_key
from checkback.storage.checkpoints.checkpoint import last_done
from checkback.storage.files.paths import for_spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from checkback.storage.tables import Tables


def registered_timers(spark: SparkSession, place: str, batch_id: int) -> DataFrame:
    """The registered timers after a batch. Columns: segment STRING (its key), timer BIGINT (ms)."""
    # The state source needs the StateStoreCoordinator, which the first access to spark.streams creates.
    _ = spark.streams.active
    options = {"batchId": str(batch_id), "readRegisteredTimers": "true"}
    timers = spark.read.format("statestore").options(**options).load(for_spark(place))
    return timers.select(F.col("key.*"), F.col("expiration_timestamp_ms")).toDF("segment", "timer")


def timers_of(spark: SparkSession, tables: Tables) -> Iterator[tuple[int, int, int]]:
    """(queue_id, segment, ms) of each timer after the last completed batch; empty before the first."""
    place = tables.checkpoint(NAME)
    batch_id = last_done(spark, place)
    if batch_id < 0:
        return
    rows = registered_timers(spark, place, batch_id).toArrow()
    for key, timer in zip(*(rows.column(name).to_pylist() for name in ("segment", "timer")), strict=True):
        queue_id, segment = parse_key(key, 1)
        yield queue_id, segment, timer
