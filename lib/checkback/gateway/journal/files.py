"""The files of a journal: one process has them, and none of them goes without the others.

``journal.db``; ``journal.db-wal`` and ``journal-N.bin`` (`Segments`), while the journal is open or after a
crash, have what is not in the database yet; ``journal.lock``; ``journal.root``.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import FencedError, SettingsError, StorageError
from checkback.storage.files.fsync import flush_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from io import FileIO


_LOCK, _ROOT = "journal.lock", "journal.root"
#: bytes of the note in the lock file
_NOTE = 40


def refuse_parts(folder: str, path: str) -> None:
    """Refuse some of the files: SQLite deletes a WAL alone, and misses none. Raises StorageError."""
    if not exists(path):
        if exists(f"{path}-wal"):
            raise incomplete(path, "journal.db is not there, and journal.db-wal is")
    elif not os.path.exists(f"{path}-wal") and not os.path.exists(os.path.join(folder, _LOCK)):
        why = f"{_LOCK} is not there: journal.db may be a copy without its journal.db-wal"
        raise incomplete(path, why, f"; if it was closed, create an empty {_LOCK}")


def incomplete(path: str, why: str, otherwise: str = "") -> StorageError:
    """The error of a journal of which something is missing."""
    fix = f"the journal is all files of its folder: put them back together{otherwise}"
    return StorageError(f"the journal is not complete: {why}", path, fix)


def exists(path: str) -> bool:
    """Is there a file that is not empty?"""
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False


def noted(lock: int) -> tuple[int, int]:
    """The journal's id, and the position of the last record that was appended; (0, 0) = it was closed, or unknown."""
    os.lseek(lock, 0, os.SEEK_SET)
    number, _, position = os.read(lock, _NOTE).partition(b" ")
    return (int(number), int(position)) if number.isdigit() and position.strip().isdigit() else (0, 0)


def note(lock: int, number: int = 0, position: int = 0) -> None:
    """Note it for `noted`: beside the database, so that records which are gone with its WAL are missed.

    Not flushed to disk: an older note, after a power cut, misses less. A disk that is full may drop it.
    """
    with suppress(OSError):
        os.lseek(lock, 0, os.SEEK_SET)
        os.write(lock, f"{number} {position}".ljust(_NOTE).encode())


