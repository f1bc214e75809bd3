"""An upgrade with a batch under way: two builds of the library, each in a process of its own, on the same tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.errors import StateError
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

_LIB, _TESTS = Path(__file__).parents[2] / "lib", Path(__file__).parents[1]
_PATIENCE_S = 300
#: what the other build does with the tables: one check of each message, then a batch that it breaks off, and dies, or
#: goes on when it is told to
_RUN = """
import os, sys, time
from pathlib import Path
from checkback import __version__
from checkback.errors import CheckbackError
from checkback.spark.session import running_session
from checkback.storage.tables import Tables
from reconcile.test_batch_rules import CrashError, Lakehouse

root, wish = sys.argv[1:]
print("build", __version__, flush=True)
with running_session(Lakehouse.settings_of(root, check_max=1), "other build", short=True) as spark:
    lake = Lakehouse(spark, Path(root))
    lake.half(0, 1)
    lake.run(lake.settings(check_max=1))
    lake.commit(1)
    commit, done = Tables.commit, set()

    def dying(self, spark, name, *args):
        if name == "topics/t":
            while not {"decisions", "discarded"} <= done:
                time.sleep(0.01)
            if wish == "dies":
                os._exit(9)
            raise CrashError
        commit(self, spark, name, *args)
        done.add(name)

    Tables.commit = dying
    try:
        lake.run(lake.settings(check_max=1))
    except CheckbackError:
        print("broken off", flush=True)
        sys.stdin.readline()
        Tables.commit = commit
        lake.run(lake.settings(check_max=1))
"""


def _build(folder: Path, version: str, decision_version: int | None) -> Path:
    """A copy of the library with another version, which perhaps decides otherwise."""
    shutil.copytree(_LIB / "checkback", folder / "checkback", ignore=shutil.ignore_patterns("__pycache__"))
    with open(folder / "checkback" / "__init__.py", "a", encoding="utf-8") as file:
        file.write(f'\n__version__ = "{version}"\n')
    if decision_version is not None:
        with open(folder / "checkback" / "reconcile" / "segment.py", "a", encoding="utf-8") as file:
            file.write(f"\nDECISION_VERSION = {decision_version}\n")
    return folder


@contextmanager
def _running(build: Path, root: Path, wish: str) -> Iterator[subprocess.Popen[str]]:
    """The other build at work, until it has broken its batch off."""
    with (
        (root.parent / "stderr").open("w+") as log,
        subprocess.Popen(
            [sys.executable, "-c", _RUN, str(root), wish],
            env=os.environ | {"PYTHONPATH": f"{build}{os.pathsep}{_TESTS}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        said = process.stdout.readline() + process.stdout.readline()
        assert said == "build 0.0.9\n" + "broken off\n" * (wish == "goes on"), Path(log.name).read_text()
        yield process


@pytest.mark.parametrize("decision_version", [None, 0])
def test_upgrade_with_a_batch_under_way(spark: SparkSession, tmp_path: Path, decision_version: int | None) -> None:
    """A build that decides alike goes on, by the old settings; one that does not lets the other finish first."""
    root = tmp_path / "data"
    build = _build(tmp_path / "build", "0.0.9", decision_version)
    alike = decision_version is None
    with _running(build, root, "dies" if alike else "goes on") as other:
        if alike:
            assert other.wait(_PATIENCE_S) == 9
        lake = Lakehouse(spark, root)
        assert lake.rows("decisions", "queue_offset", "state") == [(0, "DISCARD"), (1, "COMMIT")]
        assert lake.fates() == {0: ["discarded"]}
        today = lake.settings(check_max=15)
        if not alike:
            with pytest.raises(StateError, match=r"begun by Checkback 0\.0\.9"):
                lake.run(today)
            assert lake.fates() == {0: ["discarded"]}
            other.communicate("go on\n", timeout=_PATIENCE_S)
            assert other.returncode == 0
    lake.commit(0)
    lake.run(today)
    assert lake.fates() == {0: ["discarded"], 1: ["topics/t"]}
    decided_by = dict(lake.rows("batches", "batch_id", "checkback_version"))
    assert decided_by[0] == "0.0.9"
    assert decided_by[max(decided_by)] != "0.0.9"
