"""Many histories, or that of SEED=n: `make simulate`."""

from __future__ import annotations

import os
import sys
import time
from random import Random

from simulator.history import happen, report
from simulator.scheduler import scenario

_EVERY_S = 10


def main() -> int:
    """0 = every promise was kept in every history; 1 = the first failing one was printed."""
    seed = int(os.environ.get("SEED") or 0)
    count = 1 if seed else int(os.environ.get("HISTORIES") or 5000)
    first = seed or Random().randrange(1, 10**9)
    told = time.monotonic()
    begun = time.process_time()
    batches = transactions = 0
    for number in range(count):
        outcome = happen(scenario(first + number))
        if outcome.broken:
            print(report(first + number))
            print(f"run it again with: make simulate SEED={first + number}")
            return 1
        batches += outcome.batches
        transactions += outcome.transactions
        now = time.monotonic()
        if now - told > _EVERY_S or number + 1 == count:
            told = now
            print(
                f"{number + 1} histories, {transactions} transactions, {batches} batches: all promises kept "
                f"({(number + 1) / (time.process_time() - begun) * 60:,.0f} histories a minute of one core)",
                flush=True,
            )
    if seed:
        print("\n".join(happen(scenario(seed), tell=True).lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
