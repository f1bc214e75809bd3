"""The Spark session that Checkback needs, with the reason for each setting.

There are three cases: a running session (Databricks, a notebook) is used as it is; spark-submit supplies master and
JARs; otherwise, from the console, a JVM is started on this machine.
Sources: the Structured Streaming guide (transformWithState, RocksDB state store), Delta's set-up page.
"""

from __future__ import annotations

import contextlib
import logging
import os
from threading import RLock
from typing import TYPE_CHECKING

import checkback
from checkback.errors import (
    CheckbackError,
    SettingsError,
    lost_connection,
    missing_module,
    reason,
    root_cause,
    server_lost,
)
from checkback.settings.model import MOST_PARTITIONS
from checkback.spark.connect import check_server, connected, is_lost, server_of, without_secrets
from checkback.spark.hadoop_settings import EXCLUDED, FILE_MANAGER, hadoop_settings, packages_for
from checkback.spark.jars import DELTA_PACKAGE, KAFKA_SOURCE
from checkback.spark.jvm import java_check, quick_start, sockets, start_jvm
from checkback.spark.stderr import HeldStderr
from checkback.storage.dataframes import is_connect
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.settings import Settings, Storage

#: the version of Spark that Delta's JAR is for
SPARK = "4.2"
_EXCLUDES = "spark.jars.excludes"
_PARTITIONS = "spark.sql.shuffle.partitions"
DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"

#: Required in every session; repeated in conf/spark-defaults.conf for clusters that share a session.
REQUIRED: Mapping[str, str] = {
    "spark.sql.extensions": DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # transformWithState requires RocksDB; fixed in the checkpoint.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # State commits upload changelogs, not whole snapshots.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # Avro supports schema evolution of state values.
    "spark.sql.streaming.stateStore.encodingFormat": "avro",
    # Arrow batches hold message bodies, and a task has a few in memory at a time.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "25000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(16 << 20),
    # One frame for each segment: a segment's rows of one batch are decided together.
    "spark.sql.execution.arrow.transformWithStateInPandas.maxRecordsPerBatch": "100000",
    # Timestamps in the tables, in JSON and in Python are UTC.
    "spark.sql.session.timeZone": "UTC",
    # Over TCP a Python task's last small write waits 40 ms for an acknowledgement (Nagle): twice in each batch.
    "spark.python.unix.domain.socket.enabled": "true",
    # With `reconcile.trigger: 0s` Spark looks for new commits again so soon (by default 10 ms) after it found none.
    "spark.sql.streaming.pollingDelay": "50ms",
}

#: Additional settings of a session that is not started by spark-submit, which supplies the JARs.
PACKAGED: Mapping[str, str] = {
    "spark.jars.packages": DELTA_PACKAGE,
    # Delta's dependencies that Spark already has, in newer versions that win: saves 75 MB of download.
    _EXCLUDES: ",".join(
        f"{group}:*"
        for group in (
            "com.fasterxml.jackson.core",
            "com.github.luben",
            "io.airlift",
            "org.apache.logging.log4j",
            "org.apache.parquet",
            "org.locationtech.jts",
            "org.roaringbitmap",
            "org.slf4j",
            "org.xerial.snappy",
        )
    )
    + ","
    + ",".join(EXCLUDED),
}

#: Additional settings of a session on one machine, where defaults meant for clusters cost seconds.
LOCAL: Mapping[str, str] = {
    # 50 tasks per snapshot by default: 8 s instead of 0.5 s for a tiny table.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.enabled": "false",
    "spark.sql.ui.explainMode": "simple",  # the UI's description of each batch's plan, which nobody reads
    # Failures are reported as one-line errors; stack traces are for --debug.
    "spark.log.level": "FATAL",
    # Which line of Python made a column: ten calls of the JVM for each column of each query.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
    "spark.driver.memory": "4g",
    # No limit: a batch's result is collected whole, and one over the limit would be so at every restart. Spark's 1g
    # would stop `reconcile` permanently although the batch fits into the driver's memory.
    "spark.driver.maxResultSize": "0",
    # What the UI would show of jobs and queries that have ended, by default of 1,000: half a megabyte a batch.
    **dict.fromkeys(("spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs", "spark.ui.retainedStages"), "10"),
    # On a few cores G1's threads take CPU time from the batch. Java collects all garbage whenever classes fill the
    # metaspace: from its default, 21 MiB, five times until the first batches.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC -XX:MetaspaceSize=256m",
    # Spark measures by the wall clock how long ago its executor was alive. Here that is the driver, and when the clock
    # was set forward (by NTP, after a suspension) it was given up, and the JVM ended ten minutes later.
    "spark.storage.blockManagerHeartbeatTimeoutMs": "36500d",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A worker daemon that has imported what Python workers need.
    "spark.python.daemon.module": "checkback.application.worker_daemon",
}

