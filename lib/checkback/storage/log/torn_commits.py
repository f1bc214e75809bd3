"""Torn commits in a table's log after a power cut: detected before anything is read, and moved aside if that is safe.

Delta's writers make a commit visible first and flush it afterwards, if at all. A power cut therefore loses or tears
versions at the end of a log: a commit is empty or truncated, or missing below later ones. With `storage.sync` nothing
depends on a version before it and all earlier ones are flushed (`fsync`), so torn versions, and those above them, were
never acknowledged and are moved aside. A version with a checksum file was flushed: if it is torn there is another
cause, and an operator must decide. Without `storage.sync`, and for `maintain --repair`, a checksum file proves nothing:
all commits since the last checkpoint are checked.
"""

from __future__ import annotations

import json
import logging
import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq

from checkback.errors import StorageError
from checkback.storage.failure_scope import is_damage
from checkback.storage.files import table_files
from checkback.storage.files.fsync import BEHIND, flush_folder
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import COMMIT, LOG, commit_file

if TYPE_CHECKING:
    from collections.abc import Iterator

_log = logging.getLogger(__name__)

#: key in a commit's commitInfo: the number of its other actions
ACTIONS = "checkback.actions"
#: folder, in the table's, of files moved aside; Delta ignores names that begin with an underscore
ASIDE = "_torn"
_CHECKPOINT = re.compile(r"([0-9]{20})\.checkpoint\.(?:[^.]+\.)*(?:parquet|json)")
_CHECKSUM = re.compile(r"([0-9]{20})\.crc")
_LAST = "_last_checkpoint"
_REPAIR = "run `checkback maintain --repair`: it puts aside what is torn, and says which"


@dataclass(frozen=True)
class TornCommits:
    """``version``: the first one torn or missing; None = only a checkpoint of the log is torn.

    ``names``: the log files to move aside. ``flushed``: these versions were flushed to disk once. ``said``: what is
    torn, for messages.
    """

    version: int | None
    names: tuple[str, ...]
    flushed: bool
    said: str


def refuse_torn(place: str, sync: bool = True) -> None:
    """Raise StorageError if the log of the table in the folder, if any, is torn.

    ``sync``: commits are flushed here.
    """
    torn = find_torn(place, sync)
    if torn is not None:
        raise StorageError(torn.said, place, _REPAIR)


def recover_log(place: str, force: bool = False) -> TornCommits | None:
    """Move the torn files of a table's log aside and log a warning; None if nothing is torn.

    Safe with concurrent recoveries and writers. ``force``: also move versions that were flushed once, and check all
    commits since the last checkpoint. Raises StorageError if flushed versions are torn (without ``force``), or a file
    cannot be moved.
    """
    if find_torn(place, not force) is None and not _misleading(place):
        return None
    try:
        with _alone(os.path.join(place, LOG)):
            # Check again: another process may have recovered it. A torn file does not change: no writer overwrites it.
            torn = find_torn(place, not force)
            if torn is not None:
                if torn.flushed and not force:
                    what = f"{torn.said}, but was on the disk once: the disk may be broken"
                    raise StorageError(what, place, _REPAIR)
                aside = _put_aside(place, torn.names)
            for name in _misleading(place):
                os.remove(os.path.join(place, LOG, name))
    except OSError as error:
        raise StorageError(f"torn commits cannot be moved aside: {error.strerror}", place) from error
    if torn is not None:
        told = "" if torn.version is None or torn.flushed else " (nobody had been told that they were stored)"
        _log.warning("%s: %s; moved to %s: %s%s", place, torn.said, aside, ", ".join(torn.names), told)
    return torn


def last_checkpoint(place: str) -> int:
    """The version in the log's ``_last_checkpoint``; -1 = none."""
    found = _pointer(os.path.join(place, LOG, _LAST))
    return -1 if found is None else found


def find_torn(place: str, checksums: bool = True) -> TornCommits | None:
    """The torn files of the log of the table in a folder; None if there are none, or no table. Raises StorageError.

    ``checksums``: a checksum file proves that its version and all earlier ones were flushed. An object store has none:
    an object is there as a whole, or not.
    """
    if is_registered(place):
        return None
    try:
        # Twice: listing a folder during writes may include a file and miss an earlier one.
        return _find(place, checksums) and _find(place, checksums)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"the table's log cannot be read: {error.strerror}", place) from error


