"""Packages of npm, fetched once."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: npm tries for an hour where the registry cannot be reached
_FETCH_S = 300


class NotFetchedError(Exception):
    """The package is not to be had here; the message says why."""


def node_modules(folder: Path, package: str) -> Path:
    """The folder with the package, as ``name@version``, fetched if it is not there. Raises NotFetchedError."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # processes of tests share the folder
        modules = folder / "node_modules"
        if not (modules / package.rpartition("@")[0] / "package.json").exists():
            _fetch(folder, package)
        return modules


def _fetch(folder: Path, package: str) -> None:
    if not (shutil.which("npm") and shutil.which("node")):
        raise NotFetchedError(f"{package} needs Node.js, and there is none")
    options = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save"]
    command = ["npm", "install", *options, "--prefix", str(folder), package]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_FETCH_S)
    except subprocess.TimeoutExpired as error:
        raise NotFetchedError(f"npm has not fetched {package} in {_FETCH_S} s") from error
    if done.returncode:
        said = (done.stderr.strip() or "npm says nothing").splitlines()[-1]
        raise NotFetchedError(f"npm cannot fetch {package}: {said}")
