"""Files of JSON lines -> `half` and `op`: one streaming query for each kind, each file read once.

For local paths the stream is of files, whose lines the tasks read themselves (`chunked_reader`). Elsewhere Spark reads
the lines: only it has the file system's client and credentials.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as F

from checkback.errors import CheckbackError, SettingsError, one_line
from checkback.landing.chunked_reader import LINES_SCHEMA, File, fault_of, plain_path, reader, shared
from checkback.landing.file_listing import HIDDEN, SparkListing, in_ms
from checkback.landing.hadoop_glob import matching
from checkback.landing.landing_queries import Landed, LandingStream, planned_inside, run
from checkback.landing.parser import LINES
from checkback.messages.limits import LINE_MAX
from checkback.spark.connect import classic_only
from checkback.spark.hadoop_settings import FILE_MANAGER, NO_RENAME
from checkback.storage.files.paths import for_spark, local_path
from checkback.storage.queue_owners import QueueOwner
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from checkback.landing.parser import Kind
    from checkback.settings import Settings


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


_log = logging.getLogger("checkback.land")
#: Only the files read last are checked: a file that grows does so soon.
_LAST = 10_000
_COMPACT = ".compact"


def land(spark: SparkSession, settings: Settings, half: str | None, op: str | None, available_now: bool) -> Landed:
    """Land the JSON lines of files in `half` and `op`, and invalid ones in `rejected`.

    ``half`` and ``op`` are each a file, a folder (with its subfolders) or a glob, local or a URI. ``.gz``, ``.bz2``,
    ``.zst`` and ``.deflate`` are decompressed.
    Files and subfolders whose names begin with ``_`` or ``.`` are skipped: a file is read once, so write it under
    such a name and rename it when it is complete. With ``available_now`` the available files are landed, and the
    function returns; else the paths are watched until SIGINT or SIGTERM, which let the running batch finish.

    The checkpoints ``land-half`` and ``land-op`` identify a file by its path, regardless of how it was named here.
    Raises SettingsError if a path does not exist, CheckbackError if it or a table cannot be read or written.
    """
    classic_only(spark, "land")
    # Ops first: an op without its half waits, a half without its op may be checked needlessly.
    paths: list[tuple[Kind, str | None]] = [("op", op), ("half", half)]
    sources = {kind: Source.find(spark, path) for kind, path in paths if path}
    if not sources:
        raise SettingsError("no files to land", fix="give --half PATH, --op PATH or both")
    tables = Tables.of(settings.storage)
    for kind in sources:
        _warn_of_changed(tables.checkpoint(f"land-{kind}"))
    with tempfile.TemporaryDirectory(prefix="checkback-land-") as folder:
        listings = {kind: source.listing(spark, os.path.join(folder, kind)) for kind, source in sources.items()}
        if any(listings.values()) and spark.conf.get(FILE_MANAGER, None) == NO_RENAME:
            # It cannot read the listings, which are local. Spark's default renames: slower in S3, for a few files.
            spark.conf.unset(FILE_MANAGER)
        inlets = {}
        for kind, source in sources.items():
            before = planned_inside(spark, tables.checkpoint(f"land-{kind}"), source.inside) if source.local else None
            rows, lines = source.stream(spark, listings[kind]), source.reader(before)
            inlets[kind] = LandingStream(rows, f"land-{kind}", LINES[kind], lines)

        def look() -> None:
            check_all(spark, sources.values())
            for listing in filter(None, listings.values()):
                listing.refresh()

        return run(spark, settings, inlets, QueueOwner.FILES, available_now, meanwhile=look)


def _warn_of_changed(checkpoint: str) -> None:
    changed = changed_since_read(checkpoint)
    if changed:
        _log.warning(
            "%d files have changed since they were read, as %s: what came into them later is not taken; give it a name "
            "of its own",
            len(changed),
            changed[0],
        )


def changed_since_read(checkpoint: str) -> list[str]:
    """Paths of local files that have changed since they were listed for the query of the checkpoint.

    Only the last files are checked; none if the checkpoint is not local.
    """
    folder = local_path(checkpoint)
    found: dict[str, int] = {}
    # The query itself reports a log that cannot be read.
    with suppress(OSError, ValueError, KeyError):
        for uri, time in islice(_read_files(os.path.join(folder, "sources", "0")) if folder else (), _LAST):
            found.setdefault(plain_path(uri), time)
    return [path for path, time in found.items() if _has_changed(path, time)]


def _has_changed(path: str, time: int) -> bool:
    """Does the file exist, and has its content changed since a time (ms)?

    The older of mtime and ctime: renaming or chmod changes only ctime, and an mtime in the future was set by hand.
    """
    try:
        status = os.stat(path)
    except OSError:
        return False
    return in_ms(min(status.st_mtime_ns, status.st_ctime_ns)) > time


def _read_files(folder: str) -> Iterator[tuple[str, int]]:
    """(URI, time in ms) of the files in the log of Spark's file source, the last batches first.

    The format is Spark's CompactibleFileStreamLog: a file per batch, the version in its first line, then an entry per
    line; a compact file also has those of all batches before it.
    """
    names = [name for name in os.listdir(folder) if name.removesuffix(_COMPACT).isdigit()]
    for name in sorted(names, key=lambda name: int(name.removesuffix(_COMPACT)), reverse=True):
        with open(os.path.join(folder, name), encoding="utf-8") as log:
            entries = [json.loads(line) for line in log if line.startswith("{")]
        yield from ((entry["path"], entry["timestamp"]) for entry in reversed(entries))
        if name.endswith(_COMPACT):
            return
