"""The examples where a package is missing: one line, as of the commands."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MISSING = "the Python module {} is missing;"


@pytest.mark.parametrize(
    ("example", "missing", "told"),
    [
        ("checkback.demo", "typer", "the Python module typer is missing; install Checkback with its dependencies"),
        ("checkback.demo", "pyspark", "the Python module pyspark is missing; install checkback[spark]"),
        ("checkback.demo.bank", "rich", "the Python module rich is missing; install Checkback with its dependencies"),
        ("checkback.demo.bank", "pyspark", "the Python module pyspark is missing; install checkback[spark]"),
        # an extra of developers
        (
            "checkback.demo.bank --store s3",
            "moto",
            "--store s3: the Python module moto is missing; install checkback[dev]",
        ),
    ],
)
def test_missing_package_is_one_line(tmp_path: Path, example: str, missing: str, told: str) -> None:
    module, *options = example.split()
    code = f"import runpy, sys; sys.modules[{missing!r}] = None; runpy.run_module({module!r}, run_name='__main__')"
    command = [sys.executable, "-c", code, *options, "--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"checkback: {told}\n")
