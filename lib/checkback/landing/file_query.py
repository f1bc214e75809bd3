"""Files of JSON lines -> `half` and `op`: one streaming query for each kind, each file read once."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.landing.chunked_reader import plain_path
from checkback.landing.file_listing import in_ms
from checkback.landing.file_source import Source, check_all
from checkback.landing.landing_queries import Landed, LandingStream, run
from checkback.landing.made_with import planned_inside
from checkback.landing.parser import LINES
from checkback.spark.connect import classic_only
from checkback.spark.hadoop_settings import FILE_MANAGER, NO_RENAME
from checkback.storage.files.paths import local_path
from checkback.storage.queue_owners import QueueOwner
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from checkback.landing.parser import Kind
    from checkback.settings import Settings

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
