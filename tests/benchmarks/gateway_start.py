"""How long a gateway takes to start with a million half messages to remember, and how much memory it has then."""

from __future__ import annotations

import re
import statistics
import time
from pathlib import Path
from typing import NamedTuple

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
    starts = []
    for _ in range(ROUNDS):
        one = start(root, "gateway.dedup_window=1h", f"gateway.dedup_max={halves}", "gateway.queues=[0]")
        starts.append(one)
        if one.remembered != halves:
            raise RuntimeError(f"the gateway remembers {one.remembered}, not {halves}")
        say(f"gateway_start: {one.seconds:.2f} s, {one.memory:.0f} MiB, at most {one.peak:.0f} MiB")
    seconds = [one.seconds for one in starts]
    report(
        "gateway_start",
        statistics.median(seconds),
        "s",
        ROUNDS,
        half_messages=halves,
        mib=round(max(one.memory for one in starts)),
        peak_mib=round(max(one.peak for one in starts)),
        rounds=rounded(seconds),
    )


class Start(NamedTuple):
    """Seconds until it listens, its memory then and the peak (MiB), and the half messages that it remembers."""

    seconds: float
    memory: float
    peak: float
    remembered: float


def start(root: str, *overrides: str) -> Start:
    """A gateway's start."""
    began = time.perf_counter()
    with Gateway(root, *overrides) as running:
        seconds = time.perf_counter() - began
        status = Path(f"/proc/{running.process.pid}/status").read_text()
        remembered = re.search(r"^checkback_gateway_remembered (\S+)", running.get("/metrics").text, re.MULTILINE)
        return Start(
            seconds,
            _mib(status, "VmRSS"),
            _mib(status, "VmHWM"),
            float("nan") if remembered is None else float(remembered.group(1)),
        )


def _mib(status: str, name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+) kB", status)
    return float("nan") if found is None else int(found.group(1)) / 1024
