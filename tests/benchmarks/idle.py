"""What an application costs while nothing happens."""

from __future__ import annotations

import time

from benchmarks.application import Application
from benchmarks.load import Load
from benchmarks.report import report, say, scaled

SECONDS = 60
#: after the last batch, before it is looked at
SETTLE = 20
#: by figure, reconcile.trigger
TRIGGERS = {"idle": "2s", "idle_100ms": "100ms", "idle_0s": "0s"}


def bench(root: str) -> None:
    """CPU of `checkback reconcile` with empty tables, and with 100,000 pending of which none is due."""
    for name, trigger in TRIGGERS.items():
        place = f"{root}/{name}"
        with Application(place, reconcile__trigger=trigger, transaction__timeout="10h") as application:
            _figure(application, name, trigger, 0)
            if name == "idle":
                pending, before = scaled(100_000, least=100), application.batches()
                Load(place).land_half(0, pending)
                application.until(lambda: application.batches() > before)  # noqa: B023 - called at once
                _figure(application, "idle_pending", trigger, pending)


def _figure(application: Application, name: str, trigger: str, pending: int) -> None:
    seconds = scaled(SECONDS, least=3)
    application.quiet(scaled(SETTLE, least=3))
    batches, spent, began = application.batches(), application.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    used = sum(now - spent.get(process, 0.0) for process, now in application.cpu_seconds().items())
    share = used / (time.monotonic() - began) * 100
    batches = application.batches() - batches
    say(f"{name}: {share:.1f} % of a core, {batches} batches")
    report(name, share, "% of a core", 1, pending=pending, seconds=seconds, batches=batches, trigger=trigger)
