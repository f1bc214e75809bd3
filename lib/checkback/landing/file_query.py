"""Files of JSON lines -> `half` and `op`: one streaming query for each kind, each file read once."""

from __future__ import annotations

import logging
import os
import tempfile
from typing import TYPE_CHECKING

from checkback.errors import SettingsError
from checkback.landing.changed_files import changed_since_read
from checkback.landing.file_source import Source, check_all
from checkback.landing.made_with import planned_inside
from checkback.landing.parser import LINES
from checkback.landing.run import Landed, LandingStream, run
from checkback.spark.connect import classic_only
from checkback.spark.hadoop_settings import FILE_MANAGER, NO_RENAME
from checkback.storage.queue_owners import QueueOwner
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from checkback.landing.parser import Kind
    from checkback.settings import Settings

_log = logging.getLogger("checkback.land")


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
