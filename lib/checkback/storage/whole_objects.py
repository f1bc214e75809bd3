"""Data files in an object store, read whole and kept: pyarrow's file system for the dataset of a table.

With delta-rs' own, a file takes a request for its end and one for the columns of each row group, one after the other,
whenever a question reads it; many questions read a table several times. The bodies that come along take less time.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem

from checkback.storage import table_files
from checkback.storage.object_store import options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: bytes that are kept, of all files together
_KEPT = 128 << 20


class WholeObjects:
    """The contents of small files by their paths, for as long as a question takes: a data file never changes."""

    def __init__(self) -> None:
        self._contents: dict[str, pa.Buffer] = {}
        self._left = _KEPT
        self._lock = Lock()

    def read(self, path: str) -> pa.Buffer:
        """A file's content. Raises OSError."""
        content = self._contents.get(path)
        if content is None:
            content = pa.py_buffer(table_files.read(path))
            with self._lock:
                if path not in self._contents and content.size <= self._left:
                    self._contents[path] = content
                    self._left -= content.size
        return content

    def of_table(self, place: str, sizes: Mapping[str, int]) -> PyFileSystem:
        """The file system of the table in ``place``; ``sizes``: by path in it, in bytes."""
        return PyFileSystem(_Handler(self, place, dict(sizes)))


class _Handler(DeltaStorageHandler):
    def __init__(self, objects: WholeObjects, place: str, sizes: dict[str, int]) -> None:
        super().__init__(place, options_of(place) or None, sizes)
        self._objects, self._place, self._sizes = objects, place, sizes

    def open_input_file(self, path: str) -> Any:
        """The file; a small one in memory."""
        if self._sizes.get(path, table_files.WHOLE + 1) > table_files.WHOLE:
            return super().open_input_file(path)
        return pa.BufferReader(self._objects.read(f"{self._place}/{path}"))
