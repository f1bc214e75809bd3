"""DataFrame helpers for both classic Spark and Spark Connect sessions."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


_MAKING = threading.Lock()
_INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
_COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def is_connect(part: object) -> bool:
    """True for a Spark Connect session, DataFrame, query or writer."""
    return type(part).__module__.startswith("pyspark.sql.connect.")


def frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Arrow rows as a DataFrame.

    createDataFrame makes its session the active one of the whole process, not only of the thread. A batch's session is
    a clone, which would then stay active after the batch; so the previous one is reset. Batches append to their tables
    side by side: one at a time.
    """
    from pyspark.sql import SparkSession

    with _MAKING:
        before = None if is_connect(spark) else getattr(SparkSession, "_activeSession", None)
        try:
            # Combine the chunks: Spark 4.2 loses rows that follow an empty chunk.
            rows = rows.combine_chunks()
            if len(rows) == 0 and is_connect(spark):  # which asks for the schema of no rows
                from pyspark.sql.pandas.types import from_arrow_schema

                return spark.createDataFrame([], from_arrow_schema(rows.schema))
            return spark.createDataFrame(rows)
        finally:
            if before is not None:
                SparkSession._activeSession = before


@contextmanager
def without_codegen(spark: SparkSession) -> Iterator[None]:
    """Queries of the session over a few rows: compiling a plan with new literals takes longer than running it."""
    if is_connect(spark):  # the session is shared
        yield
        return
    with session_conf(spark, _INTERPRETED):
        yield


def compile_plans(spark: SparkSession, wanted: bool) -> None:
    """From now on the session's plans are compiled (Spark's default), or interpreted."""
    for key, value in (_COMPILED if wanted else _INTERPRETED).items():
        spark.conf.set(key, value)


@contextmanager
def session_conf(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings; at the end they are as before."""
    before = {key: spark.conf.get(key, None) for key in settings}
    try:
        for key, value in settings.items():
            spark.conf.set(key, value)
        yield
    finally:
        for key, given in before.items():
            if given is None:
                spark.conf.unset(key)
            else:
                spark.conf.set(key, given)


def union(frames: Sequence[DataFrame]) -> DataFrame:
    """The union by name of at least one frame.

    Built as a balanced tree: Spark analyses each union with its whole subtree, and recurses as deep as the plan.
    """
    if len(frames) == 1:
        return frames[0]
    middle = len(frames) // 2
    return union(frames[:middle]).unionByName(union(frames[middle:]))
