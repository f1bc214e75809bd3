"""A file, a folder or a glob as a stream, and its lines, each with the place it stood.

On local file systems the stream is of files, whose lines the tasks read themselves (`chunked_reader`). Elsewhere Spark
reads the lines: only it has the file system's client and credentials.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, SettingsError, one_line
from checkback.landing.chunked_reader import LINES_SCHEMA, File, fault_of, reader, shared
from checkback.landing.file_listing import HIDDEN, SparkListing
from checkback.landing.hadoop_glob import matching
from checkback.messages import LINE_MAX
from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    # Hadoop, which builds a line before anybody can measure it, passes over one that is longer: it logs that, no more.
    "mapreduce.input.linerecordreader.line.maxlength": str(4 * LINE_MAX),
    # Only \n ends a line; the default also splits at a lone \r.
    "lineSep": "\n",
    # A file that is so much older than the newest ever seen would be passed over without a word, and anybody can give
    # a file a time that is to come. The default is 7 days; this is the most that Spark can count in ms.
    "maxFileAge": "106751991167d",
    # Oldest first, by the times of the listing: of repeated half messages the first is kept.
    "latestFirst": "false",
    # Without it Spark reads each file of a batch twice when another one's path has a glob's character in it
    # (DataSource.checkAndGlobPathIfNecessary gives all paths for every such one).
    "recursiveFileLookup": "true",
    # A million waiting files are not one batch.
    "maxFilesPerTrigger": "1000",
}
_BINARY_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_TIME = pa.timestamp("us", tz="UTC")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Source:
    """Where lines come from: ``path`` as it was given, ``full`` = not relative, ``pattern`` as Spark takes it.

    ``local``: on this machine, for Hadoop as well. ``base``: nothing that is read lies outside of it: the folder, of a
    glob the one above its first special character, of a file its real path.
    """

    path: str
    full: str
    pattern: str
    local: bool
    base: str
    folder: bool = False

    @classmethod
    def find(cls, spark: SparkSession, path: str) -> Source:
        """The source that a path names. What exists by that very name is no glob.

        Raises SettingsError when there is no such file or folder, or Spark would pass over it.
        """
        full = path if _SCHEME.match(path) else os.path.abspath(path)
        status, local = _status(spark, path, full)
        if status is None:
            if _GLOB.search(path):
                return cls(path, full, full, local, os.path.dirname(_GLOB.split(full)[0]))
            raise SettingsError("no such file or folder", where=path, fix="check the path")
        folder = bool(status.isDirectory())
        if not folder and os.path.basename(full).startswith(HIDDEN):
            raise SettingsError("files whose names begin with _ or . are passed over", where=path, fix="rename it")
        base = full if folder else os.path.realpath(full)
        return cls(path, full, _as_glob(full.rstrip("/")), local, base, folder)

    @property
    def inside(self) -> str:
        """The real path of ``base``. Folders are the operator's, who may have a link lead to another one."""
        return os.path.realpath(self.base) if self.folder or self.pattern == self.full else self.base

    def listing(self, spark: SparkSession, folder: str) -> SparkListing | None:
        """What ``stream`` lists files by, in a folder of its own, refreshed once; None where Spark itself does.

        Raises CheckbackError when the system cannot list.
        """
        if not self.local:
            return None
        jvm: Any = spark.sparkContext._jvm
        # As the JVM reads names; not the coding of what is in files.
        encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
        listing = SparkListing(folder, self._roots, lambda: self.inside, encoding, self.path)
        listing.refresh()
        return listing

    def _roots(self, unreadable: Callable[[str, OSError], object]) -> list[str]:
        path = local_path(self.full) or self.full
        return matching(path, unreadable) if self.pattern == self.full else [path]

    def stream(self, spark: SparkSession, listing: SparkListing | None = None) -> DataFrame:
        """The stream of what ``lines`` reads: file, file_time, file_size, store_timestamp (time of the batch).

        Elsewhere than on this machine it is of the lines themselves, and there is no listing.
        """
        place = [
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_modification_time").alias("file_time"),
            F.current_timestamp().alias("store_timestamp"),
        ]
        if listing is not None:
            files = spark.readStream.format("binaryFile").schema(_BINARY_FILE).options(**_OPTIONS).load(listing.folder)
            return files.select(*place, F.col("_metadata.file_size").alias("file_size"))
        text = F.col("value")
        # Bytes, because Arrow takes no text that is not UTF-8. What is far too long (a binary file) is cut here.
        line = F.when(F.octet_length(text) > LINE_MAX, F.substring(text.cast("binary"), 1, LINE_MAX + 1)).otherwise(
            text.cast("binary")
        )
        return (
            spark.readStream.format("text")
            .options(**_OPTIONS)
            .load(self.pattern)
            .select(
                line.alias("line"),
                F.lit(None).cast("string").alias("fault"),
                *place,
                F.col("_metadata.file_block_start").alias("file_block"),
            )
        )

    def lines(self, batch: DataFrame) -> DataFrame | None:
        """Lines of a batch: line BINARY, fault STRING, file, file_time, file_block, store_timestamp; None: no files.

        ``fault`` stands in a row without a line: why its file is not read, or not to its end.
        """
        if not self.local:
            return batch
        spark = batch.sparkSession
        found = batch.toArrow()
        if not found.num_rows:
            return None
        times = [
            found.column(name).cast(_TIME).cast(pa.int64()).to_pylist() for name in ("file_time", "store_timestamp")
        ]
        files = sorted(
            map(File, found.column("file").to_pylist(), times[0], found.column("file_size").to_pylist()),
            key=lambda file: (file.time, file.uri),
        )
        # What Spark itself goes by.
        state: Any = spark._jsparkSession.sessionState()
        largest = int(state.conf().filesMaxPartitionBytes())
        inside = self.inside
        lists = shared(files, spark.sparkContext.defaultParallelism, largest, lambda file: fault_of(file, inside))
        numbers = spark.range(0, len(lists), 1, len(lists))
        return numbers.mapInArrow(reader(lists, times[1][0], inside), LINES_SCHEMA)


def check_all(spark: SparkSession, sources: Iterable[Source]) -> None:
    """Raise CheckbackError when a folder has gone: Spark would take it for an empty one and wait forever."""
    for source in sources:
        if source.folder and _status(spark, source.path, source.full)[0] is None:
            raise CheckbackError("the folder has vanished", where=source.path, fix="put it back and run again")


def _status(spark: SparkSession, path: str, full: str) -> tuple[Any, bool]:
    """Hadoop's FileStatus of a path, None when there is no such thing; is its file system this machine's?"""
    context = spark.sparkContext
    jvm: Any = context._jvm
    try:
        place = jvm.org.apache.hadoop.fs.Path(full)
        files = place.getFileSystem(context._jsc.hadoopConfiguration())
        local = str(files.getUri().getScheme()) == "file" and local_path(full) is not None
        return (files.getFileStatus(place) if files.exists(place) else None), local
    except Exception as error:
        raise SettingsError(one_line(error), where=path, fix="check the path and the rights to read it") from error


def _as_glob(path: str) -> str:
    """A pattern that matches this path alone. Spark streams a single file only if it comes as a glob."""
    escaped = _GLOB.sub(r"\\\1", path)
    if escaped != path:
        return escaped
    last = path[-1]
    return path[:-1] + (f"[{last}]" if last.isalnum() else f"\\{last}")
