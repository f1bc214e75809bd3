"""The rows of `half` that a batch acts on, as a DataFrame."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from checkback.reconcile.publish import half_reader
from checkback.reconcile.publish.event_columns import identity_columns, store_us
from checkback.storage.dataframes import frame
from checkback.storage.offset_ranges import MAX_RANGES, within
from checkback.storage.spark_schemas import HALF

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pyspark.sql import SparkSession

    from checkback.reconcile.publish.half_lookup import HalfLookup
    from checkback.reconcile.records.actions import Actions
    from checkback.storage.tables import Tables

#: If fewer than one row in this many is wanted, Spark filters the rows with a broadcast join before Python gets them.
_FEW = 4


@dataclass(frozen=True)
class HalfRows:
    """`half`, for a batch's actions."""

    spark: SparkSession
    tables: Tables
    actions: Actions
    segment_size: int

    def in_driver(self, wanted: HalfLookup, most: int) -> Iterator[pa.RecordBatch] | None:
        """As `read`, without a Spark job; None if that takes more than ``most`` bytes of files, or only Spark can."""
        if wanted.identity is not None:
            return None
        files = self.tables.contents(self.spark, "half", lambda file: wanted.most_in(file.spans), most)
        return None if files is None else self._rows_of(files, wanted)

    def _rows_of(self, files: Iterable[bytes], wanted: HalfLookup) -> Iterator[pa.RecordBatch]:
        for file in files:
            yield from half_reader.read(
                half_reader.RowGroups("", len(file)), pa.BufferReader(file), wanted, self.actions.need_bodies
            )

    def read(self, wanted: HalfLookup) -> DataFrame:
        """The rows of `half` that include the wanted ones, in as few partitions as the work allows.

        Columns: those of `half`, and with ``wanted.identity`` group_hash and transaction_hash. Bodies are null, and
        not read, if no action needs one.
        """
        ranges = self.actions.ranges(self.segment_size, MAX_RANGES)
        half = self.tables.read(self.spark, "half").where(within(ranges))
        if sum(box.offsets for box in ranges) > _FEW * len(wanted.records):
            offsets = F.broadcast(_offsets(self.spark, wanted))
            half = half.join(offsets, on=["queue_id", "queue_offset"], how="left_semi")
        names: list[str] = list(HALF.names)
        if wanted.identity is not None:
            half = one_of_each(half)
            names += ["group_hash", "transaction_hash"]
        if not self.actions.need_bodies:
            half = half.withColumn("body", F.lit(None).cast("binary"))
        return half.select(*names).coalesce(-(-len(wanted.records) // half_reader.ROWS_A_TASK))


def one_of_each(half: DataFrame) -> DataFrame:
    """`half` deduplicated by offset, store_timestamp and identity, deterministically."""
    key = ["queue_id", "queue_offset", "store_us", "group_hash", "transaction_hash"]
    names = half.columns
    half = half.select("*", store_us(), *identity_columns())
    order = Window.partitionBy(*key).orderBy(F.xxhash64(F.to_json(F.struct(*names))))
    return half.withColumn("_n", F.row_number().over(order)).where(F.col("_n") == 1).drop("_n", "store_us")


def _offsets(spark: SparkSession, wanted: HalfLookup) -> DataFrame:
    fields = {"queue_id": wanted.records["queue_id"], "queue_offset": wanted.records["offset"]}
    rows = pa.table({name: pa.array(values) for name, values in fields.items()})
    return frame(spark, rows)
