"""The checksum file of a table's newest version: with it, Spark knows the table without reading its log.

Delta calls it Version Checksum (PROTOCOL.md of delta-io/delta): ``_delta_log/N.crc`` says how many files version N has,
how large they are, and its protocol and metadata. delta-rs writes none. Without one, Spark asks the log for protocol
and metadata of each version anew, in a job of its own: 0.2 s for each table in each batch.

It is made from that of an earlier version and the commits since, or from version 0 on, so that it does not matter
who else commits, or dies between a commit and its file. Where it cannot be made so, there is none, and Spark reads on.
"""

from __future__ import annotations

import json
import logging
import os
import uuid
from contextlib import suppress
from typing import Any

from checkback.errors import StorageError
from checkback.storage.commit_files import actions_of

_log = logging.getLogger(__name__)

#: commits since the last checksum that are worth reading
_BEHIND = 50
#: so many of the newest are kept: nobody asks for older ones
KEPT = 100
#: features of tables that whole files are simply appended to, and that are known by files, protocol and metadata
_PLAIN_FEATURES = frozenset({"appendOnly", "invariants"})

_APPENDS = frozenset({"WRITE", "STREAMING UPDATE", "OPTIMIZE", "CREATE TABLE"})

Checksum = dict[str, Any]


def write_checksum(place: str, version: int) -> bool:
    """Write the checksum of a version of the table in the folder ``place``; False when none can be made.

    Where commits are flushed this one is: that the file is there says so (`torn_commits`). Never raises: the table is
    whole without.
    """
    log = os.path.join(place, "_delta_log")
    try:
        found = _checksum(log, version)
        if found is None:
            return False
        new = os.path.join(log, f".{version:020}.{uuid.uuid4()}.tmp")
        with open(new, "w", encoding="utf-8") as file:
            json.dump(found, file)
        os.replace(new, _path(log, version))
    except (StorageError, OSError, ValueError, KeyError, TypeError) as error:
        _log.debug("no checksum for version %s: %s", version, error)
        return False
    if version >= KEPT:
        with suppress(OSError):
            os.remove(_path(log, version - KEPT))
    return True


def _checksum(log: str, version: int) -> Checksum | None:
    """Of an earlier checksum, or of version 0, and the commits since."""
    first = max(0, version - _BEHIND)
    for earlier in range(version - 1, first - 1, -1):
        with suppress(FileNotFoundError, ValueError, KeyError), open(_path(log, earlier), encoding="utf-8") as file:
            found = _known(json.load(file))  # one that a power cut has torn is none
            break
    else:
        if first > 0:
            return None
        found, earlier = {}, -1
    return after(found, _commits(log, earlier + 1, version))


def _known(found: Checksum) -> Checksum:
    """What of a checksum, whoever wrote it, is carried on; the rest is optional, and true of its own version only."""
    return {name: found[name] for name in ("tableSizeBytes", "numFiles", "metadata", "protocol")}


def after(found: Checksum, commits: list[list[dict[str, Any]]]) -> Checksum | None:
    """The checksum after these commits, each the actions of one; None when one of them does not tell.

    ``found``: what is known before, nothing before version 0.
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
    if not known["metadata"] or not known["protocol"] or not _is_plain(known["protocol"]):
        return None
    return {"tableSizeBytes": size, "numFiles": files, "numMetadata": 1, "numProtocol": 1, **known}


def _is_append(actions: list[dict[str, Any]]) -> bool:
    """Are the files of a commit new ones? Other operations may name one anew that the table has."""
    return any(action["commitInfo"].get("operation") in _APPENDS for action in actions if "commitInfo" in action)


def _is_plain(protocol: dict[str, Any]) -> bool:
    features = {*(protocol.get("readerFeatures") or ()), *(protocol.get("writerFeatures") or ())}
    return protocol.get("minReaderVersion") == 1 and takes_files(protocol.get("minWriterVersion", 0), features)


def takes_files(writer_version: int, features: set[str]) -> bool:
    """May whole files be appended to a table of this protocol, and nothing else be done?"""
    return writer_version <= 2 or (writer_version == 7 and features <= _PLAIN_FEATURES)


def _commits(log: str, first: int, last: int) -> list[list[dict[str, Any]]]:
    return [actions_of(os.path.join(log, f"{version:020}.json")) for version in range(first, last + 1)]


def _path(log: str, version: int) -> str:
    return os.path.join(log, f"{version:020}.crc")
