"""Crash recovery of local tables and of their queries' checkpoints, before anything reads them.

Spark writes a checkpoint without flushing it. `fsync.QueryFlush` ensures that all of a batch is durable before any
table has rows of it, and before Spark writes its commit log entry. What is torn or missing therefore belongs to the
newest batch. Spark itself would fail on an empty file, or load a truncated state.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.checkpoints.checkpoint import parse_metadata
from checkback.storage.failure_scope import own_failure
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.fsync import flush_folder
from checkback.storage.files.paths import local_path
from checkback.storage.log.torn_commits import recover_log
from checkback.storage.schemas import SOURCES, TOPIC_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.storage.tables import Tables


#: state after a batch (RocksDBFileManager), numbered by the next batch
_STATE = re.compile(r"\.?([0-9]+)(?:_[0-9a-f-]+)?\.(?:changelog|zip)(?:\.crc)?")
#: state metadata and schema files, written by the first batch of a run or when the state's schema changes
_ABOUT = re.compile(r"\.?([0-9]+)(?:_[0-9a-f-]+)?(?:\.crc)?")
#: temporary name, before the rename (CheckpointFileManager.generateTempPath)
_TEMPORARY = re.compile(r"\.[0-9]+\.[0-9a-f-]{36}(?:\.TID[0-9]+)?\.tmp")
_ENTRY = re.compile(r"[0-9]+(?:\.compact)?")
_BEGINS = b"crc\0"  # org.apache.hadoop.fs.ChecksumFs
_CHUNK = 512


def torn(place: str, sources: int) -> str | None:
    """Which file of the checkpoint is torn or missing, in a few words; None if none is.

    ``sources``: the number of the query's sources. Raises StorageError.
    """
    try:
        path = next(_torn(place, sources), None)
    except OSError as error:
        raise _failed(place, error) from error
    return None if path is None else f"{os.path.relpath(path, place)} is torn or missing, as after a power cut"


def remove_unfinished(place: str) -> None:
    """Remove what an uncommitted batch has left of state, and what Spark has left of files that it did not finish.

    State of the next batch that is there already would stay. No query may be running on the checkpoint, and none of its
    files may be `torn`. Raises StorageError.
    """
    try:
        gone = list(_unfinished(place))
        for folder in {*map(os.path.dirname, gone)}:
            flush_folder(folder)
    except OSError as error:
        raise _failed(place, error) from error


def _torn(place: str, sources: int) -> Iterator[str]:
    if any(os.path.exists(f"{place}/{name}") for name in ("metadata", "offsets", "sources", "state")):
        try:
            with open(f"{place}/metadata", encoding="utf-8") as file:
                parse_metadata(file.read(), place)
        except (FileNotFoundError, UnicodeDecodeError, StorageError):
            yield f"{place}/metadata"
    # of an entry of the offset log also whole lines may be missing
    for folder, lines in ((f"{place}/offsets", 2 + sources), (f"{place}/commits", 2)):
        newest = max(_numbers(folder), default=None)
        if newest is not None and _is_torn(f"{folder}/{newest}", lines):
            yield f"{folder}/{newest}"
    for source in _numbers(f"{place}/sources"):
        names = filter(_ENTRY.fullmatch, os.listdir(f"{place}/sources/{source}"))
        paths = (f"{place}/sources/{source}/{name}" for name in names)
        yield from (path for path in paths if _is_torn(path, 2))
    for source, number in _log_offsets(place):
        path = f"{place}/sources/{source}/{number}"
        if number >= 0 and not os.path.exists(path) and not os.path.exists(f"{path}.compact"):
            yield path


def _log_offsets(place: str) -> Iterator[tuple[int, int]]:
    """(source, entry) for each file source, by its index: the newest batch's end offset in the source's log."""
    newest = max(_numbers(f"{place}/offsets"), default=None)
    if newest is not None:
        with open(f"{place}/offsets/{newest}", encoding="utf-8") as lines:
            for source, line in enumerate(lines.read().splitlines()[2:]):
                found = None if line == "-" else json.loads(line)
                if isinstance(found, dict) and "logOffset" in found:
                    yield source, int(found["logOffset"])


def _unfinished(place: str) -> Iterator[str]:
    """Remove the files; yields them."""
    begun, done = (max(_numbers(f"{place}/{folder}"), default=-1) for folder in ("offsets", "commits"))
    following = begun + 1 if begun == done else max(begun, 0)
    if begun == done == -1 and os.path.isdir(f"{place}/state"):  # its folders, too: Spark wants none before a batch
        shutil.rmtree(f"{place}/state")
        yield f"{place}/state"
    for folder, _, names in os.walk(f"{place}/state"):
        about = "/_metadata" in folder or "/_stateSchema" in folder
        for name in names:
            match = (_ABOUT if about else _STATE).fullmatch(name)
            if match and int(match[1]) + about > following:
                os.remove(f"{folder}/{name}")
                yield f"{folder}/{name}"
    sources = (f"{place}/sources/{source}" for source in _numbers(f"{place}/sources"))
    for folder in (f"{place}/offsets", f"{place}/commits", *sources):
        for name in os.listdir(folder) if os.path.isdir(folder) else ():
            # A folder must be empty for the first batch, and a new file would not match an old checksum.
            if _TEMPORARY.fullmatch(name) or _is_lone_checksum(folder, name):
                os.remove(f"{folder}/{name}")
                yield f"{folder}/{name}"


def _is_lone_checksum(folder: str, name: str) -> bool:
    """True for a checksum that is torn or whose file is missing."""
    path = f"{folder}/{name[1:-4]}"
    return name.startswith(".") and name.endswith(".crc") and (not os.path.exists(path) or _known(path) is None)


def _is_torn(path: str, least: int) -> bool:
    """True if a Spark log file fails its checksum or, without one, is no version with JSON lines, ``least`` in all."""
    with open(path, "rb") as file:
        content = file.read()
    if (known := _known(path)) is not None:
        chunks = (content[start : start + _CHUNK] for start in range(0, len(content), _CHUNK))
        return b"".join(zlib.crc32(chunk).to_bytes(4, "big") for chunk in chunks) != known
    try:
        lines = content.decode().splitlines()
        for line in lines[1:]:
            if line != "-":
                json.loads(line)
    except ValueError:
        return True
    return len(lines) < least


def _known(path: str) -> bytes | None:
    """The CRCs in a file's checksum file; None if it is missing or torn itself."""
    with suppress(FileNotFoundError), open(f"{os.path.dirname(path)}/.{os.path.basename(path)}.crc", "rb") as file:
        content = file.read()
        if content[:8] == _BEGINS + _CHUNK.to_bytes(4, "big") and len(content) % 4 == 0 and len(content) > 8:
            return content[8:]
    return None


