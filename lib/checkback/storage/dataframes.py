"""DataFrames of any session: classic, or of Spark Connect."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


def is_connect(part: object) -> bool:
    """Is it a session of Spark Connect, or a frame, a query or a writer of one?"""
    return type(part).__module__.startswith("pyspark.sql.connect.")


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Arrow rows as a DataFrame.

    PySpark makes the session of createDataFrame the active one of the whole process, not only of the thread: after a
    batch, whose session is a clone, whoever asks for the active session would get that clone.
    """
    from pyspark.sql import SparkSession

    before = None if is_connect(spark) else getattr(SparkSession, "_activeSession", None)
    try:
        # In one piece: of rows after an empty piece Spark 4.2 loses some, or all.
        return spark.createDataFrame(rows.combine_chunks())
    finally:
        if before is not None:
            SparkSession._activeSession = before


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """The rows of all of them, of which there must be one, by the names of the columns.

    As a balanced tree: Spark analyses each union with all that is under it, and its recursion is as deep as the plan.
    """
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return union(frames[:middle]).unionByName(union(frames[middle:]))
