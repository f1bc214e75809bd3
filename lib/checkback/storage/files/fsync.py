"""Flushing to disk, so that a power cut loses nothing that was acknowledged (`storage.sync`).

A file's content is durable once the file is flushed, its directory entry once its folder is, too (POSIX, fsync). Until
then a power cut may leave the file empty, truncated, under its old name, or missing.
"""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING
from urllib.parse import unquote

from checkback.errors import StorageError
from checkback.storage.files.table_files import LOG, commit_file, versions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Versions before the newest one that a process flushes with its first commit: their writers may have crashed between
#: commit and flush. The first commit after such a crash flushes it, so more than one is rare.
BEHIND = 20
#: flushes in parallel
AT_ONCE = 8
#: errors of file systems on which a folder cannot be opened or needs no fsync
_NO_FOLDERS = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR})


class UnflushedError(StorageError):
    """A write was made but is not durable: it may be lost in a power cut, and nothing may depend on it."""


def flush_file(path: str) -> None:
    """Flush a file's content. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        getattr(os, "fdatasync", os.fsync)(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: str) -> None:
    """Flush a folder's directory entries; a no-op where unsupported. Raises OSError."""
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
    """Flush all parent folders, as any of them may be new. Raises OSError."""
    above = os.path.dirname(os.path.abspath(path))
    while True:
        _flush_folder_if_there(above)
        if above == os.path.dirname(above):
            return
        above = os.path.dirname(above)


class LogFlush:
    """Flushes the log of a table in a local folder without gaps: a version only with all earlier ones.

    Not thread-safe.
    """

    def __init__(self, place: str) -> None:
        """``place``: the table's folder."""
        self._place = place
        self._flushed: int | None = None

    def to(self, version: int | None = None) -> None:
        """Flush all versions up to this one, or up to the newest. Raises UnflushedError."""
        log = os.path.join(self._place, LOG)
        try:
            newest = self._newest() if version is None else version
            if newest is None or (self._flushed is not None and newest <= self._flushed):
                return
            first = newest - BEHIND if self._flushed is None else self._flushed + 1
            for number in range(max(0, first), newest + 1):
                _flush_if_there(commit_file(self._place, number))
            flush_folder(log)
            if self._flushed is None:
                flush_parents(log)
        except OSError as error:
            raise unflushed(error, self._place) from error
        self._flushed = newest

    def with_files(self) -> None:
        """Flush all versions and the data files they add: for commits of another writer, such as Spark.

        Raises UnflushedError.
        """
        try:
            newest = max(versions(self._place), default=-1)
            paths: set[str] = set()
            for version in range(max(0, newest - BEHIND), newest + 1):
                with suppress(FileNotFoundError), open(commit_file(self._place, version), "rb") as lines:
                    adds = (json.loads(line)["add"] for line in lines if line.startswith(b'{"add"'))
                    paths |= {os.path.join(self._place, unquote(add["path"])) for add in adds}
            with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
                list(pool.map(_flush_if_there, paths))
                list(pool.map(_flush_folder_if_there, _folders(self._place, paths)))
        except (OSError, ValueError, KeyError) as error:
            raise unflushed(error, self._place) from error
        self.to(newest)

    def _newest(self) -> int | None:
        if self._flushed is None:
            return max(versions(self._place), default=None)
        newest = self._flushed
        while os.path.exists(commit_file(self._place, newest + 1)):
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
    """Flushes a streaming query's checkpoint in a local folder, and the query's source tables.

    Spark writes its checkpoint without flushing it. Called in every batch, even one without rows, after its state is
    computed and before its first commit, this ensures that

    - a batch's input, offsets and state are durable before any table has rows of it, so that a batch that is in any
      table can be completed;
    - the same holds for every batch in Spark's commit log. A power cut can lose or tear only files of later batches,
      which nothing depends on yet (`torn_commits`).
    """

    def __init__(self, place: str | None, tables: Iterable[str] = ()) -> None:
        """``place``: the checkpoint's folder; None = flush nothing. ``tables``: folders of the source tables."""
        self._place = place
        self._logs = [LogFlush(table) for table in tables]
        # (path, inode): a file that replaces another has a different inode.
        self._done: set[tuple[str, int]] = set()

    def __call__(self) -> None:
        """Flush everything written since the last call. Raises UnflushedError."""
        if self._place is None:
            return
        for log in self._logs:
            log.to()
        there = list(_tree(self._place))
        new = [entry for entry in there if entry not in self._done]
        try:
            with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
                list(pool.map(_flush_if_there, (path for path, _ in new)))
                list(pool.map(_flush_folder_if_there, _folders(self._place, (path for path, _ in new))))
            if not self._done:
                flush_parents(self._place)
        except OSError as error:
            raise unflushed(error, self._place) from error
        self._done = set(there)


def flush_owner(place: str) -> None:
    """Flush the metadata file (query id) of a running query's checkpoint. Raises UnflushedError."""
    try:
        for name in ("metadata", ".metadata.crc"):
            _flush_if_there(os.path.join(place, name))
        _flush_folder_if_there(place)
        flush_parents(place)
    except OSError as error:
        raise unflushed(error, place) from error


def unflushed(error: Exception, place: str) -> UnflushedError:
    """The error for a failed flush."""
    return UnflushedError(
        f"cannot be flushed to the disk: {getattr(error, 'strerror', None) or error}",
        place,
        "check the disk, then start again",
    )


def _tree(folder: str) -> Iterator[tuple[str, int]]:
    """Path and inode of each file in a folder tree; a running query may remove some concurrently."""
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
    """The folders that contain the files, up to and including ``top``."""
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