def _numbers(folder: str) -> list[int]:
    return [int(name) for name in os.listdir(folder) if name.isdecimal()] if os.path.isdir(folder) else []


def _failed(place: str, error: OSError) -> StorageError:
    return StorageError(f"cannot be read: {error.strerror}", place, "check the folder and its permissions")


_log = logging.getLogger(__name__)


def recover_tables(tables: Tables, force: bool = False) -> list[str]:
    """Move torn commits (after a power cut) of local tables aside; returns one line for each table affected.

    ``force``: see `torn_commits`. Raises StateError while they are restored, commit by commit; StorageError.
    """
    tables.refuse_half_restored()
    found = []
    for name in _folders(tables):
        try:
            moved = recover_log(tables.location(name), force)
        except Exception as error:
            if not name.startswith(TOPIC_PREFIX):
                raise
            # A topic table does not block the others: its messages go to `unpublished`.
            _log.warning("%s", own_failure(error))
            continue
        if moved is not None:
            found.append(f"{name}: {moved.said}; moved aside: {', '.join(moved.names)}")
    return found


def torn_query(tables: Tables, query: str) -> str | None:
    """How a power cut has torn a query's checkpoint in a local folder; None if it has not.

    Then what an unfinished batch has left there is removed. The query must not be running. Raises StorageError.
    """
    place = local_path(tables.checkpoint(query))
    if place is None or not tables.by_files or not os.path.isdir(place):
        return None
    why = torn(place, len(SOURCES.get(query, (query,))))
    if why is None:
        remove_unfinished(place)
    return why


def _folders(tables: Tables) -> list[str]:
    """Names of the local tables that have a log folder, readable or not."""
    if not tables.local:
        return []
    names = [name for name in filesystem.names(None, tables.root) if not name.startswith(("_", "."))]
    place = f"{tables.root}/{TOPIC_PREFIX}"
    topics = [TOPIC_PREFIX + name for name in table_files.names(place)]
    return sorted(name for name in names + topics if os.path.exists(f"{tables.location(name)}/_delta_log"))
