"""Spark Connect: Spark runs elsewhere, in a server, and this process only tells it what to do.

There is no JVM here, and none in the process that does a query's batches: the server starts a Python worker for these,
which has a copy of the batch function as it was when the query started, and a client session of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from checkback.errors import SettingsError
from checkback.storage.dataframes import is_connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

_HERE = ("localhost", "127.0.0.1", "::1")
#: more than a session has slots; a job of one number each is nothing
_MANY = 1 << 12


def server_of(settings: Settings) -> str | None:
    """The URL of the server that the settings (``spark.remote``) or the environment (SPARK_REMOTE) name."""
    return settings.spark.get("spark.remote") or os.environ.get("SPARK_REMOTE") or None


def check_server(url: str, local_folders: bool) -> None:
    """Raise SettingsError when Spark is on another machine, and tables or checkpoints in folders of this one."""
    host = urlsplit(url).hostname
    if local_folders and url.startswith("sc://") and host not in _HERE:
        raise SettingsError(
            f"the folder is of this machine, and Spark runs on {host}",
            "storage.root, storage.checkpoints",
            "name folders that both see: a URI, or a catalog and /Volumes/...",
        )


def classic_only(spark: SparkSession, command: str) -> None:
    """Raise SettingsError on Spark Connect."""
    if is_connect(spark):
        raise SettingsError(
            "does not run on Spark Connect",
            f"checkback {command}",
            "run it by spark-submit, or without SPARK_REMOTE",
        )


def parallelism(spark: SparkSession) -> int:
    """Tasks that run at once: by that many Spark divides what does not say otherwise."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    return spark.range(_MANY).selectExpr("spark_partition_id() AS part").distinct().count()


def query_id(batch: DataFrame, name: str) -> str:
    """The id of the query ``name``, which runs this batch: kept in its checkpoint, the same after every restart."""
    spark = batch.sparkSession
    if not is_connect(batch):
        return str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
    return next(str(query.id) for query in spark.streams.active if query.name == name)
