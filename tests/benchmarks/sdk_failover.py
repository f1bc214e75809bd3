"""How long nothing is sent when one of two gateways is killed: producers in threads, through the SDK."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.report import report, rounded, say, scaled
from benchmarks.sdk_load import send_beside
from gateway.process import Gateway

if TYPE_CHECKING:
    from collections.abc import Sequence

THREADS = 16
SECONDS = 8
ROUNDS = 10
#: after the kill: the gap begins within
_AFTER_S = 2.0


def bench(root: str) -> None:
    """Rounds in which a gateway is killed -9 in the middle; every transaction must be acknowledged, its op landed."""
    seconds = scaled(SECONDS, least=4)
    gaps = []
    for number in range(scaled(ROUNDS, least=1)):
        tables = f"{root}/{number}"
        with (
            Gateway(tables, "gateway.queues=[0]", f"gateway.journal={tables}-0") as killed,
            Gateway(tables, "gateway.queues=[1]", f"gateway.journal={tables}-1") as other,
            ThreadPoolExecutor(1) as pool,
        ):
            sending = pool.submit(send_beside, "threads", THREADS, seconds, [killed.url, other.url])
            time.sleep(seconds / 2)
            killed.kill()
            at = time.monotonic()
            load = sending.result()
        gaps.append(longest_gap(load.at, at))
        say(f"sdk_failover: nothing sent for {gaps[-1] * 1000:.0f} ms; {load.ended / load.elapsed:.0f} tx/s")
    report("sdk_failover", max(gaps), "s", len(gaps), median=round(statistics.median(gaps), 3), rounds=rounded(gaps))


def longest_gap(ended: Sequence[float], kill: float) -> float:
    """Most seconds between two transactions, of those that ended from just before the kill on."""
    near = sorted(at for at in ended if kill - 0.5 <= at <= kill + _AFTER_S)
    return max((later - earlier for earlier, later in pairwise(near)), default=_AFTER_S)
