"""How an example starts: its folder, its errors in one line, and the command that it tells people to type."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from typer import Typer

from checkback.errors import CheckbackError, SettingsError, printable

_MARK = ".checkback-demo"


def launch(main: Callable[..., None]) -> None:
    """Run ``main`` with the process's arguments, as a Typer command; ends the process."""
    app = Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except CheckbackError as error:
        print(f"checkback: {printable(str(error))}", file=sys.stderr)
        sys.exit(error.exit_code)


def command() -> str:
    """`checkback` as it can be typed here: after `make run` it is in .venv/bin, and not on PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "checkback")
    return "checkback" if shutil.which("checkback") == beside else os.path.relpath(beside)


def make_anew(root: Path) -> None:
    """An empty folder. Raises SettingsError if it is a file, or has content that no example created."""
    if root.is_file():
        raise SettingsError("is a file", where=str(root), fix="give another --root")
    mark = root / _MARK
    if root.exists() and any(root.iterdir()) and not mark.exists():
        raise SettingsError("the folder is not empty", where=str(root), fix="give another --root")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    mark.touch()
