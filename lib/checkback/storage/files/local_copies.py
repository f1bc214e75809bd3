"""Data files of an object store, copied to a folder of this machine for a question that reads them whole."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from checkback.storage.files import table_files
from checkback.storage.files.object_store import concurrently

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        folder = f"{self._folder}/{self._places.setdefault(place, len(self._places))}"
        os.makedirs(folder, exist_ok=True)
        copy = f"{folder}/{name}"
        with open(copy, "wb") as file:
            file.write(table_files.read(path))
        return copy
