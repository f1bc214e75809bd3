"""Hadoop's client for S3 is loaded while Spark starts.

It has 2,400 classes, which no class-data archive has: 0.7 s of CPU time, otherwise on the way to the first table.
"""

from __future__ import annotations

from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING, Any

from checkback.spark.hadoop_settings import in_s3

if TYPE_CHECKING:
    from collections.abc import Mapping

_HADOOP = "spark.hadoop."
#: what fails here is not tried again: whoever needs the store does, and says why
_ONCE = {"fs.s3a.attempts.maximum": "1", "fs.s3a.retry.limit": "0"}


def load(conf: Mapping[str, str], *places: str) -> Thread | None:
    """Look for the first of the places that is in S3 (HEAD, LIST), on another thread; None = none is.

    By a file system of its own: Spark's has settings that are known later.
    """
    found = in_s3(*places)
    if not found:
        return None
    hadoop = {key.removeprefix(_HADOOP): value for key, value in conf.items() if key.startswith(_HADOOP)}
    thread = Thread(target=_look, args=(hadoop | _ONCE, found[0]), daemon=True)
    thread.start()
    return thread


def _look(hadoop: Mapping[str, str], place: str) -> None:
    from pyspark import SparkContext

    with suppress(Exception):
        jvm: Any = SparkContext._jvm
        settings, path = jvm.org.apache.hadoop.conf.Configuration(), jvm.org.apache.hadoop.fs.Path(place)
        for key, value in hadoop.items():
            settings.set(key, value)
        files = jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), settings)
        try:
            files.exists(path)
        finally:
            files.close()
