"""An upgrade with a batch under way: two builds of the library, each in a process of its own, on the same tables."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checkback.errors import StateError
from reconcile.test_batch_rules import Lakehouse

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LIB, _TESTS = Path(__file__).parents[2] / "lib", Path(__file__).parents[1]
_PATIENCE_S = 300
#: what the other build does with the tables: one check of each message, then, with "dies", a batch that it dies in
_RUN = """
import os, sys, time
from pathlib import Path
from checkback import __version__
from checkback.application.run import reconcile
from checkback.spark.session import running_session
from checkback.storage.tables import Tables
from reconcile.test_batch_rules import Lakehouse

root, wish = sys.argv[1:]
print("build", __version__, flush=True)
with running_session(Lakehouse.settings_of(root, check_max=1), "other build", short=True) as spark:
    lake = Lakehouse(spark, Path(root))
    if wish == "dies":
        lake.half(0, 1)
        lake.run(lake.settings(check_max=1))
        lake.commit(1)
        commit, done = Tables.commit, set()

        def dying(self, spark, name, *args):
            if name == "topics/t":
                while not {"decisions", "discarded"} <= done:
                    time.sleep(0.01)
                os._exit(9)
            commit(self, spark, name, *args)
            done.add(name)

        Tables.commit = dying
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


def _run(build: Path, root: Path, wish: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(root), wish],
        env=os.environ | {"PYTHONPATH": f"{build}{os.pathsep}{_TESTS}"},
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("decision_version", [None, 0])
def test_upgrade_with_a_batch_under_way(spark: SparkSession, tmp_path: Path, decision_version: int | None) -> None:
    """A build that decides alike goes on, by the old settings; one that does not lets the other finish first."""
    root = tmp_path / "data"
    build = _build(tmp_path / "build", "0.0.9", decision_version)
    code, said = _run(build, root, "dies")
    assert (code, "build 0.0.9" in said) == (9, True), said
    lake = Lakehouse(spark, root)
    assert lake.rows("decisions", "queue_offset", "state") == [(0, "DISCARD"), (1, "COMMIT")]
    assert lake.fates() == {0: ["discarded"]}
    today = lake.settings(check_max=15)
    if decision_version is not None:
        with pytest.raises(StateError, match=r"begun by Checkback 0\.0\.9"):
            lake.run(today)
        assert lake.fates() == {0: ["discarded"]}
        code, said = _run(build, root, "goes on")
        assert code == 0, said
    lake.commit(0)
    lake.run(today)
    assert lake.fates() == {0: ["discarded"], 1: ["topics/t"]}
    decided_by = dict(lake.rows("batches", "batch_id", "checkback_version"))
    assert decided_by[0] == "0.0.9"
    assert decided_by[max(decided_by)] != "0.0.9"
