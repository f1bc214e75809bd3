"""Spark Connect: Spark runs in a server, and this process is only a client.

There is no JVM here, nor in the process that runs a query's batches: the server starts a Python worker for these, with
a pickled copy of the batch function as of the query's start, and a separate client session.
"""

from __future__ import annotations

import os
import re
import warnings
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from checkback.errors import SettingsError, server_lost
from checkback.storage.dataframes import is_connect
from checkback.urls import MASK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checkback.settings import Settings

_HERE = ("localhost", "127.0.0.1", "::1")
#: what is secret in a server's URL, or may be meant as such in one that is mistyped
_SECRETS = re.compile(r"(token=)[^;&'\s]+|(?<=//)[^/;@\s]+@")
#: environment of a process that uses Spark Connect
_MODE = "SPARK_CONNECT_MODE_ENABLED"
#: more than a session's slots; a job with one number for each is cheap
_MANY = 1 << 12
#: how long a server may take to answer: it may be starting
_PATIENCE_S = 30


def server_of(settings: Settings) -> str | None:
    """The Spark Connect server's URL from the settings (``spark.remote``) or the environment (SPARK_REMOTE)."""
    return settings.spark.get("spark.remote") or os.environ.get("SPARK_REMOTE") or None


def check_server(url: str, local_folders: bool) -> None:
    """Raise SettingsError if Spark runs on another machine, but tables or checkpoints are in local folders."""
    host = urlsplit(url).hostname
    if local_folders and url.startswith("sc://") and host not in _HERE:
        raise SettingsError(
            f"the folder is of this machine, and Spark runs on {host}",
            "storage.root, storage.checkpoints",
            "name folders that both see: a URI, or a catalog and /Volumes/...",
        )


def without_secrets(text: str) -> str:
    """A text with a server's URL as it is shown."""
    return _SECRETS.sub(rf"\1{MASK}", text)


def connected(url: str) -> SparkSession:
    """A new session of the server. Raises TimeoutError, and what PySpark raises."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as Session

    from checkback.spark.connect_retry import ConnectRetryPolicy

    await_server(url)
    for lost in (Session._default_session, getattr(Session._active_session, "session", None)):
        if lost is not None:  # a new one does not take its place
            lost.stop()
    before = os.environ.get(_MODE)
    try:
        spark = SparkSession.builder.remote(url).getOrCreate()
    except BaseException:
        if before is None:  # PySpark leaves it: no Spark without Connect could be started any more
            os.environ.pop(_MODE, None)
        raise
    client: Any = spark.client
    client.set_retry_policies([ConnectRetryPolicy()])
    warnings.filterwarnings("ignore", "StreamingQueryListenerBus Handler thread")  # the call that fails says it
    return spark


def is_lost(spark: SparkSession) -> bool:
    """True if the server is gone, or does not know the session any more: it was idle, or the server was restarted."""
    try:
        spark.conf.get("spark.sql.session.timeZone")
    except Exception as error:  # noqa: BLE001 - told by the session's next use
        return server_lost(error)
    return False


def await_server(url: str) -> None:
    """Wait until the server takes connections. Raises TimeoutError: PySpark itself tries for ten minutes, silently."""
    if not url.startswith("sc://"):
        return
    import grpc
    from pyspark.sql.connect.client import DefaultChannelBuilder

    with DefaultChannelBuilder(url).toChannel() as channel:
        try:
            grpc.channel_ready_future(channel).result(_PATIENCE_S)
        except grpc.FutureTimeoutError as error:
            raise TimeoutError(f"the server has not answered for {_PATIENCE_S} s") from error


def classic_only(spark: SparkSession, command: str) -> None:
    """Raise SettingsError on Spark Connect."""
    if is_connect(spark):
        raise SettingsError(
            "does not run on Spark Connect",
            f"checkback {command}",
            "run it by spark-submit, or without SPARK_REMOTE",
        )


def parallelism(spark: SparkSession) -> int:
    """The number of tasks that run concurrently: Spark's default parallelism."""
    if not is_connect(spark):
        return spark.sparkContext.defaultParallelism
    return spark.range(_MANY).selectExpr("spark_partition_id() AS part").distinct().count()


def query_id(batch: DataFrame, name: str) -> str:
    """The id of the query ``name``, which runs this batch. Stored in its checkpoint, it survives restarts."""
    spark = batch.sparkSession
    if not is_connect(batch):
        return str(spark.sparkContext.getLocalProperty("sql.streaming.queryId"))
    return next(str(query.id) for query in spark.streams.active if query.name == name)
