"""What `storage.sync` costs: the gateway and batches of reconcile with it and without, in turn."""

from __future__ import annotations

import statistics

from benchmarks.load import Load
from benchmarks.processes import lake
from benchmarks.producers import BODY_BYTES, produce_beside
from benchmarks.proof import prove
from benchmarks.report import p99, report, rounded, say, scaled
from benchmarks.stepper import Stepper
from gateway.process import Gateway

SECONDS = 10
BATCH = 20_000
WARM_UP, ROUNDS = 1, 3
_WARM_UP_BATCHES, _BATCHES = 10, 20


def bench(root: str) -> None:
    """The gateway with one sender and with many, then batches of 20,000 transactions."""
    for name, connections, batch in (("one", 1, 1), ("single", 384, 1), ("batch", 32, 100)):
        _gateway(root, name, connections, batch)
    for sync in (True, False):
        _reconcile(f"{root}/reconcile-{sync}", sync)


def _gateway(root: str, name: str, connections: int, batch: int) -> None:
    rates: dict[bool, list[float]] = {True: [], False: []}
    p99s: dict[bool, list[float]] = {True: [], False: []}
    for number in range(WARM_UP + ROUNDS):
        for sync in (True, False):
            place = f"{root}/{name}-{sync}-{number}"
            with Gateway(place, "gateway.dedup_window=1m", f"storage.sync={str(sync).lower()}") as running:
                load = produce_beside(running.port, connections, batch, scaled(SECONDS, least=1), f"round-{number}")
            rates[sync].append(load.acknowledged / load.elapsed)
            p99s[sync].append(p99(load.seconds) * 1000)
            say(f"sync_gateway_{name}: {rates[sync][-1]:.0f} half messages/s, storage.sync {sync}")
    for sync, found in rates.items():
        report(
            f"sync_gateway_{name}",
            statistics.median(found[WARM_UP:]),
            "half messages/s",
            ROUNDS,
            sync=sync,
            p99_ms=round(statistics.median(p99s[sync][WARM_UP:])),
            connections=connections,
            batch=batch,
            body_bytes=BODY_BYTES,
            rounds=rounded(found[WARM_UP:]),
        )


def _reconcile(root: str, sync: bool) -> None:
    n = scaled(BATCH, least=200)
    with lake(root, storage={"sync": sync}) as place:
        load = Load(place.root, 256)
        with Stepper(place) as stepper:
            seconds = [
                stepper.step(lambda: load.land(number * n, n), n)  # noqa: B023 - called at once
                for number in range(_WARM_UP_BATCHES + _BATCHES)
            ]
        prove(place, (_WARM_UP_BATCHES + _BATCHES) * n, 0)
    median = statistics.median(seconds[_WARM_UP_BATCHES:])
    report(
        "sync_reconcile", median, "s", _BATCHES, sync=sync, transactions=n, seconds=rounded(seconds[_WARM_UP_BATCHES:])
    )
