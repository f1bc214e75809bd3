"""Tables in an object store: the requests of a batch, what latency makes of it, and a run with nothing to do.

The store is moto behind a proxy that counts requests, both in Python on the same cores: their time is in the figures.
`beside_folder` has those without a proxy.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time

from benchmarks.application import command
from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper
from checkback.storage.files.object_store import register
from support.fault_proxy import fault_proxy, requests_since, set_latency
from support.s3_server import BUCKET, options, s3_server

WARM_UP, ROUNDS = 5, 10
#: latency that is added to each request (s)
LATENCIES = (0.0, 0.02)
#: a reconcile that runs on has nothing more to do when its requests in so many seconds are those in the ones before
SETTLE_S = 10


def bench(root: str) -> None:
    """Batches of 1,000 transactions in a store, in one that takes 20 ms longer for each request, and in a folder."""
    n = scaled(1_000, least=20)
    found: dict[int, list[float]] = {}
    with s3_server() as upstream, fault_proxy(upstream) as port:
        for latency_s in LATENCIES:
            set_latency(port, latency_s)
            latency_ms = round(latency_s * 1000)
            found[latency_ms] = _in_store(port, f"s3://{BUCKET}/{latency_ms}", n, latency_ms)
    with lake(f"{root}/lake") as place, Stepper(place) as stepper:  # last: the JVM of the first has the JARs for S3
        folder, _ = _batches(stepper, Load(place.root), n)
    for latency_ms, seconds in found.items():
        ratio = statistics.median(seconds) / statistics.median(folder)
        details = {"seconds": rounded(seconds), "seconds_folder": rounded(folder)}
        report("object_store_latency", ratio, "ratio", ROUNDS, transactions=n, latency_ms=latency_ms, **details)


def _in_store(port: int, store: str, n: int, latency_ms: int) -> list[float]:
    """The seconds of each warm batch; reports its requests, and those of a run with nothing to do."""
    register(store, options(port))
    with lake(store, storage={"root": store, "options": options(port)}) as place:
        with Stepper(place) as stepper:
            seconds, requests = _batches(stepper, Load(store), n, port)
        prove(place, (WARM_UP + ROUNDS) * n, 0)
    total = statistics.median(sum(each.values()) for each in requests)
    kinds = {kind: statistics.median(each.get(kind, 0) for each in requests) for kind in sorted(requests[-1])}
    report("object_store_requests", total, "requests", ROUNDS, transactions=n, latency_ms=latency_ms, **kinds)
    environ = os.environ | {name.upper(): value for name, value in options(port).items()}
    _idle(port, store, environ, latency_ms)
    if not latency_ms:
        _running(port, store, environ)
    return seconds


def _batches(stepper: Stepper, load: Load, n: int, port: int | None = None) -> tuple[list[float], list[dict[str, int]]]:
    """The seconds and, at a proxy, the requests of each warm batch."""
    seconds, requests = [], []
    for number in range(WARM_UP + ROUNDS):

        def land(first: int = number * n) -> None:
            load.land(first, n)
            if port is not None:
                requests_since(port)

        seconds.append(stepper.step(land, n))
        requests.append({} if port is None else requests_since(port))
        say(f"object_store: {n} transactions in {seconds[-1]:.2f} s, {requests[-1]}")
    return seconds[WARM_UP:], requests[WARM_UP:]


def _idle(port: int, store: str, environ: dict[str, str], latency_ms: int) -> None:
    """`checkback reconcile --available-now` as a process with nothing to do."""
    line = command(store, "reconcile", "--available-now")
    seconds = []
    for number in range(4):  # the first one drains the tables
        requests_since(port)
        began = time.perf_counter()
        subprocess.run(line, env=environ, check=True, stdout=subprocess.DEVNULL)
        seconds.append(time.perf_counter() - began)
        requests = requests_since(port)
        say(f"object_store: run {number}: {seconds[-1]:.2f} s, {requests}")
    counted = rounded(seconds[1:])
    report("object_store_idle", statistics.median(counted), "s", 3, latency_ms=latency_ms, seconds=counted)
    report("object_store_idle_requests", sum(requests.values()), "requests", 1, latency_ms=latency_ms, **requests)


def _within(port: int, seconds: int) -> dict[str, int]:
    requests_since(port)
    time.sleep(seconds)
    return requests_since(port)


def _running(port: int, store: str, environ: dict[str, str]) -> None:
    """The requests of a minute of `checkback reconcile` with nothing to do, `reconcile.trigger` 2 s."""
    line = command(store, "reconcile", reconcile__trigger="2s")
    with subprocess.Popen(line, env=environ, stdout=subprocess.DEVNULL) as process:
        before, requests = None, _within(port, SETTLE_S)
        while not requests.get("LIST") or requests != before:
            before, requests = requests, _within(port, SETTLE_S)
        requests = _within(port, 60)
        process.terminate()
    say(f"object_store: a minute of nothing: {requests}")
    report("object_store_idle_minute", sum(requests.values()), "requests", 1, trigger="2s", **requests)
