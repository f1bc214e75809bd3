"""A file opened to be landed, and judged by what was opened.

Whoever may write in the folder may make another file of a name, between any two looks at it.
"""

from __future__ import annotations

import errno
import os
import stat

#: A file over so many bytes is given up, and one that has a hole, over as many as HOLES_MAX: neither costs whoever made
#: it the disk that reading it costs in time.
SIZE_MAX = 1 << 40
HOLES_MAX = 256 << 20
#: What the system says of one file; all else is trouble of the system's own.
_ITS_OWN = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ENOTDIR})


class UnfitFileError(Exception):
    """A file is not to be read. Says why."""


def opened(path: str, inside: str | None) -> int:
    """A descriptor to read the file with; ``inside``: the real path of the folder, or file, that is landed (None: any).

    Raises UnfitFileError when it is no file to land, OSError when that is no fault of the file's, so that it is read
    later.
    """
    try:
        # A pipe would be waited for, be it one that has just taken a file's place.
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
    """Is a real path that of ``inside``, or below it?"""
    return real == inside or real.startswith(inside.rstrip("/") + "/")


def _real_path(descriptor: int, path: str) -> str:
    """Where the opened file lies; by its name where the system does not tell (it is no Linux)."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").removesuffix(" (deleted)")
    except OSError:
        return os.path.realpath(path)


def _has_hole(descriptor: int, size: int) -> bool:
    try:
        hole = os.lseek(descriptor, 0, os.SEEK_HOLE)
    except OSError:
        return False  # a file system that knows no holes
    os.lseek(descriptor, 0, os.SEEK_SET)
    return hole < size
