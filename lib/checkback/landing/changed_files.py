"""Files that have changed since they were read: what came into them later lands nowhere, and somebody should know."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from checkback.landing.chunked_reader import plain_path
from checkback.landing.file_listing import in_ms
from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Files that are looked at, the last ones that were read: a file grows soon, if it does.
_LAST = 10_000
_COMPACT = ".compact"


def changed_since_read(checkpoint: str) -> list[str]:
    """Paths of files on this machine that have changed since they were listed for the query of the checkpoint.

    Of the last files only; none where the checkpoint is not on this machine.
    """
    folder = local_path(checkpoint)
    found: dict[str, int] = {}
    # A log that cannot be read is for the query to tell of.
    with suppress(OSError, ValueError, KeyError):
        for uri, time in islice(_read_files(os.path.join(folder, "sources", "0")) if folder else (), _LAST):
            found.setdefault(plain_path(uri), time)
    return [path for path, time in found.items() if _has_changed(path, time)]


def _has_changed(path: str, time: int) -> bool:
    """Is it there, and has its content changed since a time (ms)?

    A change of its name or rights alone has a time of its own; a time of change that is to come was set by somebody.
    """
    try:
        status = os.stat(path)
    except OSError:
        return False
    return in_ms(min(status.st_mtime_ns, status.st_ctime_ns)) > time


def _read_files(folder: str) -> Iterator[tuple[str, int]]:
    """(URI, time in ms) of the files that Spark's file source has noted, the last batches first.

    A log of Spark's (CompactibleFileStreamLog): a file a batch, the version in its first line, then an entry a line; a
    compact one has those of all batches before it, too.
    """
    names = [name for name in os.listdir(folder) if name.removesuffix(_COMPACT).isdigit()]
    for name in sorted(names, key=lambda name: int(name.removesuffix(_COMPACT)), reverse=True):
        with open(os.path.join(folder, name), encoding="utf-8") as log:
            entries = [json.loads(line) for line in log if line.startswith("{")]
        yield from ((entry["path"], entry["timestamp"]) for entry in reversed(entries))
        if name.endswith(_COMPACT):
            return
