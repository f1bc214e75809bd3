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

from checkback.errors import SettingsError

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

    ``secrets``: by name; ``where``: the setting, with ``{}`` for the name; ``check`` raises SettingsError if a secret's
    text is none, and is given where it is stated; ``make``: of the texts by name, each with a value at least. Raises
    SettingsError for a file that cannot be read or is empty. Later on such a file is logged, without its content, and
    tried again each second: meanwhile what that secret was stays in use, and the others are renewed.
    """

    def __init__(
        self,
        secrets: Mapping[str, str],
        where: str,
        make: Callable[[Texts], T],
        check: Callable[[str, str], object] = lambda *_: None,
    ) -> None:
        self._where, self._make, self._check = where, make, check
        self._files = {name: _path(text) for name, text in secrets.items() if text.startswith(FILE_REFERENCE)}
        self._asked = _asked
        self._seen: dict[str, tuple[int, ...] | None] = {name: _state(path) for name, path in self._files.items()}
        self._texts = {name: self._read(name, text) for name, text in secrets.items()}
        self._told: dict[str, str] = {}
        self._current = make(self._texts)
        self._due = time.monotonic() + _EACH_S

    @property
    def current(self) -> T:
        """What is made of the secrets as they are."""
        if self._files and (time.monotonic() >= self._due or self._asked != _asked):
            self._renew()
        return self._current

    def _renew(self) -> None:
        # Without a lock, which a fork may leave taken: threads that come at once read the same.
        self._due, asked, self._asked = time.monotonic() + _EACH_S, self._asked, _asked
        texts = dict(self._texts)
        for name, path in self._files.items():
            state = _state(path)
            if asked == _asked and state == self._seen[name]:
                continue
            try:
                texts[name] = self._read(name, f"{FILE_REFERENCE}{path}")
            except SettingsError as error:
                self._seen[name] = None  # it is tried again, whatever its state
                if self._told.get(name) != str(error):
                    _log.warning("a secret was not read again, the one before stays in use: %s", error)
                self._told[name] = str(error)
            else:
                self._seen[name] = state
                self._told.pop(name, None)
        changed = [self._where.format(name) for name, text in texts.items() if text != self._texts[name]]
        if changed:
            self._texts, self._current = texts, self._make(texts)
            _log.info("read again: %s", ", ".join(changed))

    def _read(self, name: str, text: str) -> str:
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
        self._check(text, where)
        return text


def _path(reference: str) -> str:
    """The path of ``file:PATH``, also of ``file:///PATH``."""
    path = reference[len(FILE_REFERENCE) :]
    return path[2:] if path.startswith("///") else path


def _state(path: str) -> tuple[int, ...]:
    """What tells that a file has changed, its permissions included; empty: it is not there."""
    try:
        stat = os.stat(path)
    except OSError:
        return ()
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_size
