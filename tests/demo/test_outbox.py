"""`make run-outbox`: PostgreSQL, an outbox, a copy in Delta, `land --table`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.slow
def test_books_balance_though_copier_and_land_are_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.outbox", "--root", str(tmp_path / "outbox"), "--count", "100"]
    checkout = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=500, check=False)
    if "apt-get install postgresql" in ended.stderr:
        pytest.skip(ended.stderr)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "80 orders in PostgreSQL, the outbox and the topic" in ended.stdout
    assert "the copier and land were killed" in ended.stdout
    assert ended.stdout.endswith("The books balance.\n")
