"""Tables in an object store beside tables in a folder: a warm batch, throughput, checks, gateway, a scheduled run.

Requests go straight to the server, which is on the same cores: a proxy would pass each body on a second time. The time
that moto takes of the cores is a figure's detail (`server_s`), the sum of its rounds; `store_server` has another one.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
import uuid
from functools import partial
from typing import TYPE_CHECKING

from benchmarks import catch_up, dispatch
from benchmarks.application import command
from benchmarks.load import Load
from benchmarks.processes import GROUP, lake
from benchmarks.producers import BODY_BYTES, produce_beside
from benchmarks.report import p99, report, rounded, say, scaled
from benchmarks.stepper import Stepper
from benchmarks.store_server import server_seconds, store_server
from check.quick_endpoint import endpoint
from check.started import start_check
from checkback.storage.files.object_store import register
from gateway.process import TO_TABLE, Gateway
from support.s3_server import ROOT, options

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.producers import Load as Produced

TRANSACTIONS, BATCH, CHECKS, DUE = 1_000_000, 1_000, 1_000, 100
SECONDS = 10
WARM_UP, ROUNDS = 5, 10
_GATEWAY_ROUNDS = 3
#: runs with checks due only; the first one drains the tables
_RUNS = 4
#: figure, connections, half messages a request
_LOADS = (("single", 32, 1), ("batch", 32, 100))


def bench(root: str) -> None:
    """Each figure in the store and in a folder."""
    with store_server() as port:
        os.environ |= {name.upper(): value for name, value in options(port).items()}
        register(ROOT, options(port))
        _gateway(root)
        _due(root)
        _checks(root)
        _catch_up(root)
        _batch(root, "batch")
        _batch(root, "batch_local_checkpoints", f"{root}/checkpoints")


def _beside(root: str, name: str, measure: Callable[[str], list[float]]) -> tuple[dict[str, list[float]], float]:
    """What ``measure`` says of a place in the store and of one in a folder; and the server's time."""
    before, place = server_seconds(), f"{uuid.uuid4().hex}/{name}"
    found = {"s3": measure(f"{ROOT}/{place}")}
    return found | {"folder": measure(f"{root}/{place}")}, server_seconds() - before


def _batch(root: str, name: str, checkpoints: str | None = None) -> None:
    """A warm batch: a JVM is warm in the second pass. ``checkpoints``: where both have theirs."""
    n = scaled(BATCH, least=20)

    def measure(place: str) -> list[float]:
        storage = {"root": place}
        if checkpoints is not None:
            storage["checkpoints"] = f"{checkpoints}/{uuid.uuid4().hex}"
        with lake(place, storage=storage) as found, Stepper(found) as stepper:
            load = Load(place)
            seconds = [stepper.step(partial(load.land, number * n, n), n) for number in range(WARM_UP + ROUNDS)]
        say(f"object_store_{name}: {place}: {rounded(seconds)}")
        return seconds[WARM_UP:]

    _beside(root, f"{name}_cold", measure)
    seconds, server = _beside(root, name, measure)
    _report_ratio(f"object_store_{name}", seconds, ROUNDS, transactions=n, server_s=round(server, 1))


def _catch_up(root: str) -> None:
    n = scaled(TRANSACTIONS, least=2_000) // catch_up.PENDING_EVERY * catch_up.PENDING_EVERY

    def measure(place: str) -> list[float]:
        with lake(place) as found:
            return catch_up.rounds(found, "object_store_catch_up", n, BODY_BYTES)[0]

    seconds, server = _beside(root, "catch_up", measure)
    ratio = statistics.median(seconds["folder"]) / statistics.median(seconds["s3"])
    rate = round(n / statistics.median(seconds["s3"]))
    details = {"transactions": n, "body_bytes": BODY_BYTES, "per_second": rate, "server_s": round(server, 1)}
    report("object_store_catch_up", ratio, "ratio", catch_up.ROUNDS, **details, **_rounds(seconds))


