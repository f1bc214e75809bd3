"""From an op landed to its message visible in the topic table, while transactions land all the time."""

from __future__ import annotations

import statistics
import time

from benchmarks.application import Application
from benchmarks.load import Load
from benchmarks.proof import prove_tables
from benchmarks.report import p99, report, say, scaled
from benchmarks.traffic import Traffic
from benchmarks.visible import Visible

WARM_UP_S = 60
SECONDS = 60
#: by figure, reconcile.trigger and transactions a second: the default, and shorter ones
TRIGGERS = {
    "steady_latency": ("2s", 5_000),
    "steady_latency_500ms": ("500ms", 5_000),
    "steady_latency_100ms": ("100ms", 1_000),
}


def bench(root: str) -> None:
    """p50 and p99 of a minute of `checkback reconcile`, running on, in a process of its own."""
    for name, (trigger, per_second) in TRIGGERS.items():
        _figures(f"{root}/{name}", name, trigger, scaled(per_second, least=500))


def _figures(root: str, name: str, trigger: str, per_second: int) -> None:
    warm_up, seconds = scaled(WARM_UP_S, least=5), scaled(SECONDS, least=5)
    tables = [f"topics/topic_{topic}" for topic in range(Load(root).topics)]
    with Application(root, reconcile__trigger=trigger) as application, Visible(root, tables) as visible:
        batches = application.batches()
        with Traffic(root, per_second) as traffic:
            time.sleep(warm_up)
            begin = time.monotonic()
            time.sleep(seconds)
            end = time.monotonic()
        application.until(lambda: visible.count >= traffic.transactions)
        batches = application.batches() - batches
    taken = sorted(traffic.delays(visible, begin, end).tolist())
    say(f"{name}: {len(taken)} transactions, {statistics.median(taken):.2f} s, at most {taken[-1]:.2f} s")
    prove_tables(root, traffic.transactions, 0)
    shape = {"per_second": per_second, "seconds": seconds, "trigger": trigger, "batches": batches}
    report(f"{name}_p50", statistics.median(taken), "s", len(taken), **shape)
    report(f"{name}_p99", p99(taken), "s", len(taken), **shape, worst=round(taken[-1], 3))
