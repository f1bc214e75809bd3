"""How long a gateway takes to start with a million half messages to remember, and how much memory it has then."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import Path

from benchmarks.load import COMMIT, Load
from benchmarks.report import report, rounded, say, scaled
from gateway.process import Gateway

HALVES = 1_000_000
ROUNDS = 3


def bench(root: str) -> None:
    """Half messages and their COMMITs that have just landed; three starts."""
    halves = scaled(HALVES, least=1_000)
    load = Load(root)
    for first in range(0, halves, COMMIT):
        load.land(first, min(COMMIT, halves - first))
    seconds, memory, peak = [], [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        with Gateway(root, "gateway.dedup_window=1h", f"gateway.dedup_max={halves}", "gateway.queues=[0]") as running:
            seconds.append(time.perf_counter() - began)
            status = Path(f"/proc/{running.process.pid}/status").read_text()
            memory.append(_mib(status, "VmRSS"))
            peak.append(_mib(status, "VmHWM"))
            remembered = re.search(r"^checkback_gateway_remembered (\S+)", running.get("/metrics").text, re.MULTILINE)
            if remembered is None or float(remembered.group(1)) != halves:
                raise RuntimeError(f"the gateway remembers {remembered and remembered.group(1)}, not {halves}")
            say(f"gateway_start: {seconds[-1]:.2f} s, {memory[-1]:.0f} MiB, at most {peak[-1]:.0f} MiB")
    report(
        "gateway_start",
        statistics.median(seconds),
        "s",
        ROUNDS,
        half_messages=halves,
        mib=round(max(memory)),
        peak_mib=round(max(peak)),
        rounds=rounded(seconds),
    )


def _mib(status: str, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    return float("nan") if found is None else int(found.group(1)) / 1024
