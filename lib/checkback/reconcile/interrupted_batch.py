"""The batch that was broken off: which one it is, by the tables alone. At most one is, the last that began.

Batch ids of an application follow one another, and each batch leaves a row in `batches`, last: so it is the one after
the last that has a row. Times alone do not tell, because clocks are set back: which application was the last one is
noted with the table `decisions` (`ownership`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from checkback.errors import StorageError
from checkback.reconcile.batches import TABLE
from checkback.reconcile.ownership import NAME, committed, last_owner
from checkback.reconcile.topic_tables import own_failure
from checkback.storage.checkpoint import read_checkpoint
from checkback.storage.dataframes import union
from checkback.storage.schemas import BATCH_TIMES

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
    """The last batch of an application that has a row in `batches`; -1 = none has.

    ``time``: its own (ms), and where it has none that of the last application's.
    """

    application: str | None
    batch_id: int
    time: int


@dataclass(frozen=True)
class InterruptedBatch:
    """A batch that may be half done. ``application``: None = not known. ``first``: no batch was before it."""

    application: str | None
    rows: BatchRows
    first: bool = False


def broken_off(
    rows: Sequence[BatchRows], concluded: Sequence[LastBatch], written: Iterable[LastBatch], owner: str | None
) -> InterruptedBatch | None:
    """Which of the batches that have rows and none in `batches` was broken off. Pure.

    ``concluded``: of each application that may have been the last one; empty: `batches` has no row. ``written``: those
    of them whose next batch is known, by Delta's application versions, to have been in a table. ``owner``: the
    application of the checkpoint, if there is one. The others were written by a release that had no `batches`.
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
    """The batch that may be half done; None = none is. Topics' tables that cannot be read are left out.

    Nobody may write the tables meanwhile. Raises StorageError.
    """
    batches = tables.read(spark, TABLE)
    owner = _owner(spark, tables)
    newest = batches.orderBy(F.desc("finished_at")).select("application", _millis("batch_time")).head()
    concluded: list[LastBatch] = []
    if newest is not None:
        last = F.max(F.struct("batch_id", _millis("batch_time"))).alias("last")
        rows = batches.where("application IS NOT NULL").groupBy("application").agg(last).collect()
        known = {row["application"]: (row["last"]["batch_id"], row["last"]["time"]) for row in rows}
        latest = last_owner(spark, tables, known) or newest["application"]
        none = -1, known.get(latest, (-1, newest["time"]))[1]
        concluded = [LastBatch(name, *known.get(name, none)) for name in dict.fromkeys([owner, latest, None])]
    written = [
        last
        for last in concluded
        if last.application is not None and committed(spark, tables, last.application, last.batch_id + 1)
    ]
    return broken_off(_unconcluded(spark, tables, batches), concluded, written, owner)


def _unconcluded(spark: SparkSession, tables: Tables, batches: DataFrame) -> list[BatchRows]:
    """The batches that have rows, and none in `batches`."""
    found = [_batches_of(tables.read(spark, name), time) for name, time in BATCH_TIMES.items()]
    found += [rows for name in tables.topics(spark) if (rows := _of_topic(spark, tables, name)) is not None]
    concluded = batches.select("batch_id", _millis("batch_time"))
    lacking = union(found).distinct().join(concluded, on=["batch_id", "time"], how="left_anti")
    return [BatchRows(row["batch_id"], row["time"]) for row in lacking.dropna().collect()]


def _of_topic(spark: SparkSession, tables: Tables, name: str) -> DataFrame | None:
    """None: the table cannot be read."""
    try:
        rows = _batches_of(tables.read(spark, name), "committed_at").distinct()
        rows.count()
    except Exception as error:  # noqa: BLE001 - raised again where it is not the table's own
        own_failure(error)
        return None
    return rows


def _batches_of(rows: DataFrame, time: str) -> DataFrame:
    return rows.select("batch_id", _millis(time))


def _millis(time: str) -> Column:
    return F.unix_millis(time).alias("time")


def _owner(spark: SparkSession, tables: Tables) -> str | None:
    """The query of the checkpoint, if there is one that can be read."""
    try:
        checkpoint = read_checkpoint(spark, tables.checkpoint(NAME))
    except StorageError:
        return None
    return None if checkpoint is None else checkpoint.query_id
