"""Rounds of consumers that are killed, stopped and restarted; ROUNDS=n, SEED=n, SECONDS=n (of a round)."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from random import Random

from crash_consumer.rounds import run


def main() -> int:
    """0 = no promise was broken; 1 = some were. KEEP=folder keeps the files of the rounds."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    rounds = int(os.environ.get("ROUNDS") or 25)
    seconds = float(os.environ.get("SECONDS") or 15)
    with tempfile.TemporaryDirectory(prefix="checkback-crash-consumer-") as temporary:
        folder = os.environ.get("KEEP") or temporary
        print(f"run it again with: ROUNDS={rounds} SEED={seed} SECONDS={seconds:g}", flush=True)
        figures = run(folder, rounds, Random(seed), lambda text: print(text, flush=True), seconds)
    print(figures)
    return 0 if figures.good else 1


if __name__ == "__main__":
    sys.exit(main())
