"""The check query alone, as nothing but tests and benchmarks run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.check.query import check_query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from checkback.check.query import CheckBatches
    from checkback.settings import Settings
    from checkback.storage.tables import Tables


def start_check(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    available_now: bool,
    dispatch: type[CheckBatches] | None = None,
) -> StreamingQuery:
    """Start the query, without a Stopper."""
    writer, batches = check_query(spark, settings, tables, available_now, dispatch)
    return writer.foreachBatch(batches).start()
