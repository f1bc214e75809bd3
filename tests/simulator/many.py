"""Many histories, on all processors."""

from __future__ import annotations

import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import NamedTuple

from simulator.history import happen, plans, report

_EVERY_S = 10
#: histories that a process is given at a time
_PART = 500


class Part(NamedTuple):
    """What came of some histories. ``broken``: the seed of the first that broke a promise; None = all were kept."""

    histories: int
    transactions: int
    batches: int
    seconds: float
    broken: int | None = None


def run(first: int, count: int) -> Part:
    """The histories of ``count`` seeds."""
    begun = time.process_time()
    batches = transactions = 0
    for number in range(count):
        for plan in plans(first + number):
            outcome = happen(plan)
            batches += outcome.batches
            transactions += outcome.transactions
            if outcome.broken:
                return Part(number + 1, transactions, batches, time.process_time() - begun, first + number)
    return Part(count, transactions, batches, time.process_time() - begun)


def many(first: int, count: int) -> int:
    """0 = every promise was kept in every history; 1 = a failing one was printed."""
    total, told = Part(0, 0, 0, 0.0), time.monotonic()
    begins = range(first, first + count, _PART)
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        parts = [pool.submit(run, begin, min(_PART, first + count - begin)) for begin in begins]
        for done in as_completed(parts):
            part = done.result()
            if part.broken is not None:
                pool.shutdown(cancel_futures=True)
                print(report(part.broken))
                print(f"run it again with: make simulate SEED={part.broken}")
                return 1
            total = Part(
                total.histories + part.histories,
                total.transactions + part.transactions,
                total.batches + part.batches,
                total.seconds + part.seconds,
            )
            now = time.monotonic()
            if now - told > _EVERY_S or total.histories == count:
                told = now
                print(
                    f"{total.histories} histories from seed {first}, {total.transactions} transactions, "
                    f"{total.batches} batches: all promises kept "
                    f"({total.histories / total.seconds * 60:,.0f} histories a minute of one core)",
                    flush=True,
                )
    return 0
