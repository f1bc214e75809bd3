"""The folder of a demonstration."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from checkback.errors import SettingsError

_MARK = ".checkback-demo"


def command() -> str:
    """`checkback` as it can be typed here: after `make run` it is in .venv/bin, and not on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "checkback")
    return "checkback" if shutil.which("checkback") == beside else os.path.relpath(beside)


def make_anew(root: Path) -> None:
    """An empty folder. Raises SettingsError if it is a file, or has content that no demonstration created."""
    if root.is_file():
        raise SettingsError("is a file", where=str(root), fix="give another --root")
    mark = root / _MARK
    if root.exists() and any(root.iterdir()) and not mark.exists():
        raise SettingsError("the folder is not empty", where=str(root), fix="give another --root")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    mark.touch()
