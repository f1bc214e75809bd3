"""The folder of a demonstration."""

from __future__ import annotations

import shutil
from pathlib import Path

from checkback.errors import SettingsError

_MARK = ".checkback-demo"


def make_anew(root: Path) -> None:
    """An empty folder. Raises SettingsError if it has content that no demonstration created."""
    mark = root / _MARK
    if root.exists() and any(root.iterdir()) and not mark.exists():
        raise SettingsError("the folder is not empty", where=str(root), fix="give another --root")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    mark.touch()
