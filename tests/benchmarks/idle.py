"""What an application costs while nothing happens."""

from __future__ import annotations

import time

from benchmarks.application import Application
from benchmarks.load import Load
from benchmarks.report import report, say, scaled

SECONDS = 60
#: after the last batch, before it is looked at
SETTLE = 20


def bench(root: str) -> None:
    """CPU of `checkback reconcile` with empty tables, and with 100,000 pending of which none is due."""
    n = scaled(100_000, least=100)
    seconds, settle = scaled(SECONDS, least=3), scaled(SETTLE, least=3)
    with Application(root, reconcile__trigger="2s", transaction__timeout="10h") as application:
        for name, pending in (("idle", 0), ("idle_pending", n)):
            if pending:
                before = application.batches()
                Load(root).land_half(0, pending)
                application.until(lambda: application.batches() > before)  # noqa: B023 - called at once
            application.quiet(settle)
            batches, spent, began = application.batches(), application.cpu_seconds(), time.monotonic()
            time.sleep(seconds)
            used = sum(now - spent.get(process, 0.0) for process, now in application.cpu_seconds().items())
            share = used / (time.monotonic() - began) * 100
            batches = application.batches() - batches
            say(f"{name}: {share:.1f} % of a core, {batches} batches")
            report(name, share, "% of a core", 1, pending=pending, seconds=seconds, batches=batches, trigger="2s")
