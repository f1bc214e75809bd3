"""Opens a file to be landed, and validates it by its descriptor.

Anyone with write access to the folder may replace the file between two lookups by name (TOCTOU).
"""

from __future__ import annotations

import errno
import os
import stat

#: Larger files (bytes) are refused, and sparse ones over HOLES_MAX: they cost little disk but much time to read.
SIZE_MAX = 1 << 40
HOLES_MAX = 256 << 20
#: Errors of a single file; any other is a failure of the system.
_ITS_OWN = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR})


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
        if error.errno not in _ITS_OWN:
            raise
        raise UnfitFileError(f"cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    try:
        _judge(descriptor, path, inside)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


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
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        return os.path.realpath(path)


def _has_hole(descriptor: int, size: int) -> bool:
    try:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return False  # a file system without SEEK_HOLE
    os.lseek(descriptor, 0, os.SEEK_SET)
    return hole < size
