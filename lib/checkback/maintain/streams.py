"""Where the streams stand in the tables that they read, by their checkpoints; and if that is unknown, why."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, cast

from checkback.maintain.file_retention import Reader
from checkback.reconcile import checkpoint_owner
from checkback.reconcile.checkpoint_owner import NAME, owner_of
from checkback.storage.checkpoints.checkpoint import Batch, StreamPosition, numbers, parse_metadata, read_batch
from checkback.storage.files import filesystem
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables


def needs_spark(tables: Tables) -> bool:
    """Whether only Spark can read the checkpoints."""
    return filesystem.needs_spark(tables.checkpoint(""))


def rebuilding(tables: Tables, spark: SparkSession | None) -> bool:
    """Whether a rebuild of the checkpoint is in progress, or was interrupted."""
    return filesystem.exists(spark, tables.checkpoint(checkpoint_owner.REBUILDING))


def readers(tables: Tables, spark: SparkSession | None) -> dict[str, list[tuple[str, Reader]]]:
    """By table: Delta's id of the table that a query reads, and the query's position. Raises StorageError.

    ``spark``: only if the checkpoints are elsewhere (`needs_spark`).
    """
    found: dict[str, list[tuple[str, Reader]]] = {}
    for query, sources in SOURCES.items():
        place = tables.checkpoint(query)
        # In this order: a batch is in `offsets` before it is in `commits`.
        done = numbers(spark, f"{place}/commits")
        begun = numbers(spark, f"{place}/offsets")
        if not begun:
            continue
        # The batch after the last completed one starts at its end offsets, even if it has already begun.
        last = max(done, default=None)
        number = min(begun) if last is None or last not in begun else last
        batch = read_batch(spark, place, number)
        before = read_batch(spark, place, number - 1).positions if number - 1 in begun else ()
        starts = dict(zip(sources, before, strict=False))
        for table, position in _positions(sources, batch):
            start = starts.get(table)
            reader = reader_of(query, position, done=last == number)
            reader = replace(reader, begun=None if start is None else start.version)
            found.setdefault(table, []).append((position.table, reader))
    return found


def reader_of(query: str, position: StreamPosition, done: bool) -> Reader:
    """Position of a query whose oldest relevant batch ends at ``position``. ``done``: that batch is completed.

    The first batch of a checkpoint, if not completed, starts with the table's snapshot before its end
    (DeltaSource.getBatch of delta-io/delta).
    """
    if position.starting:
        return Reader(query, position.version, snapshot=position.version)
    if not done:
        return Reader(query, max(0, position.version - 1), snapshot=max(0, position.version - 1))
    return Reader(query, position.version)


def _positions(sources: tuple[str, ...], batch: Batch) -> list[tuple[str, StreamPosition]]:
    pairs = zip(sources, batch.positions, strict=False)
    return [(table, position) for table, position in pairs if position is not None]


REBUILDING = "a rebuild of the checkpoint is under way, or was broken off: nothing is removed until it is done"
LOST = "reconcile's checkpoint is not in storage.checkpoints, so nothing is removed: name its folder, or rebuild it"
OTHERS = (
    "storage.checkpoints has another checkpoint than that of the last reconcile, so nothing is removed: name its folder"
)


def removal_hold(tables: Tables, spark: SparkSession | None) -> str | None:
    """The reason; None: files may be removed. Raises StorageError.

    The tables name the checkpoint that owns them. ``spark``: only if they, or the checkpoints, need it.
    """
    if rebuilding(tables, spark):
        return REBUILDING
    session = cast("SparkSession", spark)
    if not tables.exists(session, "decisions"):
        return None
    place = f"{tables.checkpoint(NAME)}/metadata"
    lost = not filesystem.exists(spark, place)
    query_id = "" if lost else parse_metadata(filesystem.text(spark, place), place)
    found = owner_of(session, tables, tables.open_log("decisions") if tables.readable else None, query_id)
    if found.stands or not found.last:
        return None
    return LOST if lost else OTHERS
