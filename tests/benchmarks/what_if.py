"""How long `checkback what-if` takes without Spark, and how much memory: tables with a silent group."""

from __future__ import annotations

import resource
import statistics
import subprocess
import time

from benchmarks.answer_tables import AnswerTables
from benchmarks.application import command
from benchmarks.report import report, rounded, say, scaled

TRANSACTIONS, PENDING = 1_000_000, 100_000
ROUNDS = 3
CHANGES = ("--set", "transaction.timeout=30s", "--set", "transaction.check_max=2")


def bench(root: str) -> None:
    """The command as a process, with a longer timeout and fewer checks; the first round warms the file cache."""
    n, pending = scaled(TRANSACTIONS, least=5_000), scaled(PENDING, least=500)
    AnswerTables(root, n, pending).make()
    seconds = [_run(root) for _ in range(ROUNDS + 1)][1:]
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    say(f"what_if: {n} transactions, {', '.join(f'{one:.1f} s' for one in seconds)}, {peak:.0f} MiB")
    report(
        "what_if", statistics.median(seconds), "s", ROUNDS, transactions=n, pending=pending, seconds=rounded(seconds)
    )
    report("what_if_memory", peak, "MiB", 1, transactions=n, pending=pending)


def _run(root: str) -> float:
    began = time.perf_counter()
    subprocess.run([*command(root, "what-if"), *CHANGES], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began
