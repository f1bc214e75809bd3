"""Throughput: from landed to published, with bodies of 256 B and of 1 KiB; and how fast plain Spark copies the same."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.load import Load
from benchmarks.processes import Lakehouse, lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PENDING_EVERY = 20
WARM_UP = 3  # Java compiles what is hot for some millions of rows
ROUNDS = 3
#: bytes of a body, by figure
BODIES = {"catch_up": 256, "catch_up_1k": 1024}


def bench(root: str) -> None:
    """Rounds of a million transactions on a warm query, 5 % left pending; then the same rows copied by plain Spark."""
    n = scaled(1_000_000, least=2_000) // PENDING_EVERY * PENDING_EVERY
    for name, body_bytes in BODIES.items():
        with lake(f"{root}/{name}") as place:
            figures(place, name, n, body_bytes)


def figures(place: Lakehouse, name: str, n: int, body_bytes: int) -> None:
    """The figure and its floor, from rounds of ``n`` transactions, a multiple of PENDING_EVERY.

    Raises CheckbackError when a transaction is lost or doubled.
    """
    seconds, batches = rounds(place, name, n, body_bytes)
    rate = n / statistics.median(seconds)
    floors = [_copied(place, number, number * n, n) for number in range(WARM_UP + ROUNDS)][WARM_UP:]
    floor = n / statistics.median(floors)
    ratio = rate / floor
    shape = {"transactions": n, "body_bytes": body_bytes, "pending": n // PENDING_EVERY}
    ours = {"seconds": rounded(seconds), "batches": batches, "floor_ratio": round(ratio, 3)}
    report(name, rate, "tx/s", ROUNDS, **shape, **ours)
    report(f"{name}_floor", floor, "tx/s", ROUNDS, **shape, seconds=rounded(floors))
    report(f"{name}_floor_ratio", ratio, "ratio", ROUNDS)


def rounds(place: Lakehouse, name: str, n: int, body_bytes: int) -> tuple[list[float], list[int]]:
    """The seconds of each warm round of ``n`` transactions, and its batches. Raises as `figures`."""
    load = Load(place.root, body_bytes, pending_every=PENDING_EVERY)
    pending, seconds, batches = n // PENDING_EVERY, [], []
    with Stepper(place) as stepper:
        for number in range(WARM_UP + ROUNDS):
            first = number * n
            seconds.append(stepper.step(lambda: load.land(first, n), n - pending, pending))  # noqa: B023 - called at once
            batches.append(stepper.batches)
            say(f"{name}: {n} transactions in {seconds[-1]:.2f} s, {batches[-1]} batches")
    everything = (WARM_UP + ROUNDS) * n
    prove(place, everything - (WARM_UP + ROUNDS) * pending, (WARM_UP + ROUNDS) * pending)
    return seconds[WARM_UP:], batches[WARM_UP:]


def _copied(place: Lakehouse, number: int, first: int, n: int) -> float:
    """Seconds in which plain Spark reads a round's half messages and ops, and appends them to tables of their own."""
    began = time.perf_counter()
    for name in ("half", "op"):
        rows: DataFrame = place.tables.read(place.spark, name).where(
            f"queue_offset BETWEEN {first} AND {first + n - 1}"
        )
        rows.write.format("delta").mode("append").save(f"{place.root}_floor/{name}")
    seconds = time.perf_counter() - began
    say(f"floor: round {number} copied in {seconds:.2f} s")
    return seconds
