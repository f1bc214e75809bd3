"""Lists the files to land, and hands the listing to Spark's file source as the log of a file sink.

Spark's own listing follows every link (two to their own folder are 2^40 paths), fails at an unreadable folder, and
skips names that the JVM cannot decode. For a folder with a file sink's log (``_spark_metadata``) it reads the log
instead of listing: ours has one file, rewritten when the set of files changes.
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
from checkback.landing.opening import is_inside, own_fault

_log = logging.getLogger("checkback.land")
HIDDEN = ("_", ".")
#: A path whose URI is longer (characters) is skipped: Spark keeps the URI of every file that it has read.
URI_MAX = 1000
#: Suffix of Hadoop's shell for incomplete copies.
_UNFINISHED = "._COPYING_"
#: Times beyond it (ms) overflow in Java, but some file systems store them.
_LATEST = 1 << 53
_GONE = frozenset({errno.ENOENT, errno.ENOTDIR})
#: Most warnings logged for one listing.
_WARNINGS = 20


class Listed(NamedTuple):
    """A file: its time in ms, as passed to Spark, and its size in bytes.

    The oldest are read first, a thousand per batch. The time is the ctime, which cannot be set: a steady flow of files
    with an old mtime would starve all others.
    """

    path: str
    time: int
    size: int


class Listing(NamedTuple):
    """The files of a listing, and the skipped paths, each with the reason."""

    files: list[Listed]
    passed: dict[str, str]


Roots = Callable[[Callable[[str, OSError], object]], Iterable[str]]


def list_files(roots: Roots, inside: str, encoding: str) -> Listing:
    """The regular files at the roots and below them, each folder once, regardless of links to it.

    ``roots``: returns their paths; calls its argument for each folder that it cannot read.

    Skips files and subfolders whose names begin with ``_`` or ``.``, folders outside of ``inside`` (a real path), and
    paths that cannot be encoded in ``encoding``, the JVM's.
    Raises OSError if the system cannot list.
    """
    found = Listing([], {})
    paths = roots(lambda path, error: _pass_over(path, error, found))
    folders = [root for root in paths if not _take(root, found, encoding)]
    # Links last: a folder is listed by its own path, if that is below a root.
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
    """A file's time (ns) in ms, within Java's range."""
    return max(-_LATEST, min(_LATEST, time // 1_000_000))


def _take(path: str, found: Listing, encoding: str) -> bool:
    """Add the path if it is a file to land; False: it is a folder."""
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
    # A URI is no shorter than its path: no need to build an oversized one.
    if len(path) <= URI_MAX and len(uri_of(path)) <= URI_MAX:
        return False
    found.passed[path] = f"its path, as a URI, has over {URI_MAX} characters; give it a shorter one"
    return True


def _is_hidden(name: str) -> bool:
    return name.startswith(HIDDEN) or name.endswith(_UNFINISHED)


def _pass_over(path: str, error: OSError, found: Listing) -> None:
    why = own_fault(error)
    if error.errno not in _GONE:
        found.passed[path] = why


def _has_form(path: str, encoding: str) -> bool:
    """Does the JVM encode the path to the same bytes as Python?"""
    try:
        return path.isascii() or path.encode(encoding) == os.fsencode(path)
    except UnicodeEncodeError:
        return False


def uri_of(path: str) -> str:
    """The URI of a local path in Hadoop, and so in the checkpoint (java.net.URI's quoting)."""
    return "file://" + path.translate(_QUOTED)


def _quoted(char: str) -> str:
    if char >= "\x80" and unicodedata.category(char) not in ("Cc", "Zs", "Zl", "Zp"):
        return char
    return quote(char, safe="/-_.!~*'():@&=+$,;")


#: Covers the characters up to the last quoted one, U+3000.
_QUOTED = {code: quoted for code in range(0x3001) if (quoted := _quoted(chr(code))) != chr(code)}


class SparkListing:
    """A folder whose file sink log makes Spark's file source list files in other places.

    ``roots``: see `list_files`. ``inside``: the real path that contains them. ``encoding``: the JVM's, of names.
    """

    def __init__(self, folder: str, roots: Roots, inside: Callable[[], str], encoding: str, where: str) -> None:
        self.folder = folder
        self._roots, self._inside, self._encoding, self._where = roots, inside, encoding, where
        self._log = os.path.join(folder, "_spark_metadata", "0")
        #: with the log entry of each
        self._files: dict[Listed, str] | None = None
        self._told: set[str] = set()
        os.makedirs(os.path.dirname(self._log), exist_ok=True)

    def refresh(self) -> None:
        """Refresh the listing. Warns once of each skipped path; raises CheckbackError if the system cannot list."""
        try:
            files, passed = list_files(self._roots, self._inside(), self._encoding)
        except OSError as error:
            what = f"cannot be listed: {error.strerror}"
            raise CheckbackError(what, where=self._where, fix="repair that and run again") from error
        self._warn(passed)
        known = self._files or {}
        found = {file: known.get(file) or _entry(file) for file in files}
        if self._files is None or found.keys() != known.keys():
            self._write(found.values())
            self._files = found

    def _write(self, entries: Iterable[str]) -> None:
        """In the format of Spark's FileStreamSinkLog; replaced atomically, since Spark may be reading it."""
        new = os.path.join(self.folder, "new")
        with open(new, "w", encoding="utf-8") as log:
            log.write("\n".join(["v1", *entries]))
        os.replace(new, self._log)

    def _warn(self, passed: dict[str, str]) -> None:
        new = [path for path in passed if path not in self._told]
        for path in new[:_WARNINGS]:
            _log.warning("%s: skipped: %s", printable(path), passed[path])
        if len(new) > _WARNINGS:
            _log.warning("%s: %d more are skipped", self._where, len(new) - _WARNINGS)
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
