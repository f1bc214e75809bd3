"""Opens a file to be landed, and validates it by its descriptor.

Anyone with write access to the folder may replace the file between two lookups by name (TOCTOU).
"""

from __future__ import annotations

import errno
import os
import stat

from checkback.errors import MACHINE

#: Larger files (bytes) are refused, and sparse ones over HOLES_MAX: they cost little disk but much time to read.
SIZE_MAX = 1 << 40
HOLES_MAX = 256 << 20
#: Failures of the system, which pass. Any other is the file's or folder's own: what there is depends on the file system
#: and on what others do with the file, such as EAGAIN for one with a write lease (fcntl, F_SETLEASE).
_OF_SYSTEM = MACHINE | {
    *(errno.EINTR, errno.ENODEV, errno.ENOBUFS, errno.ESTALE, errno.EREMOTEIO, errno.ETIMEDOUT, errno.ENOTCONN),
    *(errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ESHUTDOWN),
    *(errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETRESET, errno.ENETUNREACH),
}


class UnfitFileError(Exception):
    """A file must not be read; the message says why."""


def opened(path: str, inside: str | None) -> int:
    """A descriptor to read the file with; ``inside``: the real path of the landed folder or file (None: any).

    Raises UnfitFileError if it is not a file to land, OSError if the cause is not the file, for a later retry.
    """
    try:
        # O_NONBLOCK: opening a FIFO, even one that has just replaced a file, would block.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UnfitFileError(own_fault(error)) from error
    try:
        _judge(descriptor, path, inside)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def own_fault(error: OSError) -> str:
    """Why a file or folder cannot be read. Raises the error itself if it is a failure of the system."""
    if error.errno is None or error.errno in _OF_SYSTEM:
        raise error
    return f"cannot be read: {os.strerror(error.errno).lower()}"


def _judge(descriptor: int, path: str, inside: str | None) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise UnfitFileError("is no regular file")
    if inside is not None and not is_inside(_real_path(descriptor, path), inside):
        raise UnfitFileError("is a link that leads out of the folder that is landed; put the file itself there")
    if found.st_size > SIZE_MAX:
        raise UnfitFileError(f"is over {SIZE_MAX >> 40} TiB; give it in parts")
    if found.st_size > HOLES_MAX and _has_hole(descriptor, found.st_size):
        raise UnfitFileError(f"is over {HOLES_MAX >> 20} MiB and has holes, which were never written; copy it without")


def is_inside(real: str, inside: str) -> bool:
    """Is a real path equal to ``inside``, or below it?"""
    return real == inside or real.startswith(inside.rstrip("/") + "/")


def _real_path(descriptor: int, path: str) -> str:
    """The path of the opened file; resolved by name if the system is not Linux."""
    try:
        found = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return os.path.realpath(path)
    try:
        named_so = os.path.samestat(os.stat(found), os.fstat(descriptor))
    except OSError:
        named_so = False
    return found if named_so else found.removesuffix(" (deleted)")  # as Linux says of a name that is gone


def _has_hole(descriptor: int, size: int) -> bool:
    try:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return False  # a file system without SEEK_HOLE
    os.lseek(descriptor, 0, os.SEEK_SET)
    return hole < size
