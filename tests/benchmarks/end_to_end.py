"""From a producer's request to its message visible in the topic table: gateway and reconcile side by side."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from benchmarks.application import Application
from benchmarks.producers import BODY_BYTES, TOPICS, Load, produce_beside
from benchmarks.proof import prove_tables
from benchmarks.report import report, say, scaled
from benchmarks.sdk_load import send_beside
from benchmarks.visible import Visible
from checkback.errors import CheckbackError
from gateway.process import Gateway

if TYPE_CHECKING:
    from collections.abc import Callable

THREADS = 64
CONNECTIONS = 32
BATCH = 100
WARM_UP_S = 30
SECONDS = 60


def bench(root: str) -> None:
    """Transactions that become visible in a minute: a service's threads send them one after the other through the SDK.

    Then: producers send batches of 100, and commit each.
    """
    _measure(
        "end_to_end",
        f"{root}/sdk",
        lambda gateway, s: send_beside("threads", THREADS, s, [gateway.url]),
        threads=THREADS,
    )
    _measure(
        "end_to_end_batches",
        f"{root}/batches",
        lambda gateway, s: produce_beside(gateway.port, CONNECTIONS, BATCH, s, "producer", ends=True),
        batch=BATCH,
        connections=CONNECTIONS,
    )


def _measure(name: str, root: str, produce: Callable[[Gateway, float], Load], **details: Any) -> None:
    warm_up, seconds = scaled(WARM_UP_S, least=5), scaled(SECONDS, least=5)
    tables = [f"topics/topic_{topic}" for topic in range(TOPICS)]
    with (
        Application(root) as application,
        Gateway(root, "gateway.dedup_window=1m") as running,
        Visible(root, tables) as visible,
    ):
        begin = time.monotonic() + warm_up
        load = produce(running, warm_up + seconds)
        if load.ended != load.acknowledged:
            raise CheckbackError(f"{load.acknowledged} half messages were acknowledged, and {load.ended} ops")
        ended = time.monotonic()
        application.until(lambda: visible.count >= load.ended)
        behind = time.monotonic() - ended
        rows = visible.come(begin, begin + seconds)
    say(f"{name}: {rows / seconds:.0f} tx/s visible, {load.ended / load.elapsed:.0f} acknowledged")
    prove_tables(root, load.ended, 0)
    report(
        name,
        rows / seconds,
        "tx/s",
        1,
        seconds=seconds,
        body_bytes=BODY_BYTES,
        acknowledged_per_second=round(load.ended / load.elapsed),
        all_visible_after_s=round(behind, 1),
        **details,
    )
