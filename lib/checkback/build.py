"""Commit from which this copy of Checkback was built: builds may have the same version."""

from __future__ import annotations

import os
import pkgutil
import re
from functools import lru_cache

#: beside this file in a wheel and in checkback.zip, written by .ci/commit_file.py and .ci/zip.py
FILE = "COMMIT"
_UNKNOWN = "unknown"
_COMMIT = re.compile(r"[0-9a-f]{12}(?=[0-9a-f]*\s*$)")


@lru_cache(1)
def commit() -> str:
    """Its first 12 digits, from the file of the build, or in a checkout from .git; "unknown" if neither has it."""
    try:
        built = pkgutil.get_data("checkback", FILE)  # also from within a ZIP file
    except OSError:
        return checkout_commit(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    return _short((built or b"").decode("ascii", "replace"))


def checkout_commit(root: str) -> str:
    """The commit that is checked out in a folder, or in a worktree; "unknown" if it is none. Needs no git."""
    try:
        git = os.path.join(root, ".git")
        if os.path.isfile(git):  # a worktree's
            git = os.path.join(root, _read(git).removeprefix("gitdir: "))
        head = _read(os.path.join(git, "HEAD"))
        if not head.startswith("ref: "):
            return _short(head)
        name, common = head.removeprefix("ref: "), os.path.join(git, "commondir")
        shared = os.path.join(git, _read(common)) if os.path.exists(common) else git
        for place in (git, shared):
            if os.path.isfile(os.path.join(place, name)):
                return _short(_read(os.path.join(place, name)))
        packed = (line.partition(" ") for line in _read(os.path.join(shared, "packed-refs")).splitlines())
        return next((_short(one) for one, _, ref in packed if ref == name), _UNKNOWN)
    except OSError:
        return _UNKNOWN


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read().strip()


def _short(text: str) -> str:
    found = _COMMIT.match(text)
    return _UNKNOWN if found is None else found[0]
