"""How the demonstrations name the command, to be typed as it is printed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from checkback.errors import SettingsError
from examples.launch import command, make_anew


@pytest.mark.processes
def test_command_that_is_printed_can_be_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin")
    monkeypatch.chdir(tmp_path)
    assert shutil.which("checkback") is None
    assert subprocess.run([command(), "--version"], capture_output=True, check=False).returncode == 0
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}/usr/bin")
    assert command() == "checkback"


def test_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SettingsError, match="file: is a file; give another --root"):
        make_anew(file)
