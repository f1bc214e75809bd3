"""Progress of `reconcile` from its checkpoint: the newest batch begun (offset log) and completed (commit log)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from checkback.storage.checkpoint import Batch, parse_batch
from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Folders(Protocol):
    """Access to a checkpoint's files."""

    def names(self, folder: str) -> list[str]:
        """Names in a folder; empty if it does not exist."""

    def text(self, file: str) -> str:
        """Content of a file."""

    def modified(self, file: str) -> int | None:
        """Modification time of the file (ms); None = unknown."""


class LocalFolders:
    """Local folders: Spark is not needed."""

    def names(self, folder: str) -> list[str]:
        """As Folders."""
        return os.listdir(folder) if os.path.isdir(folder) else []

    def text(self, file: str) -> str:
        """As Folders."""
        with open(file, encoding="utf-8") as content:
            return content.read()

    def modified(self, file: str) -> int | None:
        """As Folders."""
        return round(os.path.getmtime(file) * 1000)


class SparkFolders:
    """Folders in any file system that Spark can access."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def names(self, folder: str) -> list[str]:
        """As Folders."""
        from checkback.storage import filesystem

        return filesystem.names(self._spark, folder)

    def text(self, file: str) -> str:
        """As Folders."""
        from checkback.storage import filesystem

        return filesystem.text(self._spark, file)

    def modified(self, file: str) -> int | None:  # noqa: ARG002 - not worth another call
        """As Folders: always unknown."""
        return None


@dataclass(frozen=True)
class Progress:
    """``begun``: the newest batch begun; ``done``: the last one completed, and when (``done_at``, ms)."""

    begun: Batch | None = None
    done: Batch | None = None
    done_at: int | None = None

    @property
    def under_way(self) -> Batch | None:
        """The batch in progress: begun and not completed."""
        if self.begun is None or (self.done is not None and self.done.batch_id >= self.begun.batch_id):
            return None
        return self.begun


def progress(filesystem: Folders, place: str, at_ms: int | None = None) -> Progress:
    """Progress of the query with the checkpoint in ``place``, now or ``at_ms``, as far as its offset log goes back.

    Raises StorageError if a batch cannot be read.
    """
    begun = _begun(filesystem, place, at_ms)
    if begun is None:
        return Progress()
    done = max(
        (number for number in _numbers(filesystem, f"{place}/commits") if number <= begun.batch_id), default=None
    )
    if done is None:
        return Progress(begun)
    if done == begun.batch_id:
        return Progress(begun, begun, filesystem.modified(f"{place}/commits/{done}"))
    # Its entry may have been purged from the offset log, though Spark keeps a hundred.
    known = str(done) in filesystem.names(f"{place}/offsets")
    batch = _batch(filesystem, place, done) if known else Batch(done, begun.time)
    return Progress(begun, batch, filesystem.modified(f"{place}/commits/{done}"))


def folders_of(place: str, spark: SparkSession | None) -> Folders | None:
    """Access to the checkpoint in ``place``; None = it needs Spark, and there is no session."""
    if local_path(place) is not None:
        return LocalFolders()
    return None if spark is None else SparkFolders(spark)


def _begun(filesystem: Folders, place: str, at_ms: int | None) -> Batch | None:
    for number in sorted(_numbers(filesystem, f"{place}/offsets"), reverse=True):
        batch = _batch(filesystem, place, number)
        if at_ms is None or batch.time <= at_ms:
            return batch
    return None


def _batch(filesystem: Folders, place: str, number: int) -> Batch:
    return parse_batch(number, filesystem.text(f"{place}/offsets/{number}"), place)


def _numbers(filesystem: Folders, folder: str) -> list[int]:
    return [int(name) for name in filesystem.names(folder) if name.isdecimal()]