#: Added for short commands: the optimising JIT compiler takes half of a start's CPU time and only pays off later.
#: Without it Java reserves 48 MiB for compiled code, not 240: a run with much to do fills that, and Java says so on
#: stderr.
SHORT: Mapping[str, str] = {
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:MetaspaceSize=256m -XX:TieredStopAtLevel=1 "
    "-XX:ReservedCodeCacheSize=240m"
}

#: Added if the checkpoints are in local folders, too: Spark's default manager starts a process (`readlink`) for each
#: rename, some ten a batch, from a JVM of gigabytes. Both check whether the file exists, then rename.
LOCAL_CHECKPOINTS: Mapping[str, str] = {
    FILE_MANAGER: "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
}

# List settings: a user's entries are added to ours instead of replacing them.
_LISTS = ("spark.sql.extensions", "spark.jars.packages")

# Spark 4.2's driver worker prints these whatever the log level is, in every batch.
_CHATTER = "(Starting )?Streaming TransformWithState[a-zA-Z]* Python worker"

#: held while a session of our own runs: the process has one at a time, and whoever opened it stops it
_own, _PATIENCE_S = RLock(), 30.0

_log = logging.getLogger(__name__)


def under_spark_submit() -> bool:
    """True if this process was started by spark-submit (which supplies the JARs and the master)."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def kafka_package() -> str:
    """The package of Spark's Kafka source, in the version of the installed Spark."""
    from pyspark import __version__

    return f"org.apache.spark:{KAFKA_SOURCE}_2.13:{__version__}"


def spark_settings(
    settings: Settings, kafka: bool = False, short: bool = False, sources: Sequence[str] = ()
) -> dict[str, str]:
    """The Spark settings of a new session; those of ``settings.spark`` take precedence, lists are joined.

    ``kafka``: add Spark's Kafka source to the packages, unless the user's ``spark.jars`` has it. ``short``: for a
    short command. ``sources``: places that are read besides the tables.
    """
    conf = dict(REQUIRED)
    if not under_spark_submit():
        conf |= PACKAGED
    if not under_spark_submit() and settings.spark.get("spark.master", "local").startswith("local"):
        conf |= {**LOCAL, **(SHORT if short else {})}
        if local_path(settings.storage.checkpoints_root) is not None:
            conf |= LOCAL_CHECKPOINTS
        if _log.isEnabledFor(logging.DEBUG):
            conf["spark.log.level"] = "WARN"
    if kafka and not under_spark_submit() and KAFKA_SOURCE not in settings.spark.get("spark.jars", ""):
        conf["spark.jars.packages"] += f",{kafka_package()}"
    conf |= _object_store(settings, conf, sources)
    partitions = str(settings.reconcile.partitions or MOST_PARTITIONS)
    conf[_PARTITIONS] = partitions
    conf.setdefault("spark.databricks.delta.snapshotPartitions", partitions)
    if _EXCLUDES in conf:
        conf[_EXCLUDES] = _excluded(conf[_EXCLUDES], settings.spark.get("spark.jars.packages", ""))
    for key, value in settings.spark.items():
        conf[key] = _joined(conf.get(key, ""), value) if key in _LISTS else value
    return conf


def _excluded(excludes: str, packages: str) -> str:
    """The excludes without those that would drop a package that the user names."""
    named = [package.strip().split(":") for package in packages.split(",")]
    wanted = {":".join(parts[:2]) for parts in named} | {f"{parts[0]}:*" for parts in named}
    return ",".join(each for each in excludes.split(",") if each not in wanted)


def _places(storage: Storage) -> tuple[str, str]:
    """Where tables and checkpoints are; a catalog knows itself where its tables are."""
    return "" if storage.catalog else storage.root, storage.checkpoints_root