def _checks(root: str) -> None:
    """A warm batch of the check query."""
    n = scaled(CHECKS, least=20)

    def measure(place: str) -> list[float]:
        with endpoint() as url, lake(place, producers={GROUP: {"endpoints": [url]}}) as found:
            query = start_check(found.spark, found.settings, found.tables, available_now=False)
            for number in range(WARM_UP + ROUNDS):
                rows = dispatch.check_requests(number * n, n)
                found.tables.append_arrow(found.spark, rows, "check_requests")
                query.processAllAvailable()
            batches = [one.batchDuration / 1000 for one in query.recentProgress if one.numInputRows]
            query.stop()
            dispatch.prove(found, n * (WARM_UP + ROUNDS))
        say(f"object_store_checks: {place}: {rounded(batches)}")
        return batches[-ROUNDS:]

    seconds, server = _beside(root, "checks", measure)
    _report_ratio("object_store_checks", seconds, ROUNDS, checks=n, server_s=round(server, 1))


def _due(root: str) -> None:
    """`checkback reconcile --available-now` as a process, of which the checks of all pending transactions are due."""
    n = scaled(DUE, least=20)

    def measure(place: str) -> list[float]:
        Load(place).land_half(0, n)
        seconds = []
        for _ in range(_RUNS):
            line = command(place, "reconcile", "--available-now", transaction__timeout="1s", **_OFTEN)
            began = time.perf_counter()
            subprocess.run(line, check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - began)
            say(f"object_store_due: {place}: {seconds[-1]:.2f} s")
        return seconds[1:]

    seconds, server = _beside(root, "due", measure)
    _report_ratio("object_store_due", seconds, _RUNS - 1, pending=n, server_s=round(server, 1))


_OFTEN = {"transaction__check_interval": "1s"}


def _gateway(root: str) -> None:
    """Answered after the commit."""
    for name, connections, batch in _LOADS:
        loads: list[Produced] = []

        def measure(place: str) -> list[float]:
            done = _produced(place, connections, batch)  # noqa: B023 - called at once
            loads.extend(done)  # noqa: B023
            return [p99(load.seconds) * 1000 for load in done]

        found, server = _beside(root, name, measure)
        rates = [load.acknowledged / load.elapsed for load in loads]
        report(
            f"object_store_gateway_{name}",
            statistics.median(found["s3"]),
            "ms",
            _GATEWAY_ROUNDS,
            p99_ms_folder=round(statistics.median(found["folder"])),
            per_second=round(statistics.median(rates[:_GATEWAY_ROUNDS])),
            per_second_folder=round(statistics.median(rates[_GATEWAY_ROUNDS:])),
            connections=connections,
            batch=batch,
            body_bytes=BODY_BYTES,
            rounds=rounded(found["s3"]),
            server_s=round(server, 1),
        )


def _produced(place: str, connections: int, batch: int) -> list[Produced]:
    """The rounds of producers at a gateway in front of these tables, the first one left out."""
    loads = []
    with Gateway(place, TO_TABLE, "gateway.dedup_window=1m") as running:
        for number in range(1 + _GATEWAY_ROUNDS):
            loads.append(produce_beside(running.port, connections, batch, scaled(SECONDS, least=1), f"round-{number}"))
            rate, slowest = loads[-1].acknowledged / loads[-1].elapsed, p99(loads[-1].seconds) * 1000
            say(f"object_store_gateway: {place}: {rate:.0f} /s, p99 {slowest:.0f} ms")
    return loads[1:]


def _report_ratio(name: str, seconds: dict[str, list[float]], n: int, **details: float) -> None:
    ratio = statistics.median(seconds["s3"]) / statistics.median(seconds["folder"])
    report(name, ratio, "ratio", n, **details, **_rounds(seconds))


def _rounds(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    return {"seconds": rounded(seconds["s3"]), "seconds_folder": rounded(seconds["folder"])}
