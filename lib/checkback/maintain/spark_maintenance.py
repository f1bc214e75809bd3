"""`maintain` for tables that only Spark writes, in catalogs and object stores: retention, then OPTIMIZE and VACUUM.

Delta itself cleans up the log there, at every checkpoint (delta.logRetentionDuration).
"""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from checkback.errors import StorageError, one_line
from checkback.maintain.maintenance import LOCK
from checkback.maintain.report import TableReport
from checkback.maintain.retained_rows import Removed
from checkback.maintain.row_retention import RowRetention
from checkback.maintain.rows_in_sql import RowsInSql
from checkback.maintain.sql_changes import SqlChanges
from checkback.maintain.streams import readers, removal_hold
from checkback.settings.values import SHORTEST_RETENTION
from checkback.storage.checkpoints.checkpoint import PARTITIONS
from checkback.storage.dataframes import session_conf
from checkback.storage.failure_scope import own_failure
from checkback.storage.lock import exclusive_lock
from checkback.storage.schemas import SCHEMAS, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from checkback.maintain.file_retention import Reader
    from checkback.maintain.maintenance import Progress
    from checkback.settings import Settings
    from checkback.storage.tables import Tables

_HOUR_MS = SHORTEST_RETENTION // timedelta(milliseconds=1)


def maintain_by_spark(
    spark: SparkSession, settings: Settings, tables: Tables, dry_run: bool, progress: Progress, now: int | None = None
) -> list[TableReport]:
    """Maintain the tables concurrently with their writers and readers. ``dry_run``: change nothing. ``now``: ms.

    Raises FencedError if another process maintains them, StorageError if a table other than a topic's cannot be read
    or written.
    """
    size = settings.maintain.target_file_size
    conf = {
        "spark.databricks.delta.optimize.maxFileSize": str(size),
        "spark.databricks.delta.optimize.minFileSize": str(size),
        # maintain.retention has its own lower limit, and the readers are known.
        "spark.databricks.delta.retentionDurationCheck.enabled": "false",
        # VACUUM starts as many tasks to compare the files of each table: by default 10,000, half a minute.
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": spark.conf.get(PARTITIONS) or "1",
    }
    with exclusive_lock(tables, LOCK), session_conf(spark, conf):
        # Before everything else: streams only move forward.
        found, held = readers(tables, spark), removal_hold(tables, spark)
        names = [*(name for name in SCHEMAS if tables.exists(spark, name)), *tables.topics(spark)]
        own = RowsInSql(SqlChanges(spark, tables), names, dry_run)
        if held is None:
            retain(own, settings, round(time.time() * 1000) if now is None else now)
        maintained = partial(_maintained, spark, settings, tables, found, held, dry_run, progress, own)
        return [_turn(name, maintained, progress) for name in names]


def retain(own: RowsInSql, settings: Settings, now: int) -> None:
    """Remove what the settings no longer keep. Raises StorageError."""
    changes = own.changes
    try:
        try:
            RowRetention(own, settings, list(own.names), now, own.dry_run).run()
        finally:
            if not own.dry_run:
                changes.settle(own.names)
    except (Py4JJavaError, PySparkException) as error:
        place = changes.tables.location("half")
        raise StorageError(f"retention failed: {one_line(error)}", place, "run it again") from error


def hours_kept(reader_times: Sequence[int | None], now: int, retention: timedelta) -> int | None:
    """Hours for VACUUM's RETAIN: the retention, extended if a stream is further behind; None = keep all.

    ``reader_times``: commit time of the oldest version that each stream needs (ms); None = unknown.
    """
    if any(time is None for time in reader_times):
        return None
    retained = -(-(retention // timedelta(milliseconds=1)) // _HOUR_MS)
    ages = [-(-(now - time) // _HOUR_MS) + 1 for time in reader_times if time is not None and now - time > 0]
    return max([retained, *(age for age in ages if age > retained)])


def _turn(name: str, maintained: Callable[[str], TableReport], progress: Progress) -> TableReport:
    """Maintain a table. A damaged topic table does not stop the others."""
    try:
        return maintained(name)
    except Exception as error:
        if not name.startswith(TOPIC_PREFIX):
            raise
        done = TableReport(name, skipped=own_failure(error))
        progress.end(done)
        return done


def _maintained(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    found: Mapping[str, Sequence[tuple[str, Reader]]],
    held: str | None,
    dry_run: bool,
    progress: Progress,
    own: RowsInSql,
    name: str,
) -> TableReport:
    began = time.monotonic()
    place = tables.in_sql(name)
    progress.begin(name, 1)
    try:
        before, version = _detail(spark, place), tables.version(spark, name)
        done = TableReport(name, before["numFiles"], before["numFiles"], before["sizeInBytes"], before["sizeInBytes"])
        done.version_before = done.version_after = version
        gone = own.removed.get(name, Removed())
        done.expired_rows, done.expired_bytes = gone.rows, None
        done.emptied_bodies, done.emptied_bytes = gone.bodies, gone.of_bodies
        done.removed_files = done.removed_bytes = done.removed_commits = done.rewritten = None
        if before["numFiles"] >= settings.maintain.min_files and not dry_run:
            metrics = spark.sql(f"OPTIMIZE {place}").select("metrics.*").first()
            done.rewritten = None if metrics is None else metrics["numFilesRemoved"]
        if held is not None:
            done.kept = (held,)
        else:
            mine = [reader for table, reader in found.get(name, ()) if table == before["id"]]
            _vacuum(spark, settings, tables, name, place, mine, done, dry_run)
        done.kept = (*done.kept, *gone.kept)
        if not dry_run:
            after = _detail(spark, place)
            done.files_after, done.bytes_after = after["numFiles"], after["sizeInBytes"]
            done.version_after = tables.version(spark, name)
    except (Py4JJavaError, PySparkException) as error:
        raise StorageError(f"cannot be maintained: {one_line(error)}", place, "run it again") from error
    progress.step()
    done.seconds = round(time.monotonic() - began, 3)
    progress.end(done)
    return done


def _vacuum(
    spark: SparkSession,
    settings: Settings,
    tables: Tables,
    name: str,
    place: str,
    mine: Sequence[Reader],
    done: TableReport,
    dry_run: bool,
) -> None:
    now = round(time.time() * 1000)
    oldest = min((reader.first for reader in mine), default=done.version_before)
    history = tables.history(spark, name, done.version_before - oldest + 100) if mine else {}
    times = [_made(history, reader.first, done.version_before, now) for reader in mine]
    hours = hours_kept(times, now, settings.maintain.retention)
    longer = hours is None or hours * timedelta(hours=1) > settings.maintain.retention + timedelta(hours=1)
    if longer:
        done.kept = tuple(f"{reader.query} stands at version {reader.unread}" for reader in mine)
    if hours is not None and not dry_run:
        spark.sql(f"VACUUM {place} RETAIN {hours} HOURS")


def _made(history: Mapping[int, int], version: int, newest: int, now: int) -> int | None:
    """Commit time of the version; a stream that has read everything needs no old one."""
    return now if version >= newest else history.get(version)


def _detail(spark: SparkSession, place: str) -> Any:
    return spark.sql(f"DESCRIBE DETAIL {place}").select("id", "numFiles", "sizeInBytes").first()
