"""How long a rebuild takes, as another number of partitions needs one: by what has ended and what is pending."""

from __future__ import annotations

import statistics
import subprocess
import time

from benchmarks.application import command
from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled

ROUNDS = 3
#: transactions that have ended, and pending ones, by figure
LAKES = {"rebuild": (0, 0), "rebuild_ended": (1_000_000, 0), "rebuild_pending": (1_000_000, 1_000_000)}


def bench(root: str) -> None:
    """`checkback rebuild` as a process, three times over; then nothing may be published again."""
    for name, sizes in LAKES.items():
        ended, pending = (scaled(size, least=0) for size in sizes)
        _figure(name, f"{root}/{name}", ended, pending)


def _figure(name: str, root: str, ended: int, pending: int) -> None:
    Load(root).land(0, ended)
    Load(root, queue_id=1).land_half(0, pending)
    _run(root, "reconcile", "--available-now", reconcile__partitions="2")
    seconds = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        _run(root, "rebuild", reconcile__partitions=str(4 - 2 * (number % 2)))
        seconds.append(time.perf_counter() - began)
        say(f"{name}: {ended} have ended, {pending} are pending: {seconds[-1]:.1f} s")
    _run(root, "reconcile", "--available-now")
    with lake(root) as place:
        prove(place, ended, pending)
    report(name, statistics.median(seconds), "s", ROUNDS, ended=ended, pending=pending, seconds=rounded(seconds))


def _run(root: str, *words: str, **overrides: str) -> None:
    line = command(root, *words, transaction__timeout="10h", **overrides)
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
