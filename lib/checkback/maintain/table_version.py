"""Copies the files of a Delta table's version, which nobody changes, and its log up to that version."""

from __future__ import annotations

import os
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.maintain.table_folder import read_log
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.fsync import flush_file, flush_parents
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import LOG
from checkback.storage.log.compatibility import is_plain
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.log.snapshot_files import data_files, open_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: files at a time; each is held whole in memory, if one of the places is an object store
_AT_ONCE = 4
#: what begins with a version in the log, but for Delta's compacted commits, which may go beyond that
_OF_VERSION = re.compile(r"(\d{20})\.(?!\d)")


@dataclass(frozen=True)
class TableVersion:
    """A version of the table in ``place``: paths and bytes of its data files, and paths of its log."""

    place: str
    data: tuple[tuple[str, int], ...]
    log: tuple[str, ...]

    @classmethod
    def of(cls, place: str, version: int) -> TableVersion:
        """Raises StorageError.

        Of a table that was altered only a reader of its features knows which files are of the version (vectors of
        deleted rows, sidecars of checkpoints): all that there are.
        """
        with reading(place, unreadable):
            table = open_table(place, version)
            if is_plain(table):
                data = [(file.path.removeprefix(f"{place}/"), file.size) for file in data_files(table, place)]
                return cls(place, tuple(data), tuple(_log_files(place, version)))
            there = [(file.name, file.size) for file in table_files.below(place)]
        log = [name.removeprefix(f"{LOG}/") for name, _ in there if name.startswith(f"{LOG}/")]
        found = {name: _OF_VERSION.match(name) for name in log}
        own = [
            name
            for name, match in found.items()
            if name.startswith("_sidecars/") or (match and int(match[1]) <= version)
        ]
        data = [(name, size) for name, size in there if not name.startswith(f"{LOG}/")]
        return cls(place, tuple(data), tuple(f"{LOG}/{name}" for name in sorted(own)))

    @property
    def bytes(self) -> int:
        """Of all data files."""
        return sum(size for _, size in self.data)

    def refuse_incomplete(self, files: int, size: int) -> None:
        """Raises StorageError unless there are ``files`` of ``size`` bytes."""

        def look(file: tuple[str, int]) -> bool:
            try:
                return table_files.size(f"{self.place}/{file[0]}") == file[1]
            except FileNotFoundError:
                return False

        what, fix = "a file of the backup is missing or cut short", "take another one"
        if (len(self.data), self.bytes) != (files, size):
            raise StorageError(what, self.place, fix)
        with reading(self.place), ThreadPoolExecutor(_AT_ONCE) as pool:
            for (path, _), whole in zip(self.data, pool.map(look, self.data), strict=True):
                if not whole:
                    raise StorageError(what, f"{self.place}/{path}", fix)

    def copy_data(self, target: str, step: Callable[[], object]) -> None:
        """To the table in ``target``; ``step`` is called for each file. Raises StorageError."""
        _copy_all(self.place, target, [path for path, _ in self.data], step)

    def copy_log(self, target: str) -> None:
        """To the table in ``target``. Raises StorageError."""
        _copy_all(self.place, target, self.log)


def _log_files(place: str, version: int) -> list[str]:
    """The newest checkpoint of the log up to a version, and the commits after it, relative to the table."""
    checkpoint = max((each for each in read_log(place).checkpoints if each <= version), default=None)
    first = 0 if checkpoint is None else checkpoint
    parts = re.compile(rf"{first:020}\.checkpoint(?:\.\d{{10}}\.\d{{10}})?\.parquet")
    names = [] if checkpoint is None else sorted(filter(parts.fullmatch, table_files.names(f"{place}/{LOG}")))
    return [f"{LOG}/{name}" for name in [*names, *(f"{each:020}.json" for each in range(first, version + 1))]]


def _copy_all(source: str, target: str, paths: Sequence[str], step: Callable[[], object] = bool) -> None:
    with reading(target), ThreadPoolExecutor(_AT_ONCE) as pool:
        for _ in pool.map(partial(_copy, source, target), paths):
            step()
        if not is_registered(target) and paths:
            flush_parents(f"{target}/{LOG}/x" if os.path.isdir(f"{target}/{LOG}") else f"{target}/x")


def _copy(source: str, target: str, path: str) -> None:
    """Copy a file, atomically, with its time, which is a commit's time for Delta."""
    there, copy = f"{source}/{path}", f"{target}/{path}"
    if is_registered(target):
        table_files.write(copy, table_files.read(there))
        return
    os.makedirs(os.path.dirname(copy), exist_ok=True)
    new = f"{os.path.dirname(copy)}/.{os.path.basename(copy)}.tmp"
    if is_registered(source):
        with open(new, "wb") as file:
            file.write(table_files.read(there))
        seconds = table_files.modified(there) / 1000
        os.utime(new, (time.time(), seconds))
    else:
        shutil.copy2(there, new)
    flush_file(new)
    os.replace(new, copy)
