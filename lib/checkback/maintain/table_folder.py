"""A table's folder: listing its files, and removing them."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow.parquet as pq

from checkback.errors import StorageError
from checkback.maintain.file_retention import Log
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import COMMIT, LOG
from checkback.storage.log.commit_reader import read_actions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from checkback.storage.files.table_files import FileEntry

#: PROTOCOL.md of delta-io/delta, Delta Log Entries and Checkpoints. Files with other names are left alone.
_CHECKPOINT = re.compile(r"(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10}))?\.parquet")
_OF_LOG = re.compile(r"(\d{20})\.(?:json|crc|checkpoint(?:\.\d{10}\.\d{10})?\.parquet)")
_DATA = re.compile(r"[^._].*\.parquet")


def read_log(place: str) -> Log:
    """The commits and the complete checkpoints (all parts present) in the table's log. Raises StorageError."""
    commits: dict[int, int] = {}
    parts: dict[int, list[tuple[int, int]]] = {}
    for entry in _entries(f"{place}/{LOG}"):
        if match := COMMIT.fullmatch(entry.name):
            commits[int(match[1])] = entry.written
        elif match := _CHECKPOINT.fullmatch(entry.name):
            parts.setdefault(int(match[1]), []).append((int(match[3] or 1), entry.written))
    if not commits:
        raise StorageError("the table's log has no commit", place, f"restore the folder {LOG}")
    whole = {version: max(found)[1] for version, found in sorted(parts.items()) if len(found) == found[0][0]}
    return Log(commits, whole)


def data_files(place: str) -> dict[str, FileEntry]:
    """The Parquet files in the table's folder, by name, whoever wrote them. Raises StorageError."""
    return {entry.name: entry for entry in _entries(place) if _DATA.fullmatch(entry.name)}


def added_since(place: str, log: Log, version: int) -> set[str]:
    """The files whose rows were added in the commit ``version`` or later. Raises StorageError."""
    return {
        unquote(action["path"])
        for commit in log.commits
        if commit >= version
        for action in read_actions(place, commit, "add")
        if action["dataChange"]
    }


def removed_since(place: str, log: Log, version: int) -> set[str]:
    """The files that the commit ``version`` or a later one has removed from the table. Raises StorageError."""
    return {
        unquote(action["path"])
        for commit in log.commits
        if commit >= version
        for action in read_actions(place, commit, "remove")
    }


def remove_data(place: str, names: Iterable[str]) -> None:
    """Remove files of the table's folder. Raises StorageError; a rerun continues."""
    if is_registered(place):
        _remove(*(f"{place}/{name}" for name in names))
        return
    for name in names:
        _remove(f"{place}/{name}")
        _remove(f"{place}/.{name}.crc")  # Hadoop's checksum, where Spark wrote it


def entries_of_log(place: str, before: int, checkpoints: Collection[int]) -> list[str]:
    """The files of the log that are older than a version, and those of the given checkpoints; oldest first.

    None older than ``before`` unless a checkpoint of that version is readable. Raises StorageError.
    """
    found: list[tuple[int, str]] = []
    whole = False
    for entry in _entries(f"{place}/{LOG}"):
        if not (match := _OF_LOG.fullmatch(entry.name)):
            continue
        version, checkpoint = int(match[1]), entry.name.endswith(".parquet")
        if version < before or (checkpoint and version in checkpoints):
            found.append((version, entry.name))
        elif checkpoint and version == before:
            whole = _readable(f"{place}/{LOG}/{entry.name}")
    return [name for version, name in sorted(found) if whole or version >= before]


def remove_log(place: str, names: Iterable[str]) -> None:
    """Remove files of the log, in this order: if interrupted, the rest is consistent. Raises StorageError."""
    ordered = list(names)
    # In an object store only the order of the calls is sure: without its first version a log is read from a checkpoint.
    first = [name for name in ordered if name[:20] == ordered[0][:20]]
    remove_data(f"{place}/{LOG}", first)
    remove_data(f"{place}/{LOG}", ordered[len(first) :])


def _entries(folder: str) -> list[FileEntry]:
    try:
        return table_files.entries(folder)
    except OSError as error:
        raise StorageError(f"the folder cannot be read: {error.strerror or error}", folder) from error


def _readable(path: str) -> bool:
    try:
        with reading(path):
            pq.read_metadata(table_files.source(path))
    except StorageError:  # whatever the reason: the log before it stays
        return False
    return True


def _remove(*paths: str) -> None:
    try:
        with suppress(FileNotFoundError):
            table_files.remove(*paths)
    except OSError as error:
        raise StorageError(
            f"cannot be removed: {error.strerror or error}", paths[0], "let this user remove it, then run again"
        ) from error
