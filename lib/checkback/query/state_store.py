"""Pending half messages in the state store, compared with the tables: a cross-check."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import StateError
from checkback.query.versions.table_versions import FixedTables
from checkback.query.versions.view import View
from checkback.reconcile.checkpoint_owner import NAME
from checkback.reconcile.records.actions import ACTIONS_SCHEMA, pack, pending_by_group
from checkback.reconcile.state.next_deliveries import load
from checkback.reconcile.state.packed_events import parse_key
from checkback.reconcile.state.processor import NEXT_NAME, STATE_NAME
from checkback.reconcile.state.registered_timers import registered_timers
from checkback.reconcile.state.state_codec import NO_TIMER, decode
from checkback.storage.files.paths import for_spark

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings
    from checkback.storage.checkpoints.checkpoint import Batch

_KEY = ["queue_id", "queue_offset"]
#: index of `half` among the sources of the query
_HALF = 0
_COUNTED = pa.schema(
    [
        ("queue_id", pa.int32()),
        ("segment", pa.int64()),
        ("pending", pa.int32()),
        ("scheduled", pa.int32()),
        ("oldest", pa.int64()),
        ("block", pa.binary()),
    ]
)
_DECODED = "queue_id INT, queue_offset BIGINT, born BIGINT, due BIGINT, check_times INT, timer BIGINT"


def state_pending(spark: SparkSession, settings: Settings, batch_id: int | None = None) -> DataFrame:
    """Pending half messages in the state store after a batch: the last completed one unless ``batch_id`` is given.

    Columns: queue_id INT, queue_offset BIGINT, born_timestamp, next_check_at (when it is due), check_times INT,
    timer_at (expiry of its segment's timer; null = none), registered BOOLEAN (Spark has that timer), batch_id.

    Spark keeps the state of a hundred batches. Reads the whole state and decodes it on the executors. Raises
    SettingsError if there are no tables, StateError if no batch is completed or the state cannot be read.
    """
    view = View.of(spark, settings)
    batch_id = _fixed(view)[1].batch_id if batch_id is None else batch_id
    rows = _variable(spark, view, batch_id, STATE_NAME)
    registered = registered_timers(spark, view.tables.checkpoint(NAME), batch_id).withColumn("registered", F.lit(True))
    size = settings.reconcile.segment_size

    def pending_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for segment, block in zip(batch.column("segment"), batch.column("block"), strict=True):
                yield _decoded(segment.as_py(), block.as_py(), size)

    decoded = rows.mapInArrow(pending_of, f"segment STRING, {_DECODED}")
    return decoded.join(registered, on=["segment", "timer"], how="left").select(
        *_KEY,
        F.timestamp_millis("born").alias("born_timestamp"),
        F.timestamp_millis("due").alias("next_check_at"),
        "check_times",
        F.when(F.col("timer") != NO_TIMER, F.timestamp_millis("timer")).alias("timer_at"),
        F.coalesce("registered", F.lit(False)).alias("registered"),
        F.lit(batch_id).cast("bigint").alias("batch_id"),
    )


def state_segments(spark: SparkSession, settings: Settings) -> DataFrame:
    """The segments in the state store after the last completed batch.

    Columns: queue_id INT, segment BIGINT, pending INT, scheduled INT, oldest BIGINT (born_timestamp of the oldest
    pending half message, ms; 0 = none), block BINARY (the same, and by group, as `actions.ACTIONS_SCHEMA`). Raises as
    `state_pending`.
    """
    view = View.of(spark, settings)
    batch_id, size = _fixed(view)[1].batch_id, settings.reconcile.segment_size
    blocks = _variable(spark, view, batch_id, STATE_NAME)
    beside = _variable(spark, view, batch_id, NEXT_NAME).withColumnRenamed("block", "next")

    def counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            rows = []
            columns = (batch.column(name).to_pylist() for name in ("segment", "block", "next"))
            for segment, block, value in zip(*columns, strict=True):
                queue_id, base = parse_key(segment, size)
                found, _ = load(block, lambda: value, base, size)  # noqa: B023 - called at once
                counts = queue_id, base // size, len(found.pending), len(found.scheduled), found.oldest
                rows.append((*counts, pack((*counts, 0, 0), pending_by_group(found.pending))))
            yield pa.RecordBatch.from_pylist([dict(zip(_COUNTED.names, row, strict=True)) for row in rows], _COUNTED)

    both = blocks.join(beside, on="segment", how="left")
    return both.mapInArrow(
        counted, f"queue_id INT, segment BIGINT, pending INT, scheduled INT, oldest BIGINT, {ACTIONS_SCHEMA}"
    )


def state_differences(spark: SparkSession, settings: Settings) -> DataFrame:
    """Offsets that are pending in the state store but not in the tables, or the reverse: there should be none.

    Columns: queue_id INT, queue_offset BIGINT, in_state, in_tables BOOLEAN, batch_id BIGINT. Both as of the last
    completed batch: rows of batches in progress, and rows that landed since, are left out. Shuffles the offsets of
    `half` and `decisions`. Raises as `state_pending`.
    """
    view = View.of(spark, settings)
    fixed, done = _fixed(view)
    position = done.position(_HALF)
    # A version may have been read in part: its rows may be in the state, but need not be.
    whole = -1 if position is None else position.unread - 1
    part = -1 if position is None else min(position.version, fixed.versions["half"])
    part = max(whole, part if position is not None and (position.index >= 0 or position.starting) else -1)
    decided = fixed.read("decisions").select(*_KEY)

    def undecided(version: int) -> DataFrame:
        half = view.tables.read(spark, "half", version) if version >= 0 else fixed.read("half").limit(0)
        return half.select(*_KEY).distinct().join(decided, on=_KEY, how="left_anti")

    state = state_pending(spark, settings, done.batch_id).select(*_KEY)
    missing = undecided(whole).join(state, on=_KEY, how="left_anti")
    surplus = state.join(undecided(part), on=_KEY, how="left_anti")
    return (
        missing.withColumns({"in_state": F.lit(False), "in_tables": F.lit(True)})
        .union(surplus.withColumns({"in_state": F.lit(True), "in_tables": F.lit(False)}))
        .withColumn("batch_id", F.lit(done.batch_id).cast("bigint"))
    )


def _fixed(view: View) -> tuple[FixedTables, Batch]:
    """The tables as of the last completed batch, and that batch. Raises StateError if there is none."""
    fixed = FixedTables.take(view.engine)
    if fixed.done is None:
        raise StateError("no batch of reconcile is done yet", view.tables.checkpoint(NAME), "run `checkback reconcile`")
    return fixed, fixed.done


def _variable(spark: SparkSession, view: View, batch_id: int, name: str) -> DataFrame:
    """A state variable of the segments after a batch: segment STRING, block BINARY."""
    _ = spark.streams.active  # creates the StateStoreCoordinator, which the state source needs
    options = {"batchId": str(batch_id), "stateVarName": name}
    rows = spark.read.format("statestore").options(**options).load(for_spark(view.tables.checkpoint(NAME)))
    return rows.select(F.col("key.*"), F.col("value.block")).toDF("segment", "block")


def _decoded(segment: str, block: bytes, size: int) -> pa.RecordBatch:
    """The pending half messages of a segment."""
    queue_id, base = parse_key(segment, size)
    found, timers = decode(block, base, size)
    pending = found.pending
    count = len(pending)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([segment] * count, pa.string()),
            pa.array(np.full(count, queue_id, np.int32)),
            *(pa.array(np.ascontiguousarray(pending[name])) for name in ("offset", "born", "due")),
            pa.array(np.ascontiguousarray(pending["check_times"])),
            pa.array(np.full(count, timers.due, np.int64)),
        ],
        names=["segment", "queue_id", "queue_offset", "born", "due", "check_times", "timer"],
    )