def _object_store(settings: Settings, conf: Mapping[str, str], sources: Sequence[str]) -> dict[str, str]:
    """The settings for an object store. spark-submit and a shared session bring the JARs themselves."""
    storage = settings.storage
    places = _places(storage)
    found = hadoop_settings(*places, storage.plain_options, os.environ, sources)
    packages = packages_for(*places, *sources)
    if packages and "spark.jars.packages" in conf:
        found["spark.jars.packages"] = ",".join([conf["spark.jars.packages"], *packages])
        found[_EXCLUDES] = conf.get(_EXCLUDES, ",".join(EXCLUDED))
    return found


def open_session(
    settings: Settings, app: str = "checkback", kafka: bool = False, short: bool = False, sources: Sequence[str] = ()
) -> SparkSession:
    """The running session, or a new one; ``kafka``, ``short`` and ``sources`` as in `spark_settings`.

    Raises SettingsError if Java or Delta's JARs are missing, or Spark is of another version, CheckbackError if it does
    not start.
    """
    try:
        from pyspark import SparkConf, SparkContext, __version__
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise missing_module(error, "spark") from error
    if not __version__.startswith(f"{SPARK}."):
        what = f"Spark {__version__} is not supported: Delta Lake has no JAR for it that was tested"
        raise SettingsError(what, "pyspark", f"install pyspark {SPARK} (docs/deploy.md has the versions)")

    running, server = _running(settings), server_of(settings)
    if running is None and server is not None:
        running = _connected(server, settings)
    if running is None and "DATABRICKS_RUNTIME_VERSION" in os.environ:
        running = SparkSession.builder.getOrCreate()
    if running is not None:
        return _adapted(running, settings)

    conf = spark_settings(settings, kafka, short, sources)
    conf |= sockets(conf)
    with contextlib.ExitStack() as stack:
        if under_spark_submit():
            _require_delta_jars()
            given = SparkConf().get("spark.sql.extensions", "") or ""
            conf["spark.sql.extensions"] = _joined(conf["spark.sql.extensions"], given)
        elif SparkContext._gateway is None:
            conf, environment = quick_start(conf, java_check())
            held = HeldStderr(_CHATTER, as_json=settings.log.format == "json")
            start_jvm(conf, environment, stack.enter_context(held))
        builder = SparkSession.builder.appName(app)
        for key, value in conf.items():
            builder = builder.config(key, value)
        try:
            spark = builder.getOrCreate()
        except Exception as error:
            why = root_cause(str(error).splitlines()) or reason(error)
            raise CheckbackError(f"Spark did not start: {why}", fix="check the spark settings") from error
        if not under_spark_submit() and settings.reconcile.partitions is None and _PARTITIONS not in settings.spark:
            _set_partitions(spark)
        _show_workers_the_package(spark)
        _hush()
        return spark


def _running(settings: Settings) -> SparkSession | None:
    """The session of this process, whichever thread opened it; None = there is none, or its server has lost it."""
    try:
        from pyspark.errors import PySparkRuntimeError
        from pyspark.sql import SparkSession
    except ImportError:  # `open_session` says so
        return None
    try:
        found = SparkSession.active()
    except PySparkRuntimeError:
        return None
    if is_connect(found):
        return None if server_of(settings) is not None and is_lost(found) else found
    return found if found.sparkContext._jsc is not None else None


def _set_partitions(spark: SparkSession) -> None:
    """Of a local session one a core, as Java counts them: each costs a small batch some 25 ms of a core."""
    if (spark.sparkContext.master or "").startswith("local"):
        spark.conf.set(_PARTITIONS, str(min(MOST_PARTITIONS, spark.sparkContext.defaultParallelism)))


def _hush() -> None:
    """Keep PySpark from printing each error with Java's stack trace, before anybody has looked at it."""
    from pyspark.logger import PySparkLogger

    if not _log.isEnabledFor(logging.DEBUG):
        for name in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
            PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _connected(server: str, settings: Settings) -> SparkSession:
    """A client session of the Spark Connect server."""
    storage = settings.storage
    folders = [None if storage.catalog else storage.root, storage.checkpoints]
    check_server(server, any(folder is not None and local_path(folder) is not None for folder in folders))
    try:
        return connected(server)
    except Exception as error:
        fix = "check that the server runs; checkback[connect] has what the client needs"
        what = without_secrets(f"no connection to Spark: {reason(error)}")
        raise CheckbackError(what, without_secrets(server.partition(";")[0]), fix) from error


