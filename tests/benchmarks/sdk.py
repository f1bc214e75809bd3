"""A service's transactions through the SDK: half message, a local transaction that does nothing, op. A real gateway."""

from __future__ import annotations

import statistics

from benchmarks.producers import BODY_BYTES
from benchmarks.report import p99, report, rounded, say, scaled
from benchmarks.sdk_load import send_beside
from gateway.process import Gateway

SECONDS = 10
WARM_UP = 1
ROUNDS = 3
LOADS = (("threads", 1), ("threads", 16), ("threads", 64), ("tasks", 256))


def bench(root: str) -> None:
    """Rounds of 10 seconds, of threads and of asyncio tasks; each sends one transaction after the other."""
    for kind, number in LOADS:
        name = f"sdk_{number}_{kind}"
        rates, p50s, p99s = [], [], []
        with Gateway(f"{root}/{name}", "gateway.remember=1m") as running:
            for _ in range(WARM_UP + ROUNDS):
                load = send_beside(kind, number, scaled(SECONDS, least=1), [running.url])
                rates.append(load.ended / load.elapsed)
                p50s.append(statistics.median(load.seconds) * 1000)
                p99s.append(p99(load.seconds) * 1000)
                say(f"{name}: {rates[-1]:.0f} tx/s, p50 {p50s[-1]:.2f} ms, p99 {p99s[-1]:.1f} ms")
        report(
            name,
            statistics.median(rates[WARM_UP:]),
            "tx/s",
            ROUNDS,
            p50_ms=round(statistics.median(p50s[WARM_UP:]), 2),
            p99_ms=round(statistics.median(p99s[WARM_UP:]), 1),
            body_bytes=BODY_BYTES,
            rounds=rounded(rates[WARM_UP:]),
        )
