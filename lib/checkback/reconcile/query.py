"""The reconcile query: half, op and ticks -> segments -> actions, which the Publisher turns into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from checkback.reconcile.checkpoint_owner import NAME
from checkback.reconcile.checkpointed_rules import HALF_BYTES
from checkback.reconcile.publish.event_columns import half_events, op_events
from checkback.reconcile.publish.publisher import BatchListener, Publisher, late_batch
from checkback.reconcile.records.actions import ACTIONS_SCHEMA
from checkback.reconcile.state.packed_events import EVENT_COLUMNS, PACKED_SCHEMA, packer
from checkback.reconcile.state.processor import SegmentProcessor
from checkback.storage.files.paths import for_spark
from checkback.storage.starting_versions import first_read

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.reconcile.checkpointed_rules import BatchRules
    from checkback.reconcile.state.wake_timers import WakeTimers
    from checkback.settings import Settings
    from checkback.storage.tables import Tables

#: Delta's default is 1,000 files per batch
_NO_LIMIT = str(2**31 - 1)


@dataclass(frozen=True)
class Restored:
    """The initial state and positions of a rebuilt checkpoint.

    ``blocks``: BLOCKS_SCHEMA, one row per segment. ``versions``: by table, the first version that the query reads.
    """

    blocks: DataFrame
    versions: Mapping[str, int]


def actions(
    half: DataFrame, op: DataFrame, ticks: DataFrame, size: int, decided: BatchRules, restored: Restored | None = None
) -> DataFrame:
    """ACTIONS_SCHEMA from the three streams (or any DataFrames with their columns). ``size``: the segment size.

    The order of the union matters: Spark determines the sources' latest offsets in that order. With `half` first, each
    batch that is not `behind` has read every op that landed before any of its half messages.
    """
    events = half_events(half).union(op_events(op)).union(_no_events(ticks)).select(*EVENT_COLUMNS)
    packed = events.mapInArrow(packer(size), PACKED_SCHEMA)
    told = decided.most_ops is not None  # whether a batch is told that it is behind
    return packed.groupBy("segment").transformWithStateInPandas(
        statefulProcessor=SegmentProcessor(decided.rules, size, decided.max_checks, decided.max_deliveries, told),
        outputStructType=ACTIONS_SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime",
        initialState=None if restored is None else restored.blocks.groupBy("segment"),
    )


def _limits(settings: Settings, decided: BatchRules) -> dict[str, dict[str, str]]:
    """By source the options that limit what a batch reads of it."""
    most, files = decided.most_ops, "maxFilesPerTrigger"
    return {
        "half": {files: str(settings.reconcile.max_files), "maxBytesPerTrigger": f"{HALF_BYTES}b"},
        "op": {files: _NO_LIMIT} if most is None else {files: str(most.files), "maxBytesPerTrigger": f"{most.size}b"},
    }


def _no_events(ticks: DataFrame) -> DataFrame:
    """An empty source: its new rows start a batch, and a batch fires the timers."""
    nothing = ticks.where(F.col("tick_at") < F.timestamp_micros(F.lit(0)))
    return nothing.select(
        F.lit(0).alias("queue_id"),
        F.lit(0).cast("bigint").alias("offset"),
        F.lit(3).cast("tinyint").alias("kind"),
        F.lit(0).cast("tinyint").alias("source"),
        *(
            F.lit(0).cast("bigint").alias(name)
            for name in ("born", "store", "immunity", "group", "transaction", "delay")
        ),
        F.lit(-1).alias("check"),
    )


def reconcile_query(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    decided: BatchRules,
    restored: Restored | None = None,
    observer: BatchListener | None = None,
    wakes: WakeTimers | None = None,
    once: bool = False,
) -> tuple[DataStreamWriter, Publisher]:
    """The query, not yet started, and its batch function. Its checkpoint is the folder `reconcile`.

    ``decided``: the rules of its batches, which must be stored (`batch_rules`). ``restored``: only for the first start
    of a rebuilt checkpoint. ``observer`` is notified of each batch, ``wakes`` of the next timers. ``once``: run one
    batch, the uncommitted one if there is one.
    """
    limits, size = _limits(settings, decided), settings.reconcile.segment_size
    if restored is None:
        begin = first_read(spark, tables, NAME)
    else:
        begin = {name: {"startingVersion": str(version)} for name, version in restored.versions.items()}

    def stream(name: str) -> DataFrame:
        return tables.stream(spark, name, **limits.get(name, {}), **begin[name])

    writer = (
        actions(stream("half"), stream("op"), stream("ticks"), size, decided, restored)
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", for_spark(tables.checkpoint(NAME)))
    )
    versions = None if restored is None else restored.versions
    late = None if decided.most_ops is None else late_batch(spark, tables)
    publisher = Publisher(tables, size, decided, observer, wakes, versions, available_now, late)
    if once:
        return writer.trigger(once=True), publisher
    if available_now:
        return writer.trigger(availableNow=True), publisher
    trigger = round(settings.reconcile.trigger.total_seconds() * 1000)
    return writer.trigger(processingTime=f"{trigger} milliseconds"), publisher
