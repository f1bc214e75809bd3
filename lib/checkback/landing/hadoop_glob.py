"""Hadoop's globs on this machine: ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b/c}``, a backslash before what means itself.

Hadoop's own search ends with an error at a name with a colon, and at a folder that it may not read.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A part of a glob: an escaped character, a set, or one character.
_PART = re.compile(r"\\(?P<escaped>.)|\[(?P<set>[!^]?(?:\\.|[^\]\\])+)\]|(?P<char>.)", re.DOTALL)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_SPECIAL = re.compile(r"[*?\[]")


def matching(pattern: str, unreadable: Callable[[str, OSError], object]) -> list[str]:
    """Absolute paths that match an absolute glob, each once; ``unreadable`` is told of a folder that cannot be listed.

    Raises SettingsError when it is no glob.
    """
    found: dict[str, None] = {}
    for each in _without_braces(pattern):
        paths = ["/"]
        for part in filter(None, each.split("/")):
            matches = re.compile(_regex(part, pattern), re.DOTALL).fullmatch
            # Nothing to look for: the folder above need not be readable.
            named = None if _SPECIAL.search(_ESCAPED.sub("", part)) else _ESCAPED.sub(r"\1", part)
            paths = [
                os.path.join(path, name)
                for path in paths
                for name in (sorted(filter(matches, _names(path, unreadable))) if named is None else [named])
            ]
        found |= dict.fromkeys(filter(os.path.lexists, paths))
    return list(found)


def _names(path: str, unreadable: Callable[[str, OSError], object]) -> list[str]:
    try:
        return os.listdir(path)
    except OSError as error:
        unreadable(path, error)
        return []


def _without_braces(pattern: str) -> Iterator[str]:
    """The globs that one with ``{a,b}`` stands for."""
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
    regex = ""
    for found in _PART.finditer(part):
        char, chars = found["char"], found["set"]
        if char == "[":
            raise SettingsError("the glob has a [ without ]", where=pattern, fix=r"close it, or write \[ for itself")
        if chars:
            negated = chars[0] in "!^" and len(chars) > 1
            inner = re.sub(r"([^\w-])", r"\\\1", re.sub(r"\\(.)", r"\1", chars[negated:]))
            regex += f"[{'^' * negated}{inner}]"
        elif char in ("*", "?"):
            regex += ".*" if char == "*" else "."
        else:
            regex += re.escape(found["escaped"] or char)
    return regex
