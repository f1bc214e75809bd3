"""`make bench`: prints one JSON line per figure: name, value, unit, n, machine, versions.

`make bench NAME=catch_up` runs one. Nothing else should run on the machine meanwhile.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.gateway import BODY_BYTES, measure
from benchmarks.load import Load
from benchmarks.maintain import SmallFiles
from benchmarks.stepper import Stepper
from checkback.schemas import SCHEMAS
from checkback.session import open_session
from checkback.settings import Settings
from checkback.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

BATCH = 250_000
WARM_UP = 3
COUNTED = 5
STEADY_BATCH = 20_000
STEADY_BATCHES = 30
PENDING = 1_000_000
START_UPS = 3
GATEWAY_ROUNDS = 3
SMALL_FILES = 3000
LOOKS = 60


def report(name: str, value: float, unit: str, n: int, **more: Any) -> None:
    """One JSON line on stdout."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, local[2]"
    versions = {package: version(package) for package in ("checkback", "pyspark", "delta-spark")}
    line = {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "n": n,
        **more,
        "machine": machine,
        "versions": versions,
    }
    print(json.dumps(line), flush=True)


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)


def settings(root: str) -> Settings:
    """Two cores, nothing due for a check, batches one after the other."""
    return Settings.model_validate(
        {
            "storage": {"root": root},
            "transaction": {"timeout": "10h"},
            "reconcile": {"trigger": "0s", "partitions": 4},
            "spark": {"spark.master": "local[2]", "spark.driver.memory": "6g"},
        }
    )


def session(root: str) -> tuple[SparkSession, Settings, Tables]:
    """A session and empty tables."""
    chosen = settings(root)
    spark = open_session(chosen, "checkback-bench")
    tables = Tables.of(chosen.storage)
    tables.create(spark, *SCHEMAS)
    return spark, chosen, tables


def catch_up(root: str) -> None:
    """Throughput of landed transactions, and what 1,000,000 pending that a batch does not touch cost it."""
    spark, chosen, tables = session(root)
    load = Load(spark, tables)
    with Stepper(spark, chosen, tables) as stepper:
        first = 0

        def batches(n: int) -> list[float]:
            nonlocal first
            seconds = []
            for _ in range(n):
                start = first
                seconds.append(stepper.step(lambda: load.land(start, BATCH)))  # noqa: B023 - called at once
                first += BATCH
                say(f"catch_up: a batch of {BATCH} transactions in {seconds[-1]:.2f} s")
            return seconds

        batches(WARM_UP)
        without = batches(COUNTED)
        median = statistics.median(without)
        report(
            "catch_up",
            BATCH / median,
            "tx/s",
            COUNTED,
            batch=BATCH,
            body_bytes=load.body_bytes,
            best=BATCH / min(without),
        )
        idle = Load(spark, tables, body_bytes=32, queue_id=1)
        seconds = stepper.step(lambda: idle.land_half(0, PENDING))
        say(f"catch_up: {PENDING} more pending in {seconds:.2f} s")
        batches(1)
        with_pending = statistics.median(batches(COUNTED))
        report("flat_state", with_pending / median, "ratio", COUNTED, pending=PENDING)


def steady_latency(root: str) -> None:
    """From an op landed to its message visible in the topic table."""
    spark, chosen, tables = session(root)
    load = Load(spark, tables, pending_every=STEADY_BATCH * STEADY_BATCHES * 2)
    seconds = []
    with Stepper(spark, chosen, tables) as stepper:
        for step in range(STEADY_BATCHES + 2 * WARM_UP):
            start = step * STEADY_BATCH
            seconds.append(stepper.step(lambda: load.land(start, STEADY_BATCH)))  # noqa: B023 - called at once
            say(f"steady_latency: {STEADY_BATCH} transactions in {seconds[-1]:.2f} s")
    counted = sorted(seconds[2 * WARM_UP :])
    report("steady_latency_p50", statistics.median(counted), "s", len(counted), batch=STEADY_BATCH)
    report(
        "steady_latency_p99",
        statistics.quantiles(counted, n=100, method="inclusive")[98],
        "s",
        len(counted),
        batch=STEADY_BATCH,
    )


def start_up(root: str) -> None:
    """`checkback reconcile --available-now` with nothing to do, as a process."""
    command = [sys.executable, "-m", "checkback", "reconcile", "--available-now", "--set", f"storage.root={root}"]
    seconds = []
    for attempt in range(START_UPS + 1):
        began = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
        say(f"start_up: {'makes the tables, ' if attempt == 0 else ''}{seconds[-1]:.1f} s")
    report("start_up", statistics.median(seconds[1:]), "s", START_UPS)


def gateway(root: str) -> None:
    """Half messages acknowledged by `checkback gateway`, the load generator beside it: one a request, and 100."""
    for name, connections, batch in (("gateway_single", 384, 1), ("gateway_batch", 32, 100)):
        rates, p99s = [], []
        for load in measure(f"{root}/{name}", connections, batch, GATEWAY_ROUNDS):
            rates.append(load.acknowledged / load.elapsed)
            p99s.append(statistics.quantiles(load.seconds, n=100, method="inclusive")[98])
            say(f"{name}: {rates[-1]:.0f} half messages/s acknowledged, p99 {p99s[-1] * 1000:.0f} ms")
        report(
            name,
            statistics.median(rates),
            "half messages/s",
            GATEWAY_ROUNDS,
            p99_ms=round(statistics.median(p99s) * 1000),
            connections=connections,
            batch=batch,
            body_bytes=BODY_BYTES,
        )


def maintain(root: str) -> None:
    """A commit and a look at `half` with 3,000 small files, the run that makes them few, and the same after it."""
    small = SmallFiles(root)
    for number in range(1, SMALL_FILES + 1):
        small.commit()
        if number % 500 == 0:
            say(f"maintain: {number} commits")

    def look(when: str) -> None:
        times = small.times(LOOKS)
        report(
            f"maintain_commit_{when}", statistics.median(times.commits) * 1000, "ms", LOOKS, worst=max(times.commits)
        )
        report(f"maintain_open_{when}", statistics.median(times.opens) * 1000, "ms", LOOKS, worst=max(times.opens))

    look("before")
    done = small.maintain()
    report("maintain", done.seconds, "s", 1, files_before=done.files_before, files_after=done.files_after)
    look("after")


BENCHES: dict[str, Callable[[str], None]] = {
    "catch_up": catch_up,
    "steady_latency": steady_latency,
    "start_up": start_up,
    "gateway": gateway,
    "maintain": maintain,
}


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all: each in a process of its own, so that none warms another."""
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        print(f"bench: there is no {unknown[0]}; one of {', '.join(BENCHES)}", file=sys.stderr)
        return 2
    if len(names) != 1:
        return max(
            subprocess.run([sys.executable, __file__, name], check=False).returncode for name in names or BENCHES
        )
    with tempfile.TemporaryDirectory(prefix="checkback-bench-") as root:
        BENCHES[names[0]](root)
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
