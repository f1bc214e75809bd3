"""The files of tables that Checkback writes itself: paths in a local folder, or URIs in an object store.

Functions raise OSError (FileNotFoundError, ...) as those of the module os do.
"""

from __future__ import annotations

import os
import posixpath
import re
import uuid
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.storage.files.object_store import (
    ObjectReader,
    ObjectWriter,
    concurrently,
    is_registered,
    open_store,
    os_errors,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime


#: bytes of a Parquet file up to which it is read whole: its parts would be a request each
WHOLE = 8 << 20
#: bytes of files that are read ahead
_AHEAD = 32 << 20
#: S3 deletes up to 1,000 objects by one request (DeleteObjects)
_BULK = 1000


@dataclass(frozen=True)
class FileEntry:
    """A file in a folder: its name, modification time (ms) and size in bytes."""

    name: str
    written: int
    size: int


def read(path: str) -> bytes:
    """The content of a small file."""
    if not is_registered(path):
        with open(path, "rb") as file:
            return file.read()
    import obstore

    with os_errors(path):
        return bytes(obstore.get(*open_store(path)).bytes())


def lines(path: str) -> list[str]:
    """The lines of a small text file in UTF-8, without empty ones. Also raises ValueError."""
    return [line for line in read(path).decode().split("\n") if line.strip()]


def write(path: str, content: bytes) -> None:
    """Create or overwrite a file atomically. Not flushed."""
    if not is_registered(path):
        new = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.{uuid.uuid4()}.tmp")
        with open(new, "wb") as file:
            file.write(content)
        os.replace(new, path)
        return
    import obstore

    store, key = open_store(path)
    with os_errors(path):
        obstore.put(store, key, content)


def remove(*paths: str) -> None:
    """Delete files of one place, in this order; in an object store many by one request."""
    if not paths:
        return
    if not is_registered(paths[0]):
        for path in paths:
            os.remove(path)
        return
    import obstore

    store, _ = open_store(paths[0])
    keys = [open_store(path)[1] for path in paths]
    with os_errors(paths[0]):
        for first in range(0, len(keys), _BULK):
            obstore.delete(store, keys[first : first + _BULK])


def names(folder: str) -> list[str]:
    """The names of the files and folders in a folder, without those that are no text; empty if it does not exist."""
    if not is_registered(folder):
        return local_names(folder) if os.path.isdir(folder) else []
    found = _listed(folder)
    paths = [*found["common_prefixes"], *(file["path"] for file in found["objects"])]
    return [posixpath.basename(path) for path in paths]


def local_names(folder: str) -> list[str]:
    """The names in a local folder, without those that are no UTF-8: no table or file of Delta's has such a name.

    Neither delta-rs nor Spark can open them.
    """
    return [name for name in os.listdir(folder) if name.isascii() or _is_text(name)]


def _is_text(name: str) -> bool:
    with suppress(UnicodeEncodeError):
        name.encode()
        return True
    return False


def names_after(folder: str, name: str) -> list[str]:
    """The names of the files in a folder that sort after ``name``; empty if it does not exist.

    A store lists by the thousand, and a table's log may have ten thousand files: it is asked for these only.
    """
    if not is_registered(folder):
        return [each for each in names(folder) if each > name]
    import obstore

    store, key = open_store(folder)
    with os_errors(folder):
        found = [
            file["path"][len(key) + 1 :] for part in obstore.list(store, key, offset=f"{key}/{name}") for file in part
        ]
    return [each for each in found if "/" not in each]


def folders(folder: str) -> list[str]:
    """The names of the folders in a folder; empty if it does not exist."""
    if not is_registered(folder):
        return [name for name in names(folder) if os.path.isdir(os.path.join(folder, name))]
    return [posixpath.basename(path) for path in _listed(folder)["common_prefixes"]]


def entries(folder: str) -> list[FileEntry]:
    """The files in a folder. Raises FileNotFoundError if a local folder does not exist."""
    if not is_registered(folder):
        with os.scandir(folder) as found:
            there = [(entry.name, _stat(entry)) for entry in found if entry.is_file()]
        return [FileEntry(name, about.st_mtime_ns // 1_000_000, about.st_size) for name, about in there if about]
    return [
        FileEntry(posixpath.basename(file["path"]), _ms(file["last_modified"]), file["size"])
        for file in _listed(folder)["objects"]
    ]


def below(folder: str) -> list[FileEntry]:
    """The files in a folder and its folders, by their paths in it."""
    if not is_registered(folder):
        found = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
        return [replace(entry(path), name=os.path.relpath(path, folder)) for path in found]
    import obstore

    store, key = open_store(folder)
    with os_errors(folder):
        listed = [file for part in obstore.list(store, f"{key}/") for file in part]
    return [FileEntry(file["path"][len(key) + 1 :], _ms(file["last_modified"]), file["size"]) for file in listed]


def entry(path: str) -> FileEntry:
    """A file; in an object store by one request."""
    if not is_registered(path):
        there = os.stat(path)
        return FileEntry(posixpath.basename(path), there.st_mtime_ns // 1_000_000, there.st_size)
    about = _about(path)
    return FileEntry(posixpath.basename(path), _ms(about["last_modified"]), about["size"])


def _stat(entry: os.DirEntry[str]) -> os.stat_result | None:
    """None if it has been removed meanwhile, as old checksums are."""
    with suppress(FileNotFoundError):
        return entry.stat()
    return None


def _listed(folder: str) -> Any:
    import obstore

    store, key = open_store(folder)
    with os_errors(folder):
        return obstore.list_with_delimiter(store, key)


def exists(path: str) -> bool:
    """True if there is a file."""
    if not is_registered(path):
        return os.path.exists(path)
    with suppress(FileNotFoundError):
        size(path)
        return True
    return False


def size(path: str) -> int:
    """Size of a file in bytes."""
    if not is_registered(path):
        return os.path.getsize(path)
    found: int = _about(path)["size"]
    return found


def etag(path: str) -> str | None:
    """The ETag of an object; another object in its place has another one."""
    found: str | None = _about(path)["e_tag"]
    return found


def modified(path: str) -> int:
    """Modification time of a file (ms)."""
    if not is_registered(path):
        return round(os.path.getmtime(path) * 1000)
    return _ms(_about(path)["last_modified"])


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def _about(path: str) -> Any:
    import obstore

    with os_errors(path):
        return obstore.head(*open_store(path))


def source(path: str) -> Any:
    """What pyarrow.parquet reads the file from: its path, or a file object. A small object is read by one request."""
    if not is_registered(path):
        return path
    import obstore

    store, key = open_store(path)
    with os_errors(path):
        found = obstore.get(store, key)  # the response's head: its body is read on demand
        size = found.meta["size"]
        if size <= WHOLE:
            return pa.BufferReader(bytes(found.bytes()))
    return pa.PythonFile(ObjectReader(path, size), mode="r")


def sources(files: Sequence[tuple[str, int]]) -> Iterator[Any]:
    """The `source` of each file, a path and a size in bytes, in order; objects are read ahead, some at a time."""
    group: list[str] = []
    held = 0
    for path, size in files:
        if held + size > _AHEAD and group:
            yield from concurrently(path, source, group)
            group, held = [], 0
        group.append(path)
        held += size
    if group:
        yield from concurrently(group[0], source, group)


def sink(root: str, path: str) -> Any:
    """What pyarrow.parquet writes the file to: its path, in a folder that exists, or an `ObjectWriter`.

    ``path``: relative to the ``root``, which is not recreated if it is missing: it may be a mount.
    """
    if is_registered(root):
        return ObjectWriter(f"{root}/{path}")
    folder = root
    for name in path.split("/")[:-1]:
        folder = f"{folder}/{name}"
        try:
            os.mkdir(folder)
        except OSError:  # as os.makedirs: not every file system says of one that is there that it is
            if not os.path.isdir(folder):
                raise
    return f"{root}/{path}"


#: the log's folder in the table's
LOG = "_delta_log"
COMMIT = re.compile(r"([0-9]{20})\.json")


def commit_file(place: str, version: int) -> str:
    """The commit file of a version of the table in ``place``, a folder or a URI."""
    return f"{place}/{LOG}/{version:020}.json"


def versions(place: str, first: int = 0) -> list[int]:
    """The versions from ``first`` on with a commit file, in any order. Raises OSError."""
    log = f"{place}/{LOG}"
    there = names_after(log, f"{first:020}") if first > 0 else names(log)
    return [int(match[1]) for match in map(COMMIT.fullmatch, there) if match]
