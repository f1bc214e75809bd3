"""The reconcile query: half, op and ticks -> segments -> actions, which the Publisher turns into rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from checkback.connect import is_connect
from checkback.reconcile.actions import ACTIONS_SCHEMA
from checkback.reconcile.claims import NAME
from checkback.reconcile.columns import half_events, op_events
from checkback.reconcile.events import EVENT_COLUMNS, PACKED_SCHEMA, packer
from checkback.reconcile.processor import SegmentProcessor
from checkback.reconcile.publish import Publisher
from checkback.reconcile.segment import Rules

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from checkback.observe.observer import Observer
    from checkback.reconcile.wakes import Wakes
    from checkback.settings import Settings
    from checkback.tables import Tables

#: Delta reads at most 1,000 files a batch unless told otherwise. Of `op`, each batch must see all that has landed,
#: so that nothing is checked whose answer is already there.
_NO_LIMIT = str(2**31 - 1)


def rules_of(settings: Settings) -> Rules:
    """The protocol's settings in milliseconds."""
    transaction = settings.transaction

    def ms(duration: timedelta) -> int:
        return round(duration.total_seconds() * 1000)

    return Rules(
        timeout=ms(transaction.timeout),
        check_interval=ms(transaction.check_interval),
        check_max=transaction.check_max,
        reserved=ms(transaction.reserved),
        check_jitter=ms(transaction.check_jitter),
        count_undelivered=settings.check.count_undelivered,
    )


@dataclass(frozen=True)
class Restored:
    """What a new checkpoint begins with instead of the tables' first rows.

    ``blocks``: BLOCKS_SCHEMA, one row a segment. ``versions``: by table, the first version that the query reads.
    """

    blocks: DataFrame
    versions: Mapping[str, int]


def actions(
    half: DataFrame, op: DataFrame, ticks: DataFrame, settings: Settings, restored: Restored | None = None
) -> DataFrame:
    """ACTIONS_SCHEMA from the three streams (or, in a test, from anything with their columns).

    The order of the union matters: Spark asks its sources for their newest rows in that order. With `half` first,
    each batch sees every op that landed before any of its half messages did.
    """
    size = settings.reconcile.segment_size
    events = half_events(half).union(op_events(op)).union(_no_events(ticks)).select(*EVENT_COLUMNS)
    packed = events.mapInArrow(packer(size), PACKED_SCHEMA)
    return packed.groupBy("segment").transformWithStateInPandas(
        statefulProcessor=SegmentProcessor(rules_of(settings), size, _max_checks(half, settings)),
        outputStructType=ACTIONS_SCHEMA,
        outputMode="Update",
        timeMode="ProcessingTime",
        initialState=None if restored is None else restored.blocks.groupBy("segment"),
    )


def _max_checks(half: DataFrame, settings: Settings) -> int | None:
    """Of one partition. On Spark Connect nobody here is told what still waits: there nothing does."""
    return None if is_connect(half) else max(1, settings.reconcile.max_checks // settings.reconcile.partitions)


def _no_events(ticks: DataFrame) -> DataFrame:
    """No rows, but a source: its new rows start a batch, and a batch fires the timers."""
    nothing = ticks.where(F.col("tick_at") < F.timestamp_micros(F.lit(0)))
    return nothing.select(
        F.lit(0).alias("queue_id"),
        F.lit(0).cast("bigint").alias("offset"),
        F.lit(3).cast("tinyint").alias("kind"),
        F.lit(0).cast("tinyint").alias("source"),
        *(F.lit(0).cast("bigint").alias(name) for name in ("born", "store", "immunity", "group", "transaction")),
    )


def reconcile_query(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    restored: Restored | None = None,
    observer: Observer | None = None,
    wakes: Wakes | None = None,
) -> tuple[DataStreamWriter, Publisher]:
    """The query, not yet started, and its batch function. Its checkpoint is the folder `reconcile`.

    ``restored``: only for the first start of a checkpoint that is built from the tables. ``observer``: is told of each
    batch, ``wakes`` of what is due after it.
    """
    limits = {"half": str(settings.reconcile.max_files), "op": _NO_LIMIT}

    def stream(name: str) -> DataFrame:
        options = {"maxFilesPerTrigger": limits[name]} if name in limits else {}
        if restored is not None:
            options["startingVersion"] = str(restored.versions[name])
        return tables.stream(spark, name, **options)

    writer = (
        actions(stream("half"), stream("op"), stream("ticks"), settings, restored)
        .writeStream.queryName(NAME)
        .outputMode("update")
        .option("checkpointLocation", tables.checkpoint(NAME))
    )
    publisher = Publisher(tables, settings.reconcile.segment_size, observer, wakes)
    if available_now:
        return writer.trigger(availableNow=True), publisher
    trigger = round(settings.reconcile.trigger.total_seconds() * 1000)
    return writer.trigger(processingTime=f"{trigger} milliseconds"), publisher
