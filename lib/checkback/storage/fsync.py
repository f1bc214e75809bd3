"""Flushing to the disk, so that a power cut takes nothing away that somebody relies on (`storage.sync`).

What a file holds is on the disk when the file has been flushed, and that there is such a file when its folder has
been, too (POSIX, fsync). Until then a power cut may leave the file empty, cut off, under its old name, or not at all.
"""

from __future__ import annotations

import errno
import json
import os
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from checkback.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

LOG = "_delta_log"
COMMIT = re.compile(r"([0-9]{20})\.json")
#: Versions before the newest one that a process flushes with its first commit: their writers may have died between
#: a commit and its flush. The first commit after such a death flushes it, so more than one is rare.
BEHIND = 20
_AT_ONCE = 8
#: what file systems say that have nothing to flush for a folder, or do not let it be opened
_NO_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR})


class UnflushedError(StorageError):
    """What was written is there, but may be gone after a power cut: nobody may rely on it."""


def flush_file(path: str) -> None:
    """Flush what a file holds. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: str) -> None:
    """Flush which files a folder has. Raises OSError; not where the system has no such thing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError as error:
        if error.errno in _NO_FOLDERS:
            return
        raise
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FOLDERS:
            raise
    finally:
        os.close(descriptor)


def flush_parents(path: str) -> None:
    """Flush the folders above one, whoever has made which of them. Raises OSError."""
    above = os.path.dirname(os.path.abspath(path))
    while True:
        _flush_folder_if_there(above)
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)


def flush_written(path: str) -> None:
    """Flush a file and the folder in which it has got its name. Raises OSError."""
    flush_file(path)
    flush_folder(os.path.dirname(path))


class LogFlush:
    """The log of a table in a local folder, flushed without holes: a version only together with all before it.

    For one thread at a time.
    """

    def __init__(self, place: str) -> None:
        """``place``: the table's folder."""
        self._place = place
        self._flushed: int | None = None

    def to(self, version: int | None = None) -> None:
        """Flush all versions up to this one, or up to the newest that is there.

        Raises UnflushedError: what was committed may not be there after a power cut.
        """
        log = os.path.join(self._place, LOG)
        try:
            newest = self._newest(log) if version is None else version
            if newest is None or (self._flushed is not None and newest <= self._flushed):
                return
            first = newest - BEHIND if self._flushed is None else self._flushed + 1
            for number in range(max(0, first), newest + 1):
                _flush_if_there(os.path.join(log, f"{number:020}.json"))
            flush_folder(log)
            if self._flushed is None:
                flush_parents(log)
        except OSError as error:
            raise unflushed(error, self._place) from error
        self._flushed = newest

    def with_files(self) -> None:
        """Flush all versions with the files that they name: those whom another writer, as Spark, has committed.

        Raises UnflushedError.
        """
        log = os.path.join(self._place, LOG)
        try:
            newest = max(versions(log), default=-1)
            paths: set[str] = set()
            for version in range(max(0, newest - BEHIND), newest + 1):
                with suppress(FileNotFoundError), open(os.path.join(log, f"{version:020}.json"), "rb") as lines:
                    adds = (json.loads(line)["add"] for line in lines if line.startswith(b'{"add"'))
                    paths |= {os.path.join(self._place, unquote(add["path"])) for add in adds}
            with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
                list(pool.map(_flush_if_there, paths))
                list(pool.map(_flush_folder_if_there, _folders(self._place, paths)))
        except (OSError, ValueError, KeyError) as error:
            raise unflushed(error, self._place) from error
        self.to(newest)

    def _newest(self, log: str) -> int | None:
        if self._flushed is None:
            return max(versions(log), default=None)
        newest = self._flushed
        while os.path.exists(os.path.join(log, f"{newest + 1:020}.json")):
            newest += 1
        return newest

    def checkpoint(self, version: int) -> None:
        """Flush the checkpoint of a version. Raises UnflushedError."""
        log = os.path.join(self._place, LOG)
        try:
            for name in os.listdir(log):
                if name == "_last_checkpoint" or (name.startswith(f"{version:020}.") and name.endswith(".parquet")):
                    _flush_if_there(os.path.join(log, name))
            flush_folder(log)
        except OSError as error:
            raise unflushed(error, self._place) from error


class QueryFlush:
    """The checkpoint of a streaming query in a local folder, with the tables that its batches read.

    Spark writes its checkpoint without flushing it. Called in each batch, when its state is computed and before the
    first of its rows is committed, and in each batch without rows, too, it makes sure that

    - what a batch has read, the offsets that it goes by and the state that it leaves are on the disk before anything
      of it is in a table, so that a batch that is in any of them can be finished;
    - the same holds for every batch that Spark notes as done. What a power cut can take or tear are files of the
      batches that come after it: they are nobody's yet (`torn_commits`).
    """

    def __init__(self, place: str | None, tables: Iterable[str] = ()) -> None:
        """``place``: the checkpoint's folder; None = nothing is to be flushed. ``tables``: folders of tables."""
        self._place = place
        self._logs = [LogFlush(table) for table in tables]
        # A file that takes another's name is another one by its number.
        self._done: set[tuple[str, int]] = set()

    def __call__(self) -> None:
        """Flush what has come since the last call. Raises UnflushedError."""
        if self._place is None:
            return
        for log in self._logs:
            log.to()
        there = list(_tree(self._place))
        new = [entry for entry in there if entry not in self._done]
        try:
            with ThreadPoolExecutor(max_workers=_AT_ONCE) as pool:
                list(pool.map(_flush_if_there, (path for path, _ in new)))
                list(pool.map(_flush_folder_if_there, _folders(self._place, (path for path, _ in new))))
            if not self._done:
                flush_parents(self._place)
        except OSError as error:
            raise unflushed(error, self._place) from error
        self._done = set(there)


def flush_owner(place: str) -> None:
    """Flush what names the query of a checkpoint, which runs. Raises UnflushedError."""
    try:
        for name in ("metadata", ".metadata.crc"):
            _flush_if_there(os.path.join(place, name))
        _flush_folder_if_there(place)
        flush_parents(place)
    except OSError as error:
        raise unflushed(error, place) from error


def versions(log: str) -> list[int]:
    """The versions whose commits are in a folder ``_delta_log``, in any order. Raises OSError."""
    try:
        return [int(match[1]) for match in map(COMMIT.fullmatch, os.listdir(log)) if match]
    except FileNotFoundError:
        return []


def unflushed(error: Exception, place: str) -> UnflushedError:
    """The error of a disk that does not take what was written to it."""
    return UnflushedError(
        f"cannot be flushed to the disk: {getattr(error, 'strerror', None) or error}",
        place,
        "see to the disk, then start again",
    )


def _tree(folder: str) -> Iterator[tuple[str, int]]:
    """Path and number of each file in a folder and those below; a query at work may take some away meanwhile."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _tree(entry.path)
                else:
                    yield entry.path, entry.inode()
    except FileNotFoundError:
        return


def _folders(top: str, files: Iterable[str]) -> set[str]:
    """The folders that files lie in, up to one that is above all of them."""
    found = {top}
    for file in files:
        folder = os.path.dirname(file)
        while folder not in found:
            found.add(folder)
            folder = os.path.dirname(folder)
    return found


def _flush_if_there(path: str) -> None:
    try:
        flush_file(path)
    except FileNotFoundError:
        return


def _flush_folder_if_there(path: str) -> None:
    try:
        flush_folder(path)
    except FileNotFoundError:
        return
