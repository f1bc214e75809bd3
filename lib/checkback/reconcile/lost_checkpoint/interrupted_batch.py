"""Identifies the interrupted batch from the tables alone. There is at most one: the last that began.

An application's batch ids are consecutive, and a batch's last commit is its row in `batches`: the interrupted batch is
the one after the last with a row. Times do not suffice, because clocks are set back; the log of `decisions` records
which application was the last (`ownership`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.reconcile.checkpoint_owner import NAME, committed, last_owner
from checkback.reconcile.publish.batch_row import TABLE
from checkback.storage.checkpoints.checkpoint import read_checkpoint
from checkback.storage.dataframes import union
from checkback.storage.failure_scope import own_failure
from checkback.storage.horizon import horizon
from checkback.storage.schemas import BATCH_TIMES
from checkback.storage.table_scan import read_table, read_topics

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from checkback.storage.tables import Tables


@dataclass(frozen=True)
class BatchRows:
    """The rows of one batch: its id and its time (ms)."""

    batch_id: int
    time: int


@dataclass(frozen=True)
class LastBatch:
    """An application's last batch in `batches`; -1 = none.

    ``time``: its time (ms); without one, that of the last application's batch.
    """

    application: str | None
    batch_id: int
    time: int


@dataclass(frozen=True)
class InterruptedBatch:
    """A batch that may be incomplete. ``application``: None = unknown. ``first``: it is the first batch of all."""

    application: str | None
    rows: BatchRows
    first: bool = False


def broken_off(
    rows: Sequence[BatchRows], concluded: Sequence[LastBatch], written: Iterable[LastBatch], owner: str | None
) -> InterruptedBatch | None:
    """The interrupted one of ``rows``, the batches with rows in a table but none in `batches`. Pure.

    ``concluded``: the last batch of each application that may have been the last; empty: `batches` has no row.
    ``written``: those of them whose next batch committed to a table, by Delta's transaction versions. ``owner``: the
    application of the checkpoint, if any. The remaining ``rows`` have lost theirs in `batches`.
    """
    if not rows:
        return None
    if not concluded:
        return InterruptedBatch(owner, max(rows, key=_by_time), first=len(rows) == 1 and rows[0].batch_id == 0)
    known = set(written)
    for last in concluded:
        mine = [one for one in rows if one.batch_id == last.batch_id + 1]
        mine = mine if last in known else [one for one in mine if one.time > last.time]
        if mine:
            return InterruptedBatch(last.application, max(mine, key=_by_time))
    return None


def _by_time(rows: BatchRows) -> tuple[int, int]:
    return rows.time, rows.batch_id


def find(spark: SparkSession, tables: Tables) -> InterruptedBatch | None:
    """The batch that may be incomplete; None = none is. Topic tables that cannot be read are ignored.

    No process may write the tables meanwhile. Raises StorageError.
    """
    batches = read_table(spark, tables, TABLE)
    owner = _owner(spark, tables)
    concluded = _last_batches(spark, tables, batches, owner)
    written = [
        last
        for last in concluded
        if last.application is not None and committed(spark, tables, last.application, last.batch_id + 1)
    ]
    return broken_off(_unconcluded(spark, tables, batches), concluded, written, owner)


def with_unconcluded(spark: SparkSession, tables: Tables, topics: Iterable[str]) -> list[str]:
    """Those of these topic tables whose logs tell that a batch without a row in `batches` has committed to them.

    Before the first row in `batches`, without a checkpoint: those that have rows. A log that cannot be read tells
    nothing. Raises StorageError.
    """
    owner = _owner(spark, tables)
    last = _last_batches(spark, tables, read_table(spark, tables, TABLE), owner) or [LastBatch(owner, -1, 0)]
    known = [(one.application, one.batch_id) for one in last if one.application is not None]
    if not known:
        return [name for name in topics if _has_rows(tables, name)]
    found = {name for application, done in known for name in committed(spark, tables, application, done + 1)}
    return [name for name in topics if name in found]


def _has_rows(tables: Tables, name: str) -> bool:
    """Whether the log of a topic table names files; elsewhere than in files it may have rows."""
    try:
        return not tables.by_files or bool(tables.log(name).data_files())
    except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
        own_failure(error)
        return False


def _last_batches(spark: SparkSession, tables: Tables, batches: DataFrame, owner: str | None) -> list[LastBatch]:
    """The last batch of each application that may have been the last; empty: `batches` has no row."""
    last = F.max(F.struct("batch_id", _millis("batch_time"))).alias("last")
    newest = F.max(F.struct(F.unix_micros("finished_at").alias("finished"), _millis("batch_time"))).alias("newest")
    rows = batches.groupBy("application").agg(last, newest).collect()
    if not rows:
        return []
    at_last = max(rows, key=lambda row: -1 if row["newest"]["finished"] is None else row["newest"]["finished"])
    known = {row["application"]: tuple(row["last"]) for row in rows if row["application"] is not None}
    latest = last_owner(spark, tables, known) or at_last["application"]
    none = -1, known.get(latest, (-1, at_last["newest"]["time"]))[1]
    return [LastBatch(name, *known.get(name, none)) for name in dict.fromkeys([owner, latest, None])]


def _unconcluded(spark: SparkSession, tables: Tables, batches: DataFrame) -> list[BatchRows]:
    """The batches that have rows in a table, and none in `batches`."""
    concluded = batches.select("batch_id", _millis("batch_time"))

    def lacking(topics: Iterable[str]) -> list[BatchRows]:
        parts = [_batches_of(read_table(spark, tables, name), time) for name, time in BATCH_TIMES.items()]
        found = union([*parts, _batches_of_topics(spark, tables, topics)])
        at = horizon(spark, tables)  # of batches before it rows are left, and their own rows may be gone
        found = found if at is None else found.where(F.col("time") >= at)
        rows = found.distinct().join(concluded, on=["batch_id", "time"], how="left_anti").dropna().collect()
        return [BatchRows(row["batch_id"], row["time"]) for row in rows]

    topics = tables.topics(spark)
    try:
        return lacking(topics)
    except Exception as error:  # noqa: BLE001 - re-raised unless a topic table's own
        own_failure(error)
    return lacking(name for name in topics if _is_readable(spark, tables, name))


def _is_readable(spark: SparkSession, tables: Tables, name: str) -> bool:
    """False if the topic table cannot be read."""
    try:
        _batches_of_topics(spark, tables, [name]).distinct().count()
    except Exception as error:  # noqa: BLE001 - re-raised unless the table's own
        own_failure(error)
        return False
    return True


def _batches_of_topics(spark: SparkSession, tables: Tables, topics: Iterable[str]) -> DataFrame:
    return _batches_of(read_topics(spark, tables, dict.fromkeys(topics), ("batch_id", "published_at")), "published_at")


def _batches_of(rows: DataFrame, time: str) -> DataFrame:
    return rows.select("batch_id", _millis(time))


def _millis(time: str) -> Column:
    return F.unix_millis(time).alias("time")


def _owner(spark: SparkSession, tables: Tables) -> str | None:
    """The query id of the checkpoint; None if it is missing or unreadable."""
    try:
        checkpoint = read_checkpoint(spark, tables.checkpoint(NAME))
    except StorageError:
        return None
    return None if checkpoint is None else checkpoint.query_id
