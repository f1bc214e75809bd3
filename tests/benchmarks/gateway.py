"""How many half messages the gateway acknowledges: a real gateway, and the load generator in another process."""

from __future__ import annotations

import statistics

from benchmarks.producers import BODY_BYTES, produce_beside
from benchmarks.report import p99, report, rounded, say, scaled
from gateway.process import Gateway

SECONDS = 10
WARM_UP = 1
ROUNDS = 3
#: figure, connections, half messages a request
_LOADS = (("gateway_single", 384, 1), ("gateway_batch", 32, 100))


def bench(root: str) -> None:
    """Rounds of 10 seconds: one half message a request, then 100."""
    for name, connections, batch in _LOADS:
        seconds = scaled(SECONDS, least=1)
        rates, p99s = [], []
        with Gateway(f"{root}/{name}", "gateway.dedup_window=1m") as running:
            for number in range(WARM_UP + ROUNDS):
                load = produce_beside(running.port, connections, batch, seconds, f"round-{number}")
                rates.append(load.acknowledged / load.elapsed)
                p99s.append(p99(load.seconds) * 1000)
                say(f"{name}: {rates[-1]:.0f} half messages/s acknowledged, p99 {p99s[-1]:.0f} ms")
        report(
            name,
            statistics.median(rates[WARM_UP:]),
            "half messages/s",
            ROUNDS,
            p99_ms=round(statistics.median(p99s[WARM_UP:])),
            connections=connections,
            batch=batch,
            body_bytes=BODY_BYTES,
            rounds=rounded(rates[WARM_UP:]),
        )
