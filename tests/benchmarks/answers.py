"""How long the inspecting commands take, as processes of their own, and how much memory; without Spark."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

from benchmarks.answer_tables import AnswerTables
from benchmarks.report import report, rounded, say, scaled

ROUNDS = 3
#: name of the size, transactions, pending
SIZES = (("demo", 120, 12), ("million", 1_000_000, 100_000), ("ten_million", 10_000_000, 100_000))
QUESTIONS = {
    "status": ("status", "--json"),
    "pending": ("pending",),
    "pending_json": ("pending", "--json"),
    "stuck": ("stuck",),
    "lineage": ("lineage", "transaction-1"),
    "decisions": ("decisions", "--since", "2026-01-01T00:00", "--every", "1h"),
    "scheduled": ("scheduled",),
    "audit": ("audit",),
}


class Run(NamedTuple):
    """Seconds by the clock and of CPU, and the peak of the resident memory in MB."""

    seconds: float
    cpu: float
    memory: float


def bench(root: str) -> None:
    """Each command in each size, on tables that Arrow and delta-rs have written."""
    for size, transactions, pending in SIZES:
        place = f"{root}/{size}"
        n = transactions if size == "demo" else scaled(transactions, least=1_000)
        say(f"{size}: {n} transactions are written")
        AnswerTables(place, n, min(pending, n // 10)).make()
        for name, arguments in QUESTIONS.items():
            runs = [_run(place, *arguments) for _ in range(ROUNDS)]
            seconds = statistics.median(run.seconds for run in runs)
            memory = max(run.memory for run in runs)
            cpu = statistics.median(run.cpu for run in runs)
            say(f"{size} {name}: {seconds:.2f} s, {cpu:.2f} s of CPU, {memory:.0f} MB")
            details = {
                "transactions": n,
                "seconds": rounded([run.seconds for run in runs]),
                "cpu_seconds": rounded([run.cpu for run in runs]),
            }
            report(f"answers_{size}_{name}", seconds, "s", ROUNDS, peak_mb=round(memory), **details)


def _run(root: str, *arguments: str) -> Run:
    command = [sys.executable, "-m", "checkback", *arguments, "--set", f"storage.root={root}"]
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return Run(time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
