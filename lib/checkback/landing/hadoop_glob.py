"""Hadoop's globs for local paths: ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b/c}``, and a backslash to escape.

Hadoop's own globbing fails at a name with a colon, and at an unreadable folder.
"""

from __future__ import annotations

import fnmatch
import os
import re
import stat
from typing import TYPE_CHECKING, NamedTuple

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A part of a glob: an escaped character, a set, or one character.
_PART = re.compile(r"\\(?P<escaped>.)|\[(?P<set>[!^]?(?:\\.|[^\]\\])+)\]|(?P<char>.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[]")


def matching(pattern: str, unreadable: Callable[[str, OSError], object]) -> list[str]:
    """Absolute paths that match an absolute glob, each once; ``unreadable`` is called for unreadable folders.

    A folder reached by several paths of one level is listed by only one of them, that with the fewest links.
    Raises SettingsError if the glob is malformed.
    """
    found: dict[str, None] = {}
    for each in _without_braces(pattern):
        paths = [_Path("/", 0)]
        for part in filter(None, each.split("/")):
            matches = re.compile(_regex(part, pattern)).fullmatch
            # A literal name: its parent folder need not be readable.
            named = None if _SPECIAL.search(_ESCAPED.sub("", part)) else _ESCAPED.sub(r"\1", part)
            paths = [
                inside
                for folder in _folders(paths, unreadable)
                for inside in ([folder.to(named)] if named is not None else _entries(folder, matches, unreadable))
            ]
        found |= dict.fromkeys(path.path for path in paths if os.path.lexists(path.path))
    return list(found)


class _Path(NamedTuple):
    """``links``: how many of its parts matched by a pattern are symbolic links."""

    path: str
    links: int

    def to(self, name: str) -> _Path:
        return _Path(os.path.join(self.path, name), self.links)


def _folders(paths: list[_Path], unreadable: Callable[[str, OSError], object]) -> list[_Path]:
    """The folders among the paths, each once."""
    found: dict[tuple[int, int], _Path] = {}
    for path in sorted(paths, key=lambda path: path.links):
        try:
            status = os.stat(path.path)
        except OSError as error:
            unreadable(path.path, error)
            continue
        if stat.S_ISDIR(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), path)
    return list(found.values())


def _entries(
    folder: _Path, matches: Callable[[str], object], unreadable: Callable[[str, OSError], object]
) -> list[_Path]:
    try:
        with os.scandir(folder.path) as entries:
            found = [_Path(entry.path, folder.links + entry.is_symlink()) for entry in entries if matches(entry.name)]
    except OSError as error:
        unreadable(folder.path, error)
        return []
    return sorted(found)


def _without_braces(pattern: str) -> Iterator[str]:
    """The globs to which one with ``{a,b}`` expands."""
    depth, start, before = 0, 0, ""
    parts: list[str] = []
    for found in _PART.finditer(pattern):
        char, at = found["char"], found.start()
        if char == "{":
            depth += 1
            if depth == 1:
                before, start, parts = pattern[:at], at + 1, []
        elif depth == 1 and char in (",", "}"):
            parts.append(pattern[start:at])
            start = at + 1
        if char == "}" and depth:
            depth -= 1
            if not depth:
                for part in parts:
                    yield from _without_braces(before + part + pattern[at + 1 :])
                return
    if depth:
        raise SettingsError("the glob has a { without }", where=pattern, fix=r"close it, or write \{ for itself")
    yield pattern


def _regex(part: str, pattern: str) -> str:
    glob = ""
    for found in _PART.finditer(part):
        char, chars = found["char"], found["set"]
        if char == "[":
            raise SettingsError("the glob has a [ without ]", where=pattern, fix=r"close it, or write \[ for itself")
        if chars:
            negated = chars[0] in "!^" and len(chars) > 1
            inner = _ESCAPED.sub(r"\1", chars[negated:])
            # To fnmatch a ] that comes first is itself, and a ! that does not.
            inner = "]" * ("]" in inner) + inner.replace("]", "")
            if not negated and inner.startswith("!"):
                inner = f"{inner.lstrip('!')}!"
            glob += "!" if inner == "!" and not negated else f"[{'!' * negated}{inner}]"
        else:
            glob += char or (f"[{found['escaped']}]" if found["escaped"] in "*?[" else found["escaped"])
    return fnmatch.translate(glob)
