"""Rounds of consumers that are killed, stopped and restarted.

In the environment: ROUNDS=n, SEED=n, SECONDS=n (of a round), KIND="orderly batch=3" (fields of Kind;
without it random ones), STOP=1 (end with the first round that finds a fault), KEEP=folder (for the rounds' files).
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from random import Random
from typing import Any

from crash_consumer.kinds import Kind
from crash_consumer.rounds import run


def kind_of(text: str) -> Kind:
    """``orderly batch=3 tags=A``: fields of Kind with their values."""
    fields: dict[str, Any] = {}
    for word in text.split():
        name, _, value = word.partition("=")
        fields[name] = int(value) if value.isdecimal() else value or True
    return Kind(**fields)


def main() -> int:
    """0 = no promise was broken; 1 = some were."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = int(os.environ.get("SEED") or 0) or Random().randrange(1, 10**6)
    rounds = int(os.environ.get("ROUNDS") or 25)
    seconds = float(os.environ.get("SECONDS") or 15)
    kind = kind_of(os.environ["KIND"]) if "KIND" in os.environ else None
    with tempfile.TemporaryDirectory(prefix="checkback-crash-consumer-") as temporary:
        folder = os.environ.get("KEEP") or temporary
        print(f"run it again with: ROUNDS={rounds} SEED={seed} SECONDS={seconds:g}", flush=True)
        figures = run(
            folder, rounds, Random(seed), lambda text: print(text, flush=True), seconds, kind, "STOP" in os.environ
        )
    print(figures)
    return 0 if figures.good else 1


if __name__ == "__main__":
    sys.exit(main())
