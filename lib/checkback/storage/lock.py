"""Mutual exclusion between processes on the same tables: a lock that the OS releases when its process dies, or a lease.

Spark's own fencing, the offset log, only detects two queries writing the same entry of the same checkpoint: it misses
a replayed batch, and a second checkpoint on the same tables.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from checkback.errors import FencedError, StorageError
from checkback.storage.files.lease import Lease, holder_of, new_holder, shown
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.storage.tables import Tables

#: in the tables' folder; Delta and Spark ignore names that begin with an underscore
FILE = "_reconcile.lock"
_OF_TABLES = "on these tables", "let it work, or stop it and run again: one is enough"
_OF_CHECKPOINTS = "with these checkpoints, on other tables", "give these tables a storage.checkpoints of their own"


@dataclass(frozen=True)
class Lock:
    """A held lock. ``path``: its file; None = no lock could be taken. ``lease``: held instead, in an object store."""

    path: str | None = None
    descriptor: int = -1
    lease: Lease | None = None

    def confirm(self) -> None:
        """Check that the lock file was not removed or replaced: another process could then hold a lock, too.

        The same for a lease that ran out. Raises FencedError if it was, StorageError if that cannot be determined.
        """
        if self.lease is not None:
            self.lease.confirm()
        if self.path is not None and not _is_there(self.descriptor, self.path):
            raise FencedError(
                "the lock file was deleted, as when the folder is restored from a backup: "
                "another process may work on these tables",
                self.path,
                "make sure that no process works on them, then start again",
            )


@dataclass(frozen=True)
class HeldElsewhere:
    """Confirms a lock in a process that does not hold it: batches of Spark Connect outlive a client that is killed."""

    place: str  # the lock file, or the lease's URI
    holder: str

    def __call__(self) -> None:
        """Raise FencedError if the holder has lost the lock, StorageError if that cannot be determined."""
        found = _holder(self.place)
        if found is not None and found != self.holder:
            raise FencedError(
                f"{shown(self.holder)}, which started this query, no longer works on these tables",
                self.place,
                "nothing is lost: the next start takes the batch up again",
            )


@contextmanager
def exclusive_lock(tables: Tables, file: str = FILE) -> Iterator[Lock]:
    """Exclude other processes from the same tables, whatever their checkpoint. Released even by kill -9.

    ``file``: processes that lock the same file exclude each other; with FILE also those that work on other tables with
    the same checkpoints, if these are in a local folder.

    It is an advisory file lock (flock), so both processes must see the same file system; in an object store, a lease
    (`lease`), which each commit of ``tables`` confirms. If the tables are in neither, the file is next to the
    checkpoints; if these are not local either, there is no lock and only Spark's and Delta's own fencing remains. The
    file may be removed: long-lived holders call `Lock.confirm`.

    The lease of a process that was killed is waited for (up to 30 s). Raises FencedError if another process holds the
    lock, StorageError if the file cannot be created.
    """
    with _tables_lock(tables, file) as lock:
        apart = _checkpoints_apart(tables) if file == FILE else None
        if apart is None:
            yield lock
            return
        descriptor = None
        with suppress(StorageError):  # a file system without locks is good enough for checkpoints
            descriptor = _opened(os.path.join(apart, file), apart, _OF_CHECKPOINTS)
        try:
            yield lock
        finally:
            if descriptor is not None:
                os.close(descriptor)


@contextmanager
def _tables_lock(tables: Tables, file: str) -> Iterator[Lock]:
    if is_registered(tables.root):
        lease = Lease(f"{tables.root}/{file}")
        lease.start()
        before, tables.guard.confirm = tables.guard.confirm, lease.confirm
        try:
            with _held_elsewhere(tables, lease.place, lease.holder):
                yield Lock(lease=lease)
        finally:
            tables.guard.confirm = before
            lease.release()
        return
    folder = _folder(tables)
    if folder is None:
        yield Lock()
        return
    path = os.path.join(folder, file)
    descriptor = _opened(path, folder)
    try:
        with _held_elsewhere(tables, path, _owner(descriptor)):
            yield Lock(path, descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _held_elsewhere(tables: Tables, place: str, holder: str) -> Iterator[None]:
    before, tables.guard.elsewhere = tables.guard.elsewhere, HeldElsewhere(place, holder)
    try:
        yield
    finally:
        tables.guard.elsewhere = before


def lock_is_held(tables: Tables) -> str | None:
    """The lock's holder, as "process 12 on host"; empty if it is free; None if unknown (the tables are not local).

    The test briefly takes a shared lock, which `exclusive_lock` waits for.
    """
    folder = tables.root if is_registered(tables.root) else _folder(tables)
    found = None if folder is None else _holder(f"{folder}/{FILE}")
    return None if found is None else shown(found)


def refuse_if_locked(tables: Tables) -> None:
    """Raise FencedError if another process holds the lock in a folder: told before Spark is started for nothing.

    No lock is taken. A lease may end while Spark starts, and is left to `exclusive_lock`.
    """
    folder = None if is_registered(tables.root) else _folder(tables)
    holder = None if folder is None else lock_is_held(tables)
    if holder:
        what, fix = _OF_TABLES
        raise FencedError(f"{holder} is already working {what}", str(folder), fix)


def _holder(place: str) -> str | None:
    """Who holds a lock file, or the lease at a URI (`new_holder`); empty: nobody; None: unknown."""
    return holder_of(place) if is_registered(place) else _flock_holder(place)


def _flock_holder(path: str) -> str | None:
    try:
        import fcntl

        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
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


def _opened(path: str, folder: str, held: tuple[str, str] = _OF_TABLES) -> int:
    """Open (or create) and lock the file; returns its descriptor. Raises FencedError, StorageError.

    ``held``: what the holder does, and the fix.
    """
    while True:
        try:
            os.makedirs(folder, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"the lock file cannot be created: {error.strerror}", path) from error
        try:
            _lock(descriptor, folder, *held)
            if _is_there(descriptor, path):  # else it was removed between open and lock
                with suppress(OSError):  # full disk: the content is informational
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, new_holder().encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _is_there(descriptor: int, path: str) -> bool:
    """True if the open file is still the one at this path. Raises StorageError."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
    except OSError as error:
        raise StorageError(f"the lock's file cannot be seen: {error.strerror}", path) from error


def _folder(tables: Tables) -> str | None:
    """The lock file's folder; None if neither tables nor checkpoints are local."""
    roots = [tables.root, os.path.dirname(tables.checkpoint("reconcile"))]
    return next((found for found in map(local_path, filter(None, roots)) if found is not None), None)


def _checkpoints_apart(tables: Tables) -> str | None:
    """The checkpoints' folder, if it is local and not the one of the tables' lock."""
    folder, own = local_path(tables.checkpoint("")), _folder(tables)
    same = folder is not None and own is not None and os.path.realpath(folder) == os.path.realpath(own)
    return None if same else folder


def _owner(descriptor: int) -> str:
    return os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"


def _lock(descriptor: int, folder: str, what: str, fix: str) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        # Retry: `lock_is_held` holds its shared lock for a moment only; another reconcile keeps its lock.
        if not (_locked(descriptor) or _locked(descriptor, after_s=0.05)):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise FencedError(f"{shown(_owner(descriptor))} is already working {what}", folder, fix) from error
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
