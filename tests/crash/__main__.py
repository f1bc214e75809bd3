"""Rounds of kill -9 under load: `make test-crash`."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from random import Random

from crash.kills import run


def main() -> int:
    """0 = no promise was broken; 1 = some were."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the application is killed then, too
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    rounds = int(os.environ.get("ROUNDS") or 25)
    with tempfile.TemporaryDirectory(prefix="checkback-crash-") as folder:
        print(f"run it again with: make test-crash ROUNDS={rounds} SEED={seed}", flush=True)
        figures = run(folder, rounds, Random(seed), lambda text: print(text, flush=True))
    print(figures)
    for fault in [*figures.books.lost, *figures.books.duplicated, *figures.books.faults][:20]:
        print(f"fault: {fault}")
    return 0 if figures.books.good else 1


if __name__ == "__main__":
    sys.exit(main())
