"""From an op sent by the SDK to its message visible in the topic table, at 1,000 transactions a second."""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.application import Application
from benchmarks.producers import BODY_BYTES, TOPICS
from benchmarks.proof import prove_tables
from benchmarks.report import p99, report, say, scaled
from benchmarks.sdk_load import PACED_THREADS, send_beside
from benchmarks.traffic import delays
from benchmarks.visible import Visible
from gateway.process import Gateway

PER_SECOND = 1_000
WARM_UP_S = 60
SECONDS = 60
#: by figure, reconcile.trigger and gateway.flush of somebody for whom latency counts; the defaults are 2 s and 500 ms
SETTINGS = {
    "sdk_latency": ("500ms", "200ms"),
    "sdk_latency_100ms": ("100ms", "100ms"),
    "sdk_latency_20ms_flush": ("100ms", "20ms"),
}


def bench(root: str) -> None:
    """p50 and p99 of a minute: a service's threads, the gateway and `checkback reconcile`, each in its own process."""
    for name, (trigger, flush) in SETTINGS.items():
        _figures(f"{root}/{name}", name, trigger, flush)


def _figures(root: str, name: str, trigger: str, flush: str) -> None:
    per_second = scaled(PER_SECOND, least=100)
    warm_up, seconds = scaled(WARM_UP_S, least=5), scaled(SECONDS, least=5)
    tables = [f"topics/topic_{topic}" for topic in range(TOPICS)]
    with (
        Application(root, reconcile__trigger=trigger) as application,
        Gateway(root, "gateway.dedup_window=1m", f"gateway.flush={flush}") as running,
        Visible(root, tables) as visible,
    ):
        load = send_beside("paced", per_second, warm_up + seconds, [running.url])
        application.until(lambda: visible.count >= load.ended)
    sent = np.array(load.at)[np.argsort(load.offsets)]
    begin = min(load.at) + warm_up
    offsets, seen = visible.rows("half_queue_offset", "half_queue_id", 0)
    taken = sorted(delays(sent, 1, offsets, seen, begin, begin + seconds).tolist())
    say(f"{name}: {len(taken)} transactions, {statistics.median(taken):.2f} s, at most {taken[-1]:.2f} s")
    prove_tables(root, load.ended, 0)
    shape = {"per_second": per_second, "seconds": seconds, "trigger": trigger, "flush": flush, "threads": PACED_THREADS}
    shape |= {"sent_per_second": round(len(taken) / seconds), "body_bytes": BODY_BYTES}
    report(f"{name}_p50", statistics.median(taken), "s", len(taken), **shape)
    report(f"{name}_p99", p99(taken), "s", len(taken), **shape, worst=round(taken[-1], 3))
