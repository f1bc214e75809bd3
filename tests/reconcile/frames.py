"""Rows of `half` and `op` as DataFrames, for tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from checkback.storage.spark_schemas import HALF, OP
from reconcile.messages import T0

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def half_frame(spark: SparkSession, *rows: dict[str, Any]) -> DataFrame:
    """Rows of `half` (`messages.half`)."""
    made = [row | {"properties": dict(row["properties"])} for row in rows]
    return spark.createDataFrame([tuple(row[name] for name in HALF.names) for row in made], HALF)


def op_frame(spark: SparkSession, *content: tuple[int, str | None, str]) -> DataFrame:
    """COMMITs as (offset, transaction id, group)."""
    made = [(0, offset, name, group, "COMMIT", "producer", None, T0, T0) for offset, name, group in content]
    return spark.createDataFrame(made, OP)
