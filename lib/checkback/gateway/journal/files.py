"""The files of a journal: one process has them, and none of them goes without the others.

``journal.db``; ``journal.db-wal`` and ``journal-N.bin`` (`segments`), while the journal is open or after a
crash, have what is not in the database yet; ``journal.lock``; ``journal.root``.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from checkback.errors import FencedError, SettingsError, StorageError

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
