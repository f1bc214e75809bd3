"""Folders and small files of any file system that Spark reaches, by Hadoop's client in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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


def _path(spark: SparkSession, place: str) -> tuple[Any, Any]:
    """Hadoop's path and file system of a place."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(place)
    return path, path.getFileSystem(spark._jsc.hadoopConfiguration())
