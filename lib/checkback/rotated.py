"""Secrets that are rotated without a restart: two values at a time, read again when their files have changed.

A secret is a text, or ``file:PATH``; values are apart by spaces or lines. The first is the one that is sent, all are
accepted (docs/runbook.md, Rotation).
"""

from __future__ import annotations

import logging
import os
import re
import time
from typing import TYPE_CHECKING, Generic, TypeVar

from checkback.errors import CheckbackError, SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    #: by name the secrets, each a text of one value or several
    Texts = Mapping[str, str]

T = TypeVar("T")
FILE_REFERENCE = "file:"
#: seconds after which the files are looked at again
_EACH_S = 1.0
#: bytes of a file that are read
_MOST = 64 << 10
# RFC 6750's b64token, as after "Bearer" in a header.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]{16,512}=*")
_asked = 0
_log = logging.getLogger("checkback.secrets")


def read_again() -> None:
    """Read all files again at the next use, also if they seem to be the same."""
    global _asked  # noqa: PLW0603 - a signal's handler has nothing else
    _asked += 1


def is_token(text: str) -> bool:
    """Is it a bearer token?"""
    return _TOKEN.fullmatch(text) is not None


class Rotated(Generic[T]):
    """What is made of some secrets, made anew when a file of theirs has changed. Thread-safe.

    ``secrets``: by name; ``where``: the setting, with ``{}`` for the name; ``make``: of the secrets' texts, which
    have at least one value each. Raises SettingsError if a file cannot be read or has none, and what ``make`` raises.
    Later on, such a file is logged once, without its content, and what was made before stays in use.
    """

    def __init__(self, secrets: Mapping[str, str], where: str, make: Callable[[Texts], T]) -> None:
        self._secrets, self._where, self._make = dict(secrets), where, make
        self._files = {name: _path(text) for name, text in secrets.items() if text.startswith(FILE_REFERENCE)}
        self._seen = self._look()
        self._current = self._read()
        self._due = time.monotonic() + _EACH_S

    @property
    def current(self) -> T:
        """What is made of the secrets as they are."""
        if self._files and (time.monotonic() >= self._due or self._seen[0] != _asked):
            self._renew()
        return self._current

    def _renew(self) -> None:
        # Without a lock, which a fork may leave taken: threads that come at once read the same.
        self._due = time.monotonic() + _EACH_S
        seen, before = self._look(), self._seen
        self._seen = seen
        if seen == before:
            return
        try:
            self._current = self._read()
            _log.info("secrets were read again: %s", self._where)
        except CheckbackError as error:
            _log.warning("a secret was not read again, the one before stays in use: %s", error)

    def _look(self) -> tuple[int, dict[str, tuple[int, int, int] | None]]:
        """What tells that a file has changed."""
        return _asked, {name: _state(path) for name, path in self._files.items()}

    def _read(self) -> T:
        return self._make({name: self._text(name, text) for name, text in self._secrets.items()})

    def _text(self, name: str, text: str) -> str:
        where = self._where.format(name)
        if name in self._files:
            try:
                with open(self._files[name], encoding="utf-8") as file:
                    text = file.read(_MOST)
            except (OSError, UnicodeDecodeError) as error:
                what = getattr(error, "strerror", None) or "not UTF-8 text"
                raise SettingsError(f"its file cannot be read: {what}", where, "check the path after file:") from None
        if not text.split():
            raise SettingsError("is empty", where, "give the secret, or two of them apart by a space")
        return text


def _path(reference: str) -> str:
    """The path of ``file:PATH``, also of ``file:///PATH``."""
    path = reference[len(FILE_REFERENCE) :]
    return path[2:] if path.startswith("///") else path


def _state(path: str) -> tuple[int, int, int] | None:
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size
