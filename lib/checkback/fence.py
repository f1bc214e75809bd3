"""One process works on the tables of a folder at a time: a lock that the system lets go when the process dies.

Spark's own fence, the offset log, speaks up only when two queries write the same entry of the same checkpoint: a
batch that is done again slips through, and another checkpoint on the same tables does, too.
"""

from __future__ import annotations

import os
import socket
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from checkback.errors import FencedError, StorageError
from checkback.session import local_path

if TYPE_CHECKING:
    from collections.abc import Iterator

    from checkback.tables import Tables

#: in the folder of the tables; Delta and Spark pass over names with an underscore
FILE = "_reconcile.lock"


@contextmanager
def only_one(tables: Tables, file: str = FILE) -> Iterator[None]:
    """Inside, no other process gets in for the same tables, whatever its checkpoint. kill -9 lets go of it, too.

    ``file``: those that take the same one keep each other out.

    It is an advisory lock on a file (flock), so both must see one file system. Where the tables do not lie in a local
    folder it stands beside the checkpoints; where these do not, either, there is none: Spark's and Delta's own fences
    remain. Raises FencedError when another process is in, StorageError when the file cannot be made.
    """
    roots = [tables.root, os.path.dirname(tables.checkpoint("reconcile"))]
    folder = next((found for found in map(local_path, filter(None, roots)) if found is not None), None)
    if folder is None:
        yield
        return
    path = os.path.join(folder, file)
    try:
        os.makedirs(folder, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"the lock file cannot be made: {error.strerror}", path) from error
    try:
        _lock(descriptor, folder)
        with suppress(OSError):  # on a full disk: it only tells others who is in
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: str) -> None:
    try:
        import fcntl
    except ImportError:  # not on Windows
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(descriptor, 200, 0).decode(errors="replace") or "another process"
        raise FencedError(
            f"{owner} works on these tables already", folder, "let it work, or stop it and run again: one is enough"
        ) from error
    except OSError as error:
        raise StorageError(f"the tables' folder cannot be locked: {error.strerror}", folder) from error
