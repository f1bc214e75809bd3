"""Positions of the streams in the tables that they read, from their checkpoints."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkback.maintain.retention import Reader
from checkback.reconcile.checkpoint_owner import REBUILDING
from checkback.storage.checkpoints.checkpoint import Batch, StreamPosition, numbers, read_batch
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
    return filesystem.exists(spark, tables.checkpoint(REBUILDING))


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
