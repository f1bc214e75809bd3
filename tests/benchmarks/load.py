"""Load for the benchmarks: half messages and ops as landing would leave them, made by Spark itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.tables import Tables

#: bytes of one block of a body: a SHA-256
_BLOCK = 32


@dataclass(frozen=True)
class Load:
    """Transactions of one half queue. Every ``1 / pending_share``-th gets no op."""

    spark: SparkSession
    tables: Tables
    body_bytes: int = 256
    topics: int = 4
    pending_every: int = 20
    queue_id: int = 0

    def land(self, first: int, n: int) -> None:
        """Append the half messages ``first`` .. ``first + n - 1`` to `half`, and their ops to `op`."""
        self.land_half(first, n)
        self.land_op(first, n)

    def land_half(self, first: int, n: int) -> None:
        """Append half messages; their bodies cannot be compressed."""
        offset = F.col("id")
        rows = self._ids(first, n).select(
            F.lit(self.queue_id).alias("queue_id"),
            offset.alias("queue_offset"),
            self._transaction_id().alias("transaction_id"),
            F.lit("orders").alias("producer_group"),
            F.concat(F.lit("topic_"), (offset % self.topics).cast("string")).alias("real_topic"),
            (offset % 8).cast("int").alias("real_queue_id"),
            F.lit("created").alias("tags"),
            offset.cast("string").alias("keys"),
            F.create_map(F.lit("region"), F.lit("eu")).alias("properties"),
            self._body().alias("body"),
            F.current_timestamp().alias("born_timestamp"),
            F.current_timestamp().alias("store_timestamp"),
            F.lit(None).cast("int").alias("check_immunity_s"),
        )
        self.tables.append(rows, "half")

    def land_op(self, first: int, n: int) -> None:
        """Append a COMMIT for each that is not left pending."""
        rows = (
            self._ids(first, n)
            .where(F.col("id") % self.pending_every != 0)
            .select(
                F.lit(self.queue_id).alias("queue_id"),
                F.col("id").alias("half_offset"),
                self._transaction_id().alias("transaction_id"),
                F.lit("orders").alias("producer_group"),
                F.lit("COMMIT").alias("state"),
                F.lit("producer").alias("source"),
                F.lit(None).cast("string").alias("remark"),
                F.current_timestamp().alias("born_timestamp"),
                F.current_timestamp().alias("store_timestamp"),
            )
        )
        self.tables.append(rows, "op")

    def _ids(self, first: int, n: int) -> DataFrame:
        return self.spark.range(first, first + n, 1, 2)

    def _transaction_id(self) -> Column:
        return F.format_string("FD00000000000000%016X", F.col("id"))

    def _body(self) -> Column:
        blocks = range(self.body_bytes // _BLOCK)
        return F.concat(*[F.unhex(F.sha2(F.format_string(f"{block}/%d", F.col("id")), 256)) for block in blocks])
