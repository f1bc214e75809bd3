"""A file, a folder or a glob as a stream, and its lines, each with its position.

For local paths the stream is of files, whose lines the tasks read themselves (`chunked_reader`). Elsewhere Spark reads
the lines: only it has the file system's client and credentials.
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
from checkback.messages.limits import LINE_MAX
from checkback.storage.files.paths import for_spark, local_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import DataFrame, SparkSession

_OPTIONS = {
    # Hadoop buffers a whole line in memory. It skips longer ones, and only logs that.
    "mapreduce.input.linerecordreader.line.maxlength": str(4 * LINE_MAX),
    # Only \n is a line separator; the default also splits at a lone \r.
    "lineSep": "\n",
    # Spark silently skips files that are this much older than the newest one seen, and a file's time may be set into
    # the future. The default is 7 days; this is the maximum that fits Spark's ms.
    "maxFileAge": "106751991167d",
    # Oldest first, by the times of the listing: of duplicate half messages the first is kept.
    "latestFirst": "false",
    # Without it Spark reads each file of a batch twice if another one's path contains a glob character
    # (DataSource.checkAndGlobPathIfNecessary returns all paths for every such one).
    "recursiveFileLookup": "true",
    # Rate limit: a backlog of a million files must not become one batch.
    "maxFilesPerTrigger": "1000",
}
_BINARY_FILE = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
_TIME = pa.timestamp("us", tz="UTC")
_GLOB = re.compile(r"([{}\[\]*?\\])")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")


@dataclass(frozen=True)
class Source:
    """The source of lines: ``path`` as given, ``full``: absolute, ``pattern``: for Spark.

    ``local``: on this machine. ``base``: nothing outside of it is read: the folder, for a glob the
    one above its first special character, for a file its real path.
    """

    path: str
    full: str
    pattern: str
    local: bool
    base: str
    folder: bool = False

    @classmethod
    def find(cls, spark: SparkSession, path: str) -> Source:
        """The source that a path names. An existing path is never treated as a glob.

        Raises SettingsError if there is no such file or folder, or Spark would skip it.
        """
        full = path if _SCHEME.match(path) else os.path.abspath(path)
        status, local = _status(spark, path, full)
        if status is None:
            if _GLOB.search(path):
                return cls(path, full, full, local, os.path.dirname(_GLOB.split(full)[0]))
            raise SettingsError("no such file or folder", where=path, fix="check the path")
        folder = bool(status.isDirectory())
        if not folder and os.path.basename(full).startswith(HIDDEN):
            raise SettingsError("files whose names begin with _ or . are skipped", where=path, fix="rename it")
        base = full if folder else os.path.realpath(full)
        return cls(path, full, _as_glob(full.rstrip("/")), local, base, folder)

    @property
    def inside(self) -> str:
        """The real path of ``base``. The operator may make the folder itself a symbolic link."""
        return os.path.realpath(self.base) if self.folder or self.pattern == self.full else self.base

    def listing(self, spark: SparkSession, folder: str) -> SparkListing | None:
        """The listing for ``stream``, kept in ``folder`` and refreshed once; None if Spark lists the files itself.

        Raises CheckbackError if the system cannot list.
        """
        if not self.local:
            return None
        jvm: Any = spark.sparkContext._jvm
        # The JVM's encoding of file names, not of their content.
        encoding = str(jvm.java.lang.System.getProperty("sun.jnu.encoding"))
        listing = SparkListing(folder, self._roots, lambda: self.inside, encoding, self.path)
        listing.refresh()
        return listing

    def _roots(self, unreadable: Callable[[str, OSError], object]) -> list[str]:
        path = local_path(self.full) or self.full
        return matching(path, unreadable) if self.pattern == self.full else [path]

    def stream(self, spark: SparkSession, listing: SparkListing | None = None) -> DataFrame:
        """The input stream of ``lines``: file, file_time, file_size, store_timestamp (time of the batch).

        For a path that is not local it is the lines themselves, and there is no listing.
        """
        place = [
            F.col("_metadata.file_path").alias("file"),
            F.col("_metadata.file_modification_time").alias("file_time"),
            F.current_timestamp().alias("store_timestamp"),
        ]
        if listing is not None:
            reader = spark.readStream.format("binaryFile").schema(_BINARY_FILE).options(**_OPTIONS)
            files = reader.load(for_spark(listing.folder))
            return files.select(*place, F.col("_metadata.file_size").alias("file_size"))
        text = F.col("value")
        # Binary, because Arrow refuses text that is not UTF-8. Oversized lines (a binary file) are truncated here.
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

    def reader(self, before: str | None) -> Callable[[DataFrame], DataFrame | None]:
        """`lines`, of which the first batch is one that another run has listed, ``before`` being its `inside`."""
        listed = [] if before is None else [before]
        return lambda batch: self.lines(batch, listed.pop() if listed else self.inside)

    def lines(self, batch: DataFrame, inside: str) -> DataFrame | None:
        """Lines of a batch: line BINARY, fault STRING, file, file_time, file_block, store_timestamp; None: no files.

        ``fault``, in a row without a line: why the file is not read, or not to its end.
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
        # The partition size that Spark itself uses.
        state: Any = spark._jsparkSession.sessionState()
        largest = int(state.conf().filesMaxPartitionBytes())
        lists = shared(files, spark.sparkContext.defaultParallelism, largest, lambda file: fault_of(file, inside))
        numbers = spark.range(0, len(lists), 1, len(lists))
        return numbers.mapInArrow(reader(lists, times[1][0], inside), LINES_SCHEMA)


def check_all(spark: SparkSession, sources: Iterable[Source]) -> None:
    """Raise CheckbackError if a folder has vanished: Spark would treat it as empty and wait forever."""
    for source in sources:
        if source.folder and _status(spark, source.path, source.full)[0] is None:
            raise CheckbackError("the folder has vanished", where=source.path, fix="restore it and run again")


def _status(spark: SparkSession, path: str, full: str) -> tuple[Any, bool]:
    """Hadoop's FileStatus of a path, None if it does not exist; and whether its file system is local."""
    context = spark.sparkContext
    jvm: Any = context._jvm
    try:
        place = jvm.org.apache.hadoop.fs.Path(for_spark(full))
        files = place.getFileSystem(context._jsc.hadoopConfiguration())
        local = local_path(full) is not None
        return (files.getFileStatus(place) if files.exists(place) else None), local
    except Exception as error:
        raise SettingsError(one_line(error), where=path, fix="check the path and the rights to read it") from error


def _as_glob(path: str) -> str:
    """A pattern that matches only this path. Spark streams a single file only if it is given as a glob."""
    escaped = _GLOB.sub(r"\\\1", path)
    if escaped != path:
        return escaped
    last = path[-1]
    return path[:-1] + (f"[{last}]" if last.isalnum() else f"\\{last}")