def _find(place: str, believed: bool) -> TornCommits | None:
    log = os.path.join(place, LOG)
    names = os.listdir(log)
    commits, checksums, checkpoints = (_versions(kind, names) for kind in (COMMIT, _CHECKSUM, _CHECKPOINT))
    torn = [name for name in sorted(checkpoints, reverse=True) if not _readable(os.path.join(log, name))]
    newest = max(commits.values(), default=-1)
    # Log cleanup may remove commits below a checkpoint, in any order.
    whole = max((version for name, version in checkpoints.items() if name not in torn), default=-1)
    bad: int | None = None
    for version in range(newest, max(whole, newest - BEHIND - 1 if believed else -1, -1), -1):
        file = commit_file(place, version)
        if is_torn(file, version):
            bad = version
        elif believed and f"{version:020}.crc" in checksums:
            break  # it and all before it were flushed
    if bad is not None:
        above = {
            name for found in (commits, checksums, checkpoints) for name, version in found.items() if version >= bad
        }
        flushed = any(version >= bad for version in checksums.values())
        there = f"{bad:020}.json" in commits
        how = "is empty or cut off, as a power cut leaves it" if there else "is missing below later ones"
        return TornCommits(bad, tuple(sorted({*above, *torn})), flushed, f"version {bad} of the table's log {how}")
    if torn:
        return TornCommits(None, tuple(sorted(torn)), False, f"{torn[0]} of the table's log is empty or cut off")
    return None


def _misleading(place: str) -> list[str]:
    """Stale log files: checksums above the newest version, and a pointer to a missing checkpoint."""
    log = os.path.join(place, LOG)
    try:
        names = os.listdir(log)
    except FileNotFoundError:
        return []
    found = [
        name
        for name, version in _versions(_CHECKSUM, names).items()
        if not any(os.path.exists(commit_file(place, later)) for later in (version, version + 1))
        and version > max(_versions(COMMIT, names).values(), default=-1)
    ]
    if _LAST in names:
        version = _pointer(os.path.join(log, _LAST))
        if version not in _versions(_CHECKPOINT, os.listdir(log)).values():
            found.append(_LAST)
    return found


def is_torn(file: str, version: int) -> bool:
    """True if the commit file is truncated or missing. Raises OSError."""
    kinds: list[str] = []
    wanted: int | None = None
    try:
        with open(file, encoding="utf-8") as lines:
            for line in lines:
                if not line.strip():
                    continue
                action: dict[str, Any] = json.loads(line)
                kinds += action
                if "commitInfo" in action and ACTIONS in action["commitInfo"]:
                    wanted = int(action["commitInfo"][ACTIONS])
    except FileNotFoundError:
        return True
    except Exception as error:
        if not is_damage(error):
            raise
        return True
    return lacks_actions(version, kinds, wanted)


def lacks_actions(version: int, kinds: list[str], wanted: int | None) -> bool:
    """True if a commit with actions of these kinds is cut off; ``wanted``: their number by `ACTIONS`, if stated."""
    if not kinds or (version == 0 and not {"protocol", "metaData"} <= set(kinds)):
        return True
    return wanted is not None and len(kinds) - 1 != wanted


def _pointer(file: str) -> int | None:
    try:
        return int(json.loads(table_files.read(file))["version"])
    except FileNotFoundError:
        return None
    except Exception as error:
        if not is_damage(error):
            raise
        return None


def _readable(path: str) -> bool:
    if path.endswith(".json"):
        return os.path.getsize(path) > 0
    try:
        pq.read_metadata(path)
    except FileNotFoundError:
        return True
    except Exception as error:
        if not is_damage(error):
            raise
        return False
    return True


def _versions(kind: re.Pattern[str], names: list[str]) -> dict[str, int]:
    """Version by name, of the files that match ``kind``."""
    return {match[0]: int(match[1]) for match in map(kind.fullmatch, names) if match}


def _put_aside(place: str, names: tuple[str, ...]) -> str:
    aside = os.path.join(place, ASIDE, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    os.makedirs(aside, exist_ok=True)
    # Newest first: if interrupted, the first torn version stays in place and is found again.
    for name in sorted(names, reverse=True):
        with suppress(FileNotFoundError):
            os.replace(os.path.join(place, LOG, name), os.path.join(aside, name))
    for folder in (aside, os.path.dirname(aside), place, os.path.join(place, LOG)):
        flush_folder(folder)
    return aside


@contextmanager
def _alone(folder: str) -> Iterator[None]:
    """Exclude other processes' recovery of the same log; they wait."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(ImportError):  # not on Windows
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
