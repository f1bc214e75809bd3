"""The commit of a build: in a checkout, a wheel, an sdist, a ZIP file."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from checkback.build import checkout_commit, commit

ROOT = Path(__file__).parents[1]
_HEAD = "0123456789abcdef0123456789abcdef01234567"
_FILES: dict[str, dict[str, str]] = {
    "a branch": {".git/HEAD": "ref: refs/heads/main\n", ".git/refs/heads/main": f"{_HEAD}\n"},
    "a packed branch": {
        ".git/HEAD": "ref: refs/heads/main\n",
        ".git/packed-refs": f"# pack-refs\n{_HEAD[::-1]} refs/heads/other\n{_HEAD} refs/heads/main\n",
    },
    "no branch": {".git/HEAD": f"{_HEAD}\n"},
    "a worktree": {
        ".git": "gitdir: all/worktrees/one\n",
        "all/worktrees/one/HEAD": "ref: refs/heads/main\n",
        "all/worktrees/one/commondir": "../..\n",
        "all/refs/heads/main": f"{_HEAD}\n",
    },
}


def _written(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return str(folder)


def _said_by(archive: Path) -> str:
    """The commit that the package in a ZIP file or wheel says."""
    code = f"import sys; sys.path.insert(0, {str(archive)!r}); from checkback.build import commit; print(commit())"
    command = [sys.executable, "-I", "-S", "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=archive.parent).stdout.strip()


def _names(archive: Path) -> set[str]:
    with zipfile.ZipFile(archive) as opened:
        return {name.partition("/")[2] for name in opened.namelist()}


@pytest.mark.parametrize("files", _FILES.values(), ids=_FILES.keys())
def test_checkout_is_read_without_git(files: dict[str, str], tmp_path: Path) -> None:
    assert checkout_commit(_written(tmp_path, files)) == _HEAD[:12]


@pytest.mark.parametrize(
    "files", [{}, {".git/HEAD": "ref: refs/heads/main\n"}, {".git/HEAD": "?"}, {".git": "gitdir: nowhere"}]
)
def test_what_does_not_tell_is_unknown(files: dict[str, str], tmp_path: Path) -> None:
    assert checkout_commit(_written(tmp_path, files)) == "unknown"


@pytest.mark.processes
def test_zip_knows_its_commit(tmp_path: Path) -> None:
    archive = tmp_path / "checkback.zip"
    command = [sys.executable, str(ROOT / ".ci/zip.py"), str(ROOT / "lib/checkback"), str(archive)]
    subprocess.run(command, check=True, capture_output=True)
    assert _said_by(archive) == commit()
    assert {"LICENSE", "conf/base.yml", "conf/prometheus/alarms.yml"} <= _names(archive)


@pytest.mark.processes
def test_wheel_and_sdist_know_their_commit(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    (wheel,), (sdist,) = tmp_path.glob("*.whl"), tmp_path.glob("*.tar.gz")
    assert _said_by(wheel) == commit()
    with tarfile.open(sdist) as files:
        (name,) = (name for name in files.getnames() if name.endswith("lib/checkback/COMMIT"))
        files.extractall(tmp_path / "again", filter="data")
        assert (tmp_path / "again" / name).read_text() == commit()
    # A wheel that is made of the sdist has it from there.
    (again,) = (tmp_path / "again").iterdir()
    built = [*command[:-1], str(tmp_path / "second"), "-t", "wheel"]
    subprocess.run(built, check=True, capture_output=True, cwd=again)
    (second,) = (tmp_path / "second").glob("*.whl")
    assert _said_by(second) == commit()
    assert _names(second) == _names(wheel) >= {"licenses/LICENSE", "conf/base.yml", "conf/prometheus/alarms.yml"}
    assert re.fullmatch("[0-9a-f]{12}|unknown", commit())
