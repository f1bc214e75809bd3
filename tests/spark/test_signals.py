"""Signals to the process group, as of `timeout 1h checkback reconcile`, a shell's `kill %1`, a terminal closed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.spark


@pytest.mark.skipif(sys.version_info < (3, 11), reason="subprocess.Popen has no process_group")
@pytest.mark.usefixtures("without_nohup")
@pytest.mark.parametrize(("number", "spark"), [(signal.SIGTERM, "FATAL"), (signal.SIGHUP, "INFO")])
def test_signal_to_the_group_leaves_spark_to_the_command(tmp_path: Path, number: int, spark: str) -> None:
    """All that is said meanwhile is JSON, also by Spark."""
    command = [sys.executable, "-m", "checkback", "reconcile", "--set", f"storage.root={tmp_path}"]
    command += ["--set", "log.format=json", "--set", f"spark.spark.log.level={spark}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stderr is not None
        lines: list[str] = []
        while not lines or json.loads(lines[-1])["event"] != "query_started":
            lines.append(process.stderr.readline())
        os.killpg(process.pid, number)
        if number == signal.SIGHUP:  # to a process without a terminal
            process.terminate()
        lines += process.stderr.readlines()
    assert process.returncode == 0
    own = [event for event in map(json.loads, lines) if event.get("logger") != "spark"]
    assert [event for event in own if event["level"] != "info"] == []
    assert (len(own) < len(lines)) == (spark == "INFO")
