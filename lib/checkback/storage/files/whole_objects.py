"""Data files in an object store, read whole: kept in memory for pyarrow's dataset of a table, or copied to a folder.

With delta-rs' own, a file takes a request for its end and one for the columns of each row group, one after the other,
whenever a question reads it; many questions read a table several times. The bodies that come along take less time.
Arrow opens a few files at a time, so those that follow are fetched ahead: as many as it has come for so far.
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from checkback.storage.files import table_files
from checkback.storage.files.object_store import AT_ONCE, concurrently, options_of

if TYPE_CHECKING:
    from collections.abc import Mapping


#: bytes that are kept, of all files together
_KEPT = 128 << 20
#: files that are fetched ahead, and their bytes
_FILES, _AHEAD = 2 * AT_ONCE, 32 << 20


class WholeObjects:
    """The contents of small files by their paths, for as long as a question takes: a data file never changes."""

    def __init__(self) -> None:
        self._contents: dict[str, Future[pa.Buffer]] = {}
        self._kept: set[str] = set()
        self._left = _KEPT
        self._lock = Lock()
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def close(self) -> None:
        """Fetch nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def fetch(self, path: str) -> tuple[Future[pa.Buffer], bool]:
        """A file's content, which begins to be read; True if it was not before."""
        with self._lock:
            new = path not in self._contents
            if new:
                self._contents[path] = self._pool.submit(_content, path)
            return self._contents[path], new

    def read(self, path: str, content: Future[pa.Buffer]) -> pa.Buffer:
        """The content that was fetched. Raises OSError."""
        try:
            return content.result()
        finally:
            with self._lock:
                self._keep(path, content)

    def _keep(self, path: str, content: Future[pa.Buffer]) -> None:
        """Keep what was read, or forget it."""
        if path in self._kept:
            return
        if content.exception() is None and content.result().size <= self._left:
            self._left -= content.result().size
            self._kept.add(path)
        else:
            self._contents.pop(path, None)

    def of_table(self, place: str, sizes: Mapping[str, int]) -> PyFileSystem:
        """The file system of the table in ``place``; ``sizes``: by path in it, in bytes, in the order of reading."""
        return PyFileSystem(_Handler(self, place, dict(sizes)))


class _Handler(DeltaStorageHandler):
    def __init__(self, objects: WholeObjects, place: str, sizes: dict[str, int]) -> None:
        super().__init__(place, options_of(place) or None, sizes)
        self._objects, self._place, self._sizes = objects, place, sizes
        self._files = list(sizes)
        self._at = {path: at for at, path in enumerate(self._files)}
        self._lock = Lock()
        #: files to fetch ahead, and the place of the first that was not
        self._ahead, self._next = 0, 0

    def open_input_file(self, path: str) -> Any:
        """The file; a small one in memory."""
        if self._sizes.get(path, table_files.WHOLE + 1) > table_files.WHOLE:
            return super().open_input_file(path)
        with self._lock:
            content, new = self._objects.fetch(f"{self._place}/{path}")
            self._fetch_ahead(self._at[path] + 1, new)
        return pa.BufferReader(self._objects.read(f"{self._place}/{path}", content))

    def _fetch_ahead(self, at: int, new: bool) -> None:
        """Fetch files from a place on: none if statistics have let Arrow skip those that were fetched."""
        self._ahead = 1 if new else min(2 * self._ahead, _FILES)
        if new or not at - 1 <= self._next <= at + _FILES:
            self._next = at
        elif self._next > at + self._ahead // 2:
            return
        held = 0
        for path in self._files[self._next : at + self._ahead]:
            held += self._sizes[path]
            if held > _AHEAD:
                return
            self._next += 1
            if self._sizes[path] <= table_files.WHOLE:
                self._objects.fetch(f"{self._place}/{path}")


def _content(path: str) -> pa.Buffer:
    return pa.py_buffer(table_files.read(path))


#: bytes of all copies together
_MOST = 1 << 30


class LocalCopies:
    """The copies in a folder, which belongs to them. A data file never changes."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._copies: dict[str, str] = {}
        self._places: dict[str, int] = {}
        self._bytes = 0

    def of(self, sizes: Mapping[str, int]) -> list[str] | None:
        """The copies of files, ``sizes``: in bytes; None if one is large, or they are too many. Raises OSError."""
        new = [path for path in sizes if path not in self._copies]
        more = sum(sizes[path] for path in new)
        if self._bytes + more > _MOST or any(sizes[path] > table_files.WHOLE for path in new):
            return None
        for path, copy in zip(new, concurrently(new[0] if new else "", self._copy, new), strict=True):
            self._copies[path] = copy
        self._bytes += more
        return [self._copies[path] for path in sizes]

    def _copy(self, path: str) -> str:
        place, name = path.rsplit("/", 1)
        # The folder's name is a topic's.
        folder = f"{self._folder}/{self._places.setdefault(place, len(self._places))}/{place.rsplit('/', 1)[1]}"
        os.makedirs(folder, exist_ok=True)
        copy = f"{folder}/{name}"
        with open(copy, "wb") as file:
            file.write(table_files.read(path))
        return copy
