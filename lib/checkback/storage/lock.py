"""One process works on the tables of a folder at a time: a lock that the system lets go when the process dies.

Spark's own fence, the offset log, speaks up only when two queries write the same entry of the same checkpoint: a
batch that is done again slips through, and another checkpoint on the same tables does, too.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import FencedError, StorageError
from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.storage.tables import Tables

#: in the folder of the tables; Delta and Spark pass over names with an underscore
FILE = "_reconcile.lock"


@dataclass(frozen=True)
class Lock:
    """The lock, as whoever is in holds it. ``path`` of its file; None = there is none."""

    path: str | None = None
    descriptor: int = -1

    def confirm(self) -> None:
        """Look whether its file is still the one that is there: with another one, another process may be in.

        Raises FencedError, StorageError when nobody can say.
        """
        if self.path is not None and not _is_there(self.descriptor, self.path):
            raise FencedError(
                "somebody has taken the lock's file away, as with the folder that he put back: "
                "another process may work on these tables",
                self.path,
                "see that nobody works on them, then start again",
            )


@contextmanager
def exclusive_lock(tables: Tables, file: str = FILE) -> Iterator[Lock]:
    """Inside, no other process gets in for the same tables, whatever its checkpoint. kill -9 lets go of it, too.

    ``file``: those that take the same one keep each other out.

    It is an advisory lock on a file (flock), so both must see one file system. Where the tables do not lie in a local
    folder it stands beside the checkpoints; where these do not, either, there is none: Spark's and Delta's own fences
    remain. Its file may be taken away by somebody: whoever is in for long looks again (`Lock.confirm`).

    Raises FencedError when another process is in, StorageError when the file cannot be made.
    """
    folder = _folder(tables)
    if folder is None:
        yield Lock()
        return
    path = os.path.join(folder, file)
    descriptor = _opened(path, folder)
    try:
        with suppress(OSError):  # on a full disk: it only tells others who is in
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield Lock(path, descriptor)
    finally:
        os.close(descriptor)


def lock_is_held(tables: Tables) -> str | None:
    """Who is in, as "process 12 on host"; empty: nobody. None = nobody can say: the tables are not on this machine.

    It only looks: for as long as that takes it holds a shared lock, which `exclusive_lock` waits for.
    """
    folder = _folder(tables)
    if folder is None:
        return None
    try:
        import fcntl

        descriptor = os.open(os.path.join(folder, FILE), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    except (ImportError, OSError):
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(descriptor)
    except OSError:
        return None
    else:
        return ""
    finally:
        os.close(descriptor)


def _opened(path: str, folder: str) -> int:
    """The lock's file, made if it is not there, and locked. Raises FencedError, StorageError."""
    while True:
        try:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"the lock file cannot be made: {error.strerror}", path) from error
        try:
            _lock(descriptor, folder)
            if _is_there(descriptor, path):  # else it was taken away between the two
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_there(descriptor: int, path: str) -> bool:
    """Is the open file the one under this path? Raises StorageError."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"the lock's file cannot be seen: {error.strerror}", path) from error


def _folder(tables: Tables) -> str | None:
    """Where the lock stands."""
    roots = [tables.root, os.path.dirname(tables.checkpoint("reconcile"))]
    return next((found for found in map(local_path, filter(None, roots)) if found is not None), None)


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"


def _lock(descriptor: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        # Whoever only looks (`lock_is_held`) is gone in a moment; another reconcile stays.
        if not (_locked(descriptor) or _locked(descriptor, after_s=0.05)):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FencedError(
            f"{_owner(descriptor)} works on these tables already",
            folder,
            "let it work, or stop it and run again: one is enough",
        ) from error
    except OSError as error:
        raise StorageError(f"the tables' folder cannot be locked: {error.strerror}", folder) from error


def _locked(descriptor: int, after_s: float = 0) -> bool:
    import fcntl

    time.sleep(after_s)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
