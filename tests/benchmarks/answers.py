"""How long the inspecting commands take, as processes of their own, and how much memory; without Spark."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING, NamedTuple

from benchmarks.answer_tables import AnswerTables
from benchmarks.report import report, rounded, say, scaled
from benchmarks.store_server import server_seconds, store_server
from checkback.storage.files.object_store import register
from support.s3_server import BUCKET, options

if TYPE_CHECKING:
    from collections.abc import Mapping

ROUNDS = 3
#: transactions of `make run-trace`
DEMO = 120
#: name of the size, transactions, pending
SIZES = (("demo", DEMO, 12), ("million", 1_000_000, 100_000), ("ten_million", 10_000_000, 100_000))
QUESTIONS = {
    "status": ("status", "-o", "json"),
    "pending": ("tx", "list"),
    "pending_json": ("tx", "list", "-o", "json"),
    "lineage": ("tx", "describe", "transaction-1"),
    "decisions": ("tx", "decisions", "--since", "2026-01-01T00:00", "--every", "1h"),
    "scheduled": ("tx", "list", "--state", "scheduled"),
    "audit": ("audit",),
}


class Run(NamedTuple):
    """Seconds by the clock and of CPU, the peak of the resident memory in MB, and the server's seconds of CPU."""

    seconds: float
    cpu: float
    memory: float
    server_cpu: float


def bench(root: str) -> None:
    """Each command in each size, on tables that Arrow and delta-rs have written; in folders, and in an object store.

    The time of the store is in the figures (`store_server`), and its seconds of CPU beside them.
    """
    for size, transactions, pending in SIZES:
        _ask(size, f"{root}/{size}", transactions, pending, {})
    with store_server() as port:
        store = f"s3://{BUCKET}/{uuid.uuid4().hex}"
        register(store, options(port))
        environ = {name.upper(): value for name, value in options(port).items()}
        for size, transactions, pending in SIZES[:2]:
            _ask(f"s3_{size}", f"{store}/{size}", transactions, pending, environ)


def _ask(size: str, place: str, transactions: int, pending: int, environ: Mapping[str, str]) -> None:
    n = transactions if transactions == DEMO else scaled(transactions, least=1_000)
    say(f"{size}: {n} transactions are written")
    AnswerTables(place, n, min(pending, n // 10)).make()
    for name, arguments in QUESTIONS.items():
        runs = [run(place, environ, *arguments) for _ in range(ROUNDS)]
        seconds = statistics.median(run.seconds for run in runs)
        memory = max(run.memory for run in runs)
        cpu = statistics.median(run.cpu for run in runs)
        say(f"{size} {name}: {seconds:.2f} s, {cpu:.2f} s of CPU, {memory:.0f} MB")
        details: dict[str, object] = {
            "transactions": n,
            "seconds": rounded([run.seconds for run in runs]),
            "cpu_seconds": rounded([run.cpu for run in runs]),
        }
        if environ:
            details["server_cpu_seconds"] = rounded([run.server_cpu for run in runs])
        report(f"answers_{size}_{name}", seconds, "s", ROUNDS, peak_mb=round(memory), **details)


def run(root: str, environ: Mapping[str, str], *arguments: str) -> Run:
    command = [sys.executable, "-m", "checkback", *arguments, "--set", f"storage.root={root}"]
    served, began = server_seconds(), time.perf_counter()
    with subprocess.Popen(command, env=os.environ | environ, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    seconds = time.perf_counter() - began
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, server_seconds() - served)
