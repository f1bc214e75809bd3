"""Where the streams stand in the tables that they read, by their checkpoints."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from checkback.checkpoint import Batch, Position, parse_batch
from checkback.errors import StorageError
from checkback.maintain.keep import Reader
from checkback.reconcile.claims import REBUILDING
from checkback.session import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from checkback.tables import Tables

#: the sources of the queries, in their order
SOURCES: Mapping[str, tuple[str, ...]] = {"reconcile": ("half", "op", "ticks"), "check": ("check_requests",)}


@dataclass(frozen=True)
class Disk:
    """How checkpoints are looked at: ``names`` in a folder, none when it is not there, and the ``text`` of a file."""

    names: Callable[[str], list[str]]
    text: Callable[[str], str]


def disk_of(spark: SparkSession | None) -> Disk:
    """By Spark, or, without it, of this machine."""
    if spark is None:
        return Disk(_names, _text)
    from checkback import folders

    return Disk(partial(folders.names, spark), partial(folders.text, spark))


def needs_spark(tables: Tables) -> bool:
    """Are the checkpoints elsewhere than on this machine?"""
    return local_path(tables.checkpoint("")) is None


def rebuilding(tables: Tables, disk: Disk) -> bool:
    """Is a rebuild of the checkpoint under way, or was one broken off?"""
    folder, _, name = tables.checkpoint(REBUILDING).rpartition("/")
    return name in disk.names(folder)


def readers(tables: Tables, disk: Disk) -> dict[str, list[tuple[str, Reader]]]:
    """By table: Delta's id of the table that a query reads, and where it stands. Raises StorageError."""
    found: dict[str, list[tuple[str, Reader]]] = {}
    for query, sources in SOURCES.items():
        place = tables.checkpoint(query)
        # In this order: a batch is in `offsets` before it is in `commits`.
        done = [int(name) for name in disk.names(f"{place}/commits") if name.isdecimal()]
        begun = [int(name) for name in disk.names(f"{place}/offsets") if name.isdecimal()]
        if not begun:
            continue
        # The batch after the last one that is done begins where that one ends, also if it has begun already.
        last = max(done, default=None)
        number = min(begun) if last is None or last not in begun else last
        batch = parse_batch(number, disk.text(f"{place}/offsets/{number}"), place)
        for table, position in _positions(sources, batch):
            found.setdefault(table, []).append((position.table, reader_of(query, position, done=last == number)))
    return found


def reader_of(query: str, position: Position, done: bool) -> Reader:
    """Where a query stands whose oldest batch that matters ends at a position. ``done``: that batch is.

    A batch that is not done, and the first of its checkpoint, begins with the table's snapshot before its end
    (DeltaSource.getBatch of delta-io/delta).
    """
    if position.starting:
        return Reader(query, position.version, snapshot=position.version)
    if not done:
        return Reader(query, max(0, position.version - 1), snapshot=max(0, position.version - 1))
    return Reader(query, position.version)


def _positions(sources: tuple[str, ...], batch: Batch) -> list[tuple[str, Position]]:
    pairs = zip(sources, batch.positions, strict=False)
    return [(table, position) for table, position in pairs if position is not None]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"the checkpoint cannot be read: {error.strerror}", folder) from error


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError as error:
        raise StorageError(f"the checkpoint cannot be read: {error.strerror}", path) from error
