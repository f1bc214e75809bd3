"""Which files there are to land, listed here and handed to Spark's file source as the log of a file sink.

Spark's own listing follows every link (two to their own folder are 2^40 paths), ends at a folder that it may not read,
and passes over names that the JVM cannot decode. Of a folder with a file sink's log (``_spark_metadata``) it takes what
the log says, and lists nothing: ours has one file, written anew when the files are others.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import unicodedata
from collections.abc import Callable, Iterable
from typing import NamedTuple
from urllib.parse import quote

from checkback.errors import CheckbackError, printable
from checkback.landing.opening import is_inside

_log = logging.getLogger("checkback.land")
HIDDEN = ("_", ".")
#: A path, as a URI, of more characters is passed over: Spark keeps that of each file that it has ever read.
URI_MAX = 1000
#: What Hadoop's shell has not copied to its end.
_UNFINISHED = "._COPYING_"
#: Times beyond it (ms) are none that Java could count with, but some file systems keep them.
_LATEST = 1 << 53
#: What the system says of one folder or name; all else is trouble of the system's own.
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
_ITS_OWN = frozenset({errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG}) | _GONE
#: Things of one listing that are told of in the log.
_WARNINGS = 20


class Listed(NamedTuple):
    """A file: its time in ms, as Spark is told of it, and its size in bytes.

    The oldest are read first, a thousand a batch. The time is that of the status, which nobody can set: files that were
    given an old time of change would be read before all others, as long as there come more of them.
    """

    path: str
    time: int
    size: int


class Listing(NamedTuple):
    """The files of a listing, and the paths that it passed over, each with why."""

    files: list[Listed]
    passed: dict[str, str]


Roots = Callable[[Callable[[str, OSError], object]], Iterable[str]]


def list_files(roots: Roots, inside: str, encoding: str) -> Listing:
    """The regular files at the roots and below them, each folder once, whatever links lead to it.

    ``roots``: gives their paths; tells its argument of folders that it cannot read on the way.

    Files and subfolders whose names begin with ``_`` or ``.`` are left out; so are folders outside of ``inside`` (a
    real path), and paths that have no form in ``encoding``, the JVM's.
    Raises OSError when the system cannot list.
    """
    found = Listing([], {})
    paths = roots(lambda path, error: _pass_over(path, error, found))
    folders = [root for root in paths if not _take(root, found, encoding)]
    # Links last: a folder goes by its own path, if it has one here.
    links: list[str] = []
    seen: set[tuple[int, int]] = set()
    while folders or links:
        path = folders.pop() if folders else links.pop(0)
        if _is_too_long(path, found):
            continue
        try:
            status = os.stat(path)
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            if not is_inside(os.path.realpath(path), inside):
                found.passed[path] = "a link that leads out of the folder that is landed"
                continue
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError as error:
            _pass_over(path, error, found)
            continue
        for entry in entries:
            if not _is_hidden(entry.name) and not _take(entry.path, found, encoding):
                (links if entry.is_symlink() else folders).append(entry.path)
    return found


def in_ms(time: int) -> int:
    """A file's time (ns) in ms, within Java's."""
    return max(-_LATEST, min(_LATEST, time // 1_000_000))


def _take(path: str, found: Listing, encoding: str) -> bool:
    """Take the file, if it is one; False: it is a folder."""
    try:
        status = os.stat(path)
    except OSError as error:
        _pass_over(path, error, found)
        return True
    if stat.S_ISDIR(status.st_mode):
        return False
    if stat.S_ISREG(status.st_mode) and not _is_hidden(os.path.basename(path)) and not _is_too_long(path, found):
        if _has_form(path, encoding):
            found.files.append(Listed(path, in_ms(status.st_ctime_ns), status.st_size))
        else:
            found.passed[path] = f"its name is not {encoding}, by which Java reads names; rename it"
    return True


def _is_too_long(path: str, found: Listing) -> bool:
    # A URI is no shorter than its path, and of one that is far too long nobody wants to know by how much.
    if len(path) <= URI_MAX and len(uri_of(path)) <= URI_MAX:
        return False
    found.passed[path] = f"its path, as a URI, has over {URI_MAX} characters; give it a shorter one"
    return True


def _is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN) or name.endswith(_UNFINISHED)


def _pass_over(path: str, error: OSError, found: Listing) -> None:
    if error.errno not in _ITS_OWN:
        raise error
    if error.errno not in _GONE:
        found.passed[path] = f"cannot be read: {os.strerror(error.errno or 0).lower()}"


def _has_form(path: str, encoding: str) -> bool:
    """Do the bytes of the path mean the same to the JVM as to Python?"""
    try:
        return path.isascii() or path.encode(encoding) == os.fsencode(path)
    except UnicodeEncodeError:
        return False


def uri_of(path: str) -> str:
    """The URI by which Hadoop, and so the checkpoint, knows a path of this machine (java.net.URI's quoting)."""
    return "file://" + path.translate(_QUOTED)


def _quoted(char: str) -> str:
    if char >= "\x80" and unicodedata.category(char) not in ("Cc", "Zs", "Zl", "Zp"):
        return char
    return quote(char, safe="/-_.!~*'():@&=+$,;")


#: Of the characters up to the last one that is quoted, U+3000.
_QUOTED = {code: quoted for code in range(0x3001) if (quoted := _quoted(chr(code))) != chr(code)}


class SparkListing:
    """A folder whose listing, for Spark's file source, is that of other places.

    ``roots``: see `list_files`. ``inside``: the real path that they lie in. ``encoding``: of names, in the JVM.
    """

    def __init__(self, folder: str, roots: Roots, inside: Callable[[], str], encoding: str, where: str) -> None:
        self.folder = folder
        self._roots, self._inside, self._encoding, self._where = roots, inside, encoding, where
        self._log = os.path.join(folder, "_spark_metadata", "0")
        #: with the line of each
        self._files: dict[Listed, str] | None = None
        self._told: set[str] = set()
        os.makedirs(os.path.dirname(self._log), exist_ok=True)

    def refresh(self) -> None:
        """List anew. Warns, once, of what is passed over; raises CheckbackError when the system cannot list."""
        try:
            files, passed = list_files(self._roots, self._inside(), self._encoding)
        except OSError as error:
            what = f"cannot be listed: {error.strerror}"
            raise CheckbackError(what, where=self._where, fix="mend that and run again") from error
        self._warn(passed)
        known = self._files or {}
        found = {file: known.get(file) or _entry(file) for file in files}
        if self._files is None or found.keys() != known.keys():
            self._write(found.values())
            self._files = found

    def _write(self, entries: Iterable[str]) -> None:
        """In the form of Spark's FileStreamSinkLog; at once, since Spark may be reading it."""
        new = os.path.join(self.folder, "new")
        with open(new, "w", encoding="utf-8") as log:
            log.write("\n".join(["v1", *entries]))
        os.replace(new, self._log)

    def _warn(self, passed: dict[str, str]) -> None:
        new = [path for path in passed if path not in self._told]
        for path in new[:_WARNINGS]:
            _log.warning("%s: passed over: %s", printable(path), passed[path])
        if len(new) > _WARNINGS:
            _log.warning("%s: %d more are passed over", self._where, len(new) - _WARNINGS)
        self._told = set(passed)


def _entry(file: Listed) -> str:
    entry = {
        "path": uri_of(file.path),
        "size": file.size,
        "isDir": False,
        "modificationTime": file.time,
        "blockReplication": 1,
        "blockSize": 1 << 25,
        "action": "add",
    }
    return json.dumps(entry, ensure_ascii=False)