def root_of(folder: str) -> str:
    """The folder of the tables that the journal was last used with; empty = unknown."""
    try:
        with open(os.path.join(folder, _ROOT), encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def note_root(folder: str, root: str) -> None:
    """Note it for `root_of`. A disk that is full may drop it."""
    if root_of(folder) != root:
        path = os.path.join(folder, _ROOT)
        with suppress(OSError), open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(root)


class Identity:
    """Which files ``journal.db`` and ``journal.lock`` are, to notice that others, or none, have taken their place."""

    def __init__(self, path: str) -> None:
        """Of those that are there now; ``path``: that of ``journal.db``. Raises OSError."""
        self._path = path
        self._files = self._there()

    def confirm(self) -> None:
        """Check that they are still there. Raises FencedError if not, StorageError if that cannot be determined.

        Files that were removed go on taking records, and are gone with the process.
        """
        try:
            same = self._there() == self._files
        except FileNotFoundError:
            same = False
        except OSError as error:
            raise StorageError(f"the journal cannot be looked at: {error.strerror}", self._path) from error
        if not same:
            raise FencedError(
                "the journal's files were removed or replaced while the gateway ran",
                self._path,
                "see who does it, then start again: this gateway still puts into the tables what it has acknowledged",
            )

    def _there(self) -> list[tuple[int, int]]:
        files = self._path, os.path.join(os.path.dirname(self._path), _LOCK)
        return [(found.st_dev, found.st_ino) for found in map(os.stat, files)]


def exclusive(folder: str) -> int:
    """A descriptor that holds the folder's lock until it is closed."""
    path = os.path.join(folder, _LOCK)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SettingsError(f"cannot be created: {error.strerror}", path, "name another gateway.journal") from error
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # not on Windows
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise SettingsError(f"cannot be locked: {error.strerror}", path, "use a local disk") from error
        fix = "stop that one, or give this one a gateway.journal of its own"
        raise SettingsError("another gateway has this journal open", folder, fix) from error
    return descriptor


#: bytes of a content from which on it goes to a file: a smaller one costs less than the file's flush
LARGE = 64 << 10
#: bytes after which the next file is begun
_MOST = 32 << 20
_NAME = re.compile(r"journal-([0-9]{1,18})\.bin")
#: first bytes of a file: "cbS1", its number, the journal's id
_HEADER = struct.Struct(">4sQQ")
_MAGIC = b"cbS1"
_flush = getattr(os, "fdatasync", os.fsync)


class Segments:
    """The files of an open journal. `write` and `remove` belong to one thread, `read` to another."""

    def __init__(
        self, folder: str, journal: int, named: Iterable[tuple[int, int, int]], in_tables: Callable[[], int]
    ) -> None:
        """Removes what a crash has left over. ``journal``: its id.

        ``named``: by the rows: the number of each file, where its last content ends, and the position of the last row
        that names it. ``in_tables``: up to which position the tables have all records: nobody reads those rows again,
        and they may be there without their files since a commit that failed to delete them.

        Raises StorageError if such a file is not there, or shorter; OSError.
        """
        self._folder = folder
        self._journal = journal
        self._file: FileIO | None = None
        self._number = self._size = 0
        #: by file, the position of the last record whose content it has
        self._last: dict[int, int] = {}
        #: the same before the last `write`
        self._before: dict[int, int] = {}
        for number, end, position in named:
            if self._is_own(number) and os.path.getsize(self._path(number)) >= end:
                self._last[number] = position
            elif position <= in_tables():
                self._number = max(self._number, number)  # not used again: rows name it
            else:
                why = f"{os.path.basename(self._path(number))} is not there, or not as it was"
                raise incomplete(os.path.join(folder, "journal.db"), why)
        for name in os.listdir(folder):
            found = _NAME.fullmatch(name)
            if found is None:
                continue
            number = int(found.group(1))
            self._number = max(self._number, number)
            if number not in self._last and self._is_own(number, torn=True):
                os.remove(self._path(number))

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"journal-{number}.bin")

    def _is_own(self, number: int, torn: bool = False) -> bool:
        """Is the file of this journal? ``torn``: or so broken that it is of none. Another's may be put back to it."""
        try:
            with open(self._path(number), "rb") as file:
                header = file.read(_HEADER.size)
        except FileNotFoundError:
            return False
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            return torn
        return header == _HEADER.pack(_MAGIC, number, self._journal)

    def write(self, contents: Sequence[bytes], position: int) -> list[tuple[int, int]]:
        """Write contents, and flush them to disk; returns the file and place of each. Raises OSError: nothing counts.

        ``position``: of the last record whose content is among them.
        """
        places = []
        self._before = dict(self._last)
        try:
            for content in contents:
                file = self._file if self._file is not None and self._size < _MOST else self._begun()
                self._last[self._number] = position
                places.append((self._number, self._size))
                _write(file, content)
                self._size += len(content)
            if self._file is not None:
                _flush(self._file)
        except OSError:
            self.undo()
            raise
        return places

    def undo(self) -> None:
        """No row names what the last `write` wrote: remove the files that it has begun, and append to none before.

        What a failed flush has left on disk is not known.
        """
        self._end()
        for number in self._last.keys() - self._before.keys():
            with suppress(OSError):
                os.remove(self._path(number))
        self._last = dict(self._before)

    def _begun(self) -> FileIO:
        """The next file."""
        if self._file is not None:
            _flush(self._file)
        self._end()
        self._number += 1
        self._file = file = open(self._path(self._number), "xb", buffering=0)  # noqa: SIM115 - it stays open
        self._last[self._number] = 0
        _write(file, _HEADER.pack(_MAGIC, self._number, self._journal))
        self._size = _HEADER.size
        flush_folder(self._folder)
        return file

    def _end(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def read(self, number: int, place: int, size: int) -> bytes:
        """A content. Raises OSError, ValueError if it is not all there."""
        with open(self._path(number), "rb", buffering=0) as file:
            file.seek(place)
            parts, left = list[bytes](), size
            while left and (part := file.read(left)):
                parts.append(part)
                left -= len(part)
        if left:
            raise ValueError(f"{os.path.basename(self._path(number))} ends too early")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def remove(self, position: int, current: bool = False) -> None:
        """Rows up to this position are deleted, for good: remove the files that only they have named.

        ``current``: that to which the next content would be appended, too.
        """
        for number in [number for number, last in self._last.items() if last <= position]:
            if number == self._number and self._file is not None:
                if not current:
                    continue
                self._end()
            with suppress(OSError):  # the next start removes it
                os.remove(self._path(number))
            del self._last[number]

    def close(self) -> None:
        """Release the file."""
        self._end()


def _write(file: FileIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]
