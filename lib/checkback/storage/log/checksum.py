"""The checksum file of a table's newest version, which saves Spark reading the log.

Delta's Version Checksum (PROTOCOL.md of delta-io/delta), ``_delta_log/N.crc``, has the number and total size of version
N's files, its protocol and its metadata. delta-rs writes none. Without one, Spark runs a job for protocol and metadata
of each version: 0.2 s for each table in each batch.

It is computed from an earlier checksum and the commits since, or from version 0 on, so other writers, and crashes
between a commit and its checksum, do no harm. If it cannot be computed, none is written and Spark reads the log.
"""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from functools import partial
from typing import Any

from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently, is_registered
from checkback.storage.files.table_files import LOG
from checkback.storage.log.commit_reader import read_commit
from checkback.storage.log.compatibility import allows_files

_log = logging.getLogger(__name__)

#: maximum commits to read since the last checksum
_BEHIND = 50
#: retention: the newest checksums that are kept
KEPT = 100
_APPENDS = frozenset({"WRITE", "STREAMING UPDATE", "OPTIMIZE", "CREATE TABLE"})

Checksum = dict[str, Any]


def write_checksum(place: str, version: int, known: tuple[int, Checksum] | None = None) -> Checksum | None:
    """Write the checksum of a version of the table in ``place``; returns it, None if it cannot be computed.

    ``known``: this or an earlier version of the table, and its checksum: then it need not be read.

    With flushed commits, call it after the flush: the file proves that the version is durable (`torn_commits`). Best
    effort: never raises.
    """
    try:
        with reading(place):
            found = _checksum(place, version, known)
            if found is None:
                return None
            table_files.write(_path(place, version), json.dumps(found).encode())
    except StorageError as error:
        _log.debug("no checksum for version %s: %s", version, error)
        return None
    if version >= KEPT and not is_registered(place):  # there `maintain` does it, by one request for many
        with suppress(OSError):
            table_files.remove(_path(place, version - KEPT))
    return found


def _checksum(place: str, version: int, known: tuple[int, Checksum] | None) -> Checksum | None:
    """From an earlier checksum, or version 0, and the commits since."""
    first = max(0, version - _BEHIND)
    if known is not None and known[0] == version:
        return known[1]
    if known is not None and first <= known[0] < version:
        return after(_known(known[1]), _commits(place, known[0] + 1, version))
    for earlier in range(version - 1, first - 1, -1):
        with suppress(StorageError), reading(place):
            found = _known(json.loads(table_files.read(_path(place, earlier))))  # a torn one is skipped
            break
    else:
        if first > 0:
            return None
        found, earlier = {}, -1
    return after(found, _commits(place, earlier + 1, version))


def _known(found: Checksum) -> Checksum:
    """The fields carried over from any writer's checksum; the others are optional and valid for its version only."""
    return {name: found[name] for name in ("tableSizeBytes", "numFiles", "metadata", "protocol")}


def after(found: Checksum, commits: list[list[dict[str, Any]]]) -> Checksum | None:
    """The checksum after these commits (lists of actions); None if it cannot be derived from them.

    ``found``: the checksum before; empty before version 0.
    """
    size, files = found.get("tableSizeBytes", 0), found.get("numFiles", 0)
    known = {name: found.get(name) for name in ("metadata", "protocol")}
    for actions in commits:
        if any("add" in action for action in actions) and not _is_append(actions):
            return None
    for action in (action for actions in commits for action in actions):
        if "domainMetadata" in action:
            return None
        if "add" in action:
            size, files = size + action["add"]["size"], files + 1
        elif "remove" in action:
            if action["remove"].get("size") is None:
                return None
            size, files = size - action["remove"]["size"], files - 1
        elif "metaData" in action:
            known["metadata"] = action["metaData"]
        elif "protocol" in action:
            known["protocol"] = action["protocol"]
    if not known["metadata"] or not known["protocol"] or not _is_plain(known["protocol"], known["metadata"]):
        return None
    return {"tableSizeBytes": size, "numFiles": files, "numMetadata": 1, "numProtocol": 1, **known}


def _is_append(actions: list[dict[str, Any]]) -> bool:
    """True if the commit's files are all new. Other operations may re-add a file that the table already has."""
    return any(action["commitInfo"].get("operation") in _APPENDS for action in actions if "commitInfo" in action)


def _is_plain(protocol: dict[str, Any], metadata: dict[str, Any]) -> bool:
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    allowed = allows_files(protocol.get("minWriterVersion", 0), features, metadata.get("configuration") or {})
    return protocol.get("minReaderVersion") == 1 and allowed


def _commits(place: str, first: int, last: int) -> list[list[dict[str, Any]]]:
    return list(concurrently(place, partial(read_commit, place), range(first, last + 1)))


def _path(place: str, version: int) -> str:
    return f"{place}/{LOG}/{version:020}.crc"
