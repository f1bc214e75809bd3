"""Detects files that have changed since they were read: data appended later is not landed, which deserves a warning."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from checkback.landing.chunked_reader import plain_path
from checkback.landing.file_listing import in_ms
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Only the files read last are checked: a file that grows does so soon.
_LAST = 10_000
_COMPACT = ".compact"


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
