"""Many histories, or that of SEED=n: `make simulate`."""

from __future__ import annotations

import os
import sys
from random import Random

from simulator.history import happen, plans, report
from simulator.many import many, run


def main() -> int:
    """Exit code: 1 = a promise was broken."""
    seed = int(os.environ.get("SEED") or 0)
    if not seed:
        return many(Random().randrange(1, 10**9), int(os.environ.get("HISTORIES") or 5000))
    if run(seed, 1).broken:
        print(report(seed))
        return 1
    for plan in plans(seed):
        print("\n".join(happen(plan, tell=True).lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
