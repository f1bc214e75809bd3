"""The same work with more cores, and with more executors of a standalone cluster on this machine."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import pyspark

from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

WARM_UP = 2
ROUNDS = 3
#: MB of an executor's JVM
MEMORY = 2048
#: how many at once: cores of one process; executors of one core each, under Spark's own standalone master
MASTERS = {
    "cores": {1: "local[1]", 2: "local[2]"},
    "executors": {n: f"local-cluster[{n},1,{MEMORY}]" for n in (1, 2, 4)},
}


def bench(root: str) -> None:
    """Rounds of 500,000 transactions, each number of cores or executors in a process of its own."""
    n = scaled(500_000, least=2_000)
    for kind, masters in MASTERS.items():
        seconds: dict[int, list[float]] = {}
        for many, master in masters.items():
            seconds[many] = _beside(f"{root}/{kind}-{many}", master, n)
            median = statistics.median(seconds[many])
            efficiency = statistics.median(seconds[1]) / (many * median)
            shape = {"transactions": n, "master": master, "seconds": rounded(seconds[many])}
            report(f"scale_{many}_{kind}", n / median, "tx/s", ROUNDS, efficiency=round(efficiency, 3), **shape)


def _beside(root: str, master: str, n: int) -> list[float]:
    command = [sys.executable, "-m", "benchmarks.scale", root, master, str(n)]
    environ = os.environ | {"SPARK_HOME": _spark_home(f"{root}-spark")}
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=Path(__file__).parents[1], env=environ)
    found: list[float] = json.loads(run.stdout)
    return found


def _spark_home(folder: str) -> str:
    """The installed Spark in a folder that may be written to: a standalone worker keeps its files under SPARK_HOME."""
    os.makedirs(folder)
    for entry in os.scandir(os.path.dirname(pyspark.__file__)):
        os.symlink(entry.path, f"{folder}/{entry.name}")
    return folder


def seconds_of_rounds(root: str, master: str, n: int) -> list[float]:
    """The seconds of each counted round, on a Spark of its own."""
    spark = {"spark.executor.memory": f"{MEMORY}m"} if "cluster" in master else {}
    seconds = []
    with lake(root, master, spark=spark) as place:
        load = Load(root)
        with Stepper(place) as stepper:
            for number in range(WARM_UP + ROUNDS):
                seconds.append(stepper.step(lambda: load.land(number * n, n), published=n))  # noqa: B023 - called at once
                say(f"scale: {master}: {n} transactions in {seconds[-1]:.2f} s")
        prove(place, n * (WARM_UP + ROUNDS), 0)
    return seconds[WARM_UP:]


if __name__ == "__main__":
    _root, _master, _n = sys.argv[1:]
    print(json.dumps(seconds_of_rounds(_root, _master, int(_n))))
