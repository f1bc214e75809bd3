"""A service's transactions through the SDK: half message, a local transaction that does nothing, op. A real gateway."""

from __future__ import annotations

import re
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
    """Rounds of 10 seconds, of threads and of asyncio tasks; each sends one transaction after the other.

    Acknowledged by the journal; the last of them also as the tables acknowledge them.
    """
    for (kind, number), acknowledge in [*((load, "journal") for load in LOADS), (LOADS[-2], "table")]:
        name = f"sdk_{number}_{kind}" + ("_table" if acknowledge == "table" else "")
        rates, p50s, p99s = [], [], []
        with Gateway(f"{root}/{name}", "gateway.dedup_window=1m", f"gateway.acknowledge={acknowledge}") as running:
            for _ in range(WARM_UP + ROUNDS):
                load = send_beside(kind, number, scaled(SECONDS, least=1), [running.url])
                rates.append(load.ended / load.elapsed)
                p50s.append(statistics.median(load.seconds) * 1000)
                p99s.append(p99(load.seconds) * 1000)
                say(f"{name}: {rates[-1]:.0f} tx/s, p50 {p50s[-1]:.2f} ms, p99 {p99s[-1]:.1f} ms")
            in_journal = _p99_in_journal(running.get("/metrics").text)
        report(
            name,
            statistics.median(rates[WARM_UP:]),
            "tx/s",
            ROUNDS,
            p50_ms=round(statistics.median(p50s[WARM_UP:]), 2),
            p99_ms=round(statistics.median(p99s[WARM_UP:]), 1),
            body_bytes=BODY_BYTES,
            rounds=rounded(rates[WARM_UP:]),
            **({} if in_journal is None else {"journal_p99_ms": in_journal}),
        )


def _p99_in_journal(metrics: str) -> int | None:
    """How long 99 % of the groups of messages were in the journal only (ms), up to a bucket's bound; None = no journal.

    0: longer than the last bound.
    """
    counts = {
        float(bound): float(count)
        for bound, count in re.findall(r'^checkback_gateway_journal_seconds_bucket\{le="(.+)"\} (.+)$', metrics, re.M)
    }
    if not counts:
        return None
    bound = min(bound for bound, count in counts.items() if count >= 0.99 * max(counts.values()))
    return 0 if bound == float("inf") else round(bound * 1000)
