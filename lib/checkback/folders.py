"""Folders and small files of any file system that Spark reaches, by Hadoop's client in the driver."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError

from checkback.errors import StorageError
from checkback.stopping import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession


def names(spark: SparkSession, folder: str) -> list[str]:
    """What is in a folder; nothing when there is no such folder."""
    path, system = _path(spark, folder)
    return [status.getPath().getName() for status in system.listStatus(path)] if system.exists(path) else []


def text(spark: SparkSession, file: str) -> str:
    """The text of a small file."""
    path, system = _path(spark, file)
    stream = system.open(path)
    try:
        jvm: Any = spark._jvm
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    finally:
        stream.close()


def exists(spark: SparkSession, place: str) -> bool:
    """Is there such a file or folder?"""
    path, system = _path(spark, place)
    return bool(system.exists(path))


def make(spark: SparkSession, folder: str) -> None:
    """Make a folder, unless it is there. Raises StorageError."""
    path, system = _path(spark, folder)
    with _told(folder):
        system.mkdirs(path)


def delete(spark: SparkSession, folder: str) -> None:
    """Delete a folder with all that is in it, if it is there. Raises StorageError."""
    path, system = _path(spark, folder)
    with _told(folder):
        system.delete(path, True)


def move(spark: SparkSession, folder: str, to: str) -> bool:
    """Give a folder another place; False when it is not there. Raises StorageError."""
    path, system = _path(spark, folder)
    target, _ = _path(spark, to)
    with _told(folder):
        if not system.exists(path):
            return False
        moved = system.rename(path, target)
    if not moved:
        raise StorageError(f"cannot be moved to {to}", folder, "move it by hand")
    return True


@contextmanager
def _told(place: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        raise StorageError(f"the folder cannot be changed: {one_line(error)}", place) from error


def _path(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Hadoop's path and file system of a place."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
