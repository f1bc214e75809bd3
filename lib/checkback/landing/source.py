"""A file, a folder or a glob as a stream of lines, each with the place it stood."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as F

from checkback.errors import CheckbackError, SettingsError
from checkback.messages import LINE_MAX
from checkback.stopping import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    # Only \n ends a line; the default also splits at a lone \r.
    "lineSep": "\n",
    # A file older than this (a century) would be passed over without a word; the default is 7 days.
    "maxFileAge": "36500d",
    # Oldest first: of repeated half messages the first is kept.
    "latestFirst": "false",
    # Without it Spark reads each file of a batch twice when another one's path has a glob's character in it
    # (DataSource.checkAndGlobPathIfNecessary gives all paths for every such one).
    "recursiveFileLookup": "true",
    # A million waiting files are not one batch.
    "maxFilesPerTrigger": "1000",
}
_GLOB = re.compile(r"([{}\[\]*?\\])")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_HIDDEN = ("_", ".")


@dataclass(frozen=True)
class Source:
    """Where lines come from: ``path`` as it was given, ``full`` = not relative, ``pattern`` as Spark takes it."""

    path: str
    full: str
    pattern: str
    folder: bool = False

    @classmethod
    def find(cls, spark: SparkSession, path: str) -> Source:
        """The source that a path names. What exists by that very name is no glob.

        Raises SettingsError when there is no such file or folder, or Spark would pass over it.
        """
        full = path if _SCHEME.match(path) else os.path.abspath(path)
        status = _status(spark, path, full)
        if status is None:
            if _GLOB.search(path):
                return cls(path, full, pattern=full)
            raise SettingsError("no such file or folder", where=path, fix="check the path")
        folder = bool(status.isDirectory())
        if not folder and os.path.basename(full).startswith(_HIDDEN):
            raise SettingsError("files whose names begin with _ or . are passed over", where=path, fix="rename it")
        return cls(path, full, _as_glob(full.rstrip("/")), folder)

    def lines(self, spark: SparkSession) -> DataFrame:
        """The stream of lines: line BINARY, file, file_time, file_block, store_timestamp (time of the batch)."""
        text = F.col("value")
        # Bytes, because Arrow takes no text that is not UTF-8. What is far too long (a binary file) is cut here.
        line = F.when(F.octet_length(text) > LINE_MAX, F.substring(text.cast("binary"), 1, LINE_MAX + 1)).otherwise(
            text.cast("binary")
        )
        rows = spark.readStream.format("text").options(**_OPTIONS).load(self.pattern)
        return rows.select(
            line.alias("line"),
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_modification_time").alias("file_time"),
            F.col("_metadata.file_block_start").alias("file_block"),
            F.current_timestamp().alias("store_timestamp"),
        )


def check_all(spark: SparkSession, sources: Iterable[Source]) -> None:
    """Raise CheckbackError when a folder has gone: Spark would take it for an empty one and wait forever."""
    for source in sources:
        if source.folder and _status(spark, source.path, source.full) is None:
            raise CheckbackError("the folder has vanished", where=source.path, fix="put it back and run again")


def _status(spark: SparkSession, path: str, full: str) -> Any:
    """Hadoop's FileStatus of a path, None when there is no such thing."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    try:
        place = jvm.org.apache.hadoop.fs.Path(full)
        files = place.getFileSystem(context._jsc.hadoopConfiguration())
        return files.getFileStatus(place) if files.exists(place) else None
    except Exception as error:
        raise SettingsError(one_line(error), where=path, fix="check the path and the rights to read it") from error


def _as_glob(path: str) -> str:
    """A pattern that matches this path alone. Spark streams a single file only if it comes as a glob."""
    escaped = _GLOB.sub(r"\\\1", path)
    if escaped != path:
        return escaped
    last = path[-1]
    return path[:-1] + (f"[{last}]" if last.isalnum() else f"\\{last}")
