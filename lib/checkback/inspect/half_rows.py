"""Rows of `half` as Spark's DataFrames: what functions for notebooks share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY = ["queue_id", "queue_offset"]


def first_of_each(half: DataFrame) -> DataFrame:
    """`half` with one row per offset: the first that landed, as in the segments."""
    columns = [name for name in half.columns if name not in KEY]
    first = F.min_by(F.struct(*columns), "store_timestamp").alias("first")
    return half.groupBy(*KEY).agg(first).select(*KEY, "first.*")


def born() -> Column:
    """The effective born_timestamp: one later than the store_timestamp counts as that (rule 4)."""
    return F.least("born_timestamp", "store_timestamp")
