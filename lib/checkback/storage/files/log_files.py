"""The commit files of a Delta table's log, by name (PROTOCOL.md of delta-io/delta, Delta Log Entries)."""

from __future__ import annotations

import re

from checkback.storage.files import table_files

#: the log's folder in the table's
LOG = "_delta_log"
COMMIT = re.compile(r"([0-9]{20})\.json")


def commit_file(place: str, version: int) -> str:
    """The commit file of a version of the table in ``place``, a folder or a URI."""
    return f"{place}/{LOG}/{version:020}.json"


def versions(place: str, first: int = 0) -> list[int]:
    """The versions from ``first`` on with a commit file, in any order. Raises OSError."""
    log = f"{place}/{LOG}"
    names = table_files.names_after(log, f"{first:020}") if first > 0 else table_files.names(log)
    return [int(match[1]) for match in map(COMMIT.fullmatch, names) if match]
