"""Commands where Spark is not installed, as `pip install checkback[dashboard]` leaves it: neither pyspark nor py4j."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from checkback.settings import Storage
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes

_RUN = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"delta", "pandas", "py4j", "pyspark"}:
            raise ModuleNotFoundError(name=name)

sys.meta_path.insert(0, Missing())
from checkback.cli import main
sys.exit(main())
"""


def _command(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _RUN, *arguments, "--set", f"storage.root={root}"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["topic", "list"],
        ["tx", "list"],
        ["audit"],
        ["maintain"],
        ["maintain", "--repair"],
        ["group", "list"],
    ],
    ids=" ".join,
)
def test_command_needs_no_spark(tmp_path: Path, arguments: list[str]) -> None:
    no_spark: Any = None
    Tables.of(Storage(root=str(tmp_path))).create(no_spark, "half", "op", "decisions", "batches")
    run = _command(tmp_path, *arguments)
    assert (run.returncode, run.stderr) == (0, "")


def test_command_that_needs_spark_names_what_to_install(tmp_path: Path) -> None:
    run = _command(tmp_path, "reconcile", "--available-now")
    assert run.returncode == 2
    assert run.stderr == "checkback: the Python module pyspark is missing; install checkback[spark]\n"
