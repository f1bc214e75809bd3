"""Programs of Debian's packages that the machine does not have, unpacked into a folder; nothing is installed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


def unpacked(folder: Path, *packages: str) -> Path:
    """The folder with what these packages have. Skips the test if they cannot be had."""
    script = f"apt-get download {' '.join(packages)} || {{ apt-get update && apt-get download {' '.join(packages)}; }}"
    command = ["sh", "-c", f'{{ {script}; }} && for one in *.deb; do dpkg-deb -x "$one" .; done']
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        pytest.skip(f"Debian's packages {', '.join(packages)} cannot be had: {done.stderr[-200:]}")
    return folder
