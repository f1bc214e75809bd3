"""How long a scheduled run takes that finds nothing to do."""

from __future__ import annotations

import statistics
import subprocess
import time

from benchmarks.application import command
from benchmarks.load import Load
from benchmarks.report import report, rounded, say, scaled

ROUNDS = 3
DRAINED = 5_000


def bench(root: str) -> None:
    """`checkback reconcile --available-now` as a process: with empty tables, and after some thousand transactions."""
    _figure("start_up", root, 0)
    n = scaled(DRAINED, least=100)
    Load(root).land(0, n)
    _figure("start_up_drained", root, n)


def _figure(name: str, root: str, transactions: int) -> None:
    """The first run makes the tables, or drains them."""
    seconds = [_run(root) for _ in range(ROUNDS + 1)]
    say(f"{name}: {', '.join(f'{one:.1f} s' for one in seconds)}")
    counted = seconds[1:]
    report(name, statistics.median(counted), "s", ROUNDS, transactions=transactions, seconds=rounded(counted))


def _run(root: str) -> float:
    began = time.perf_counter()
    subprocess.run(command(root, "reconcile", "--available-now"), check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