def _show_workers_the_package(spark: SparkSession) -> None:
    """Put this package, also if in a zip of --py-files, on every Python worker's PYTHONPATH.

    Spark passes --py-files to task workers, but not to the worker that reads a stateful processor's schema
    (TransformWithStateInPySparkPythonPreInitRunner): that one only gets the environment.
    """
    place = os.path.dirname(os.path.dirname(os.path.abspath(checkback.__file__)))
    environment = spark.sparkContext.environment
    given = environment.get("PYTHONPATH", "")
    if place not in given.split(os.pathsep):
        environment["PYTHONPATH"] = os.pathsep.join(part for part in (given, place) if part)


@contextlib.contextmanager
def running_session(
    settings: Settings, app: str = "checkback", kafka: bool = False, short: bool = False, sources: Sequence[str] = ()
) -> Iterator[SparkSession]:
    """The session of ``open_session``; stopped at the end if it was opened here.

    While it is, other threads wait for its end, up to `_PATIENCE_S`: then CheckbackError is raised.
    """
    with contextlib.ExitStack() as stack:
        if not _own.acquire(timeout=_PATIENCE_S):
            raise CheckbackError("Spark is running something else in this process", fix="try again when it is done")
        stack.callback(_own.release)
        borrowed = _running(settings) is not None or "DATABRICKS_RUNTIME_VERSION" in os.environ
        if borrowed:
            stack.close()  # several threads may use it
        try:
            spark = open_session(settings, app, kafka, short, sources)
            if not borrowed:
                stack.callback(spark.stop)
            yield spark
        except Exception as error:
            if not server_lost(error):
                raise
            raise lost_connection(error) from error


def _joined(ours: str, theirs: str) -> str:
    """Merge two comma-separated lists without duplicates. A user's version of a package replaces ours."""
    entries = [entry.strip() for entry in theirs.split(",") if entry.strip()]
    names = {entry.rpartition(":")[0] or entry for entry in entries}
    kept = [entry for entry in ours.split(",") if entry and (entry.rpartition(":")[0] or entry) not in names]
    return ",".join(kept + entries)


def _adapted(spark: SparkSession, settings: Settings) -> SparkSession:
    """Apply the settings that can still be changed to a running session."""
    wanted = spark_settings(settings)
    if "DATABRICKS_RUNTIME_VERSION" not in os.environ and not is_connect(spark):
        given = spark.conf.get("spark.sql.extensions", "") or ""
        if DELTA_EXTENSION not in given:
            raise SettingsError(
                "the running Spark session has no Delta Lake",
                fix=f"start it with --packages {DELTA_PACKAGE} --properties-file conf/spark-defaults.conf",
            )
    for key, value in wanted.items():
        if spark.conf.isModifiable(key):
            _set(spark, key, value, asked_for=key in settings.spark)
        elif key in settings.spark and spark.conf.get(key, None) != value:
            _log.warning("%s cannot be changed in a running session and stays as it is", key)
    return spark


def _set(spark: SparkSession, key: str, value: str, asked_for: bool) -> None:
    """Set it. A Spark Connect server may not allow it: an error only if the user asked for the setting."""
    try:
        spark.conf.set(key, value)
    except Exception as error:
        if asked_for or not is_connect(spark):
            raise SettingsError(f"cannot be set: {reason(error)}", key, "leave it out") from error
        _log.debug("%s stays as the server has it: %s", key, reason(error))


def _require_delta_jars() -> None:
    """Check that spark-submit's JVM has Delta's classes: without them Spark only logs a stack trace and continues."""
    from pyspark import SparkContext

    SparkContext._ensure_initialized()
    jvm = SparkContext._jvm
    if jvm is not None and not jvm.org.apache.spark.util.Utils.classIsLoadable(DELTA_EXTENSION):
        raise SettingsError("Delta Lake's JARs are missing", "spark-submit", f"add --packages {DELTA_PACKAGE}")
