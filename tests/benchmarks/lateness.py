"""How late scheduled messages are delivered: from their time to visible in the topic table, at 1,000 a second."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.application import Application
from benchmarks.load import SEED, Load
from benchmarks.proof import prove_tables
from benchmarks.report import p99, report, say, scaled
from benchmarks.traffic import Traffic
from benchmarks.visible import Visible
from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.load import Offsets

PER_SECOND = 1_000
#: of the transactions beside them
COMMITS_PER_SECOND = 1_000
#: from landing to the first of them
WARM_UP_S = 60
SECONDS = 60
#: reconcile.trigger, by figure: the default, and a shorter one
TRIGGERS = {"lateness": "2s", "lateness_500ms": "500ms"}
_LATER = 1


def bench(root: str) -> None:
    """p50 and p99 of a minute of `checkback reconcile`, running on, in a process of its own."""
    for name, trigger in TRIGGERS.items():
        _figures(f"{root}/{name}", name, trigger)


def _figures(root: str, name: str, trigger: str) -> None:
    seconds, commits = scaled(SECONDS, least=5), scaled(COMMITS_PER_SECOND, least=100)
    warm_up = scaled(WARM_UP_S, least=20)
    n = seconds * scaled(PER_SECOND, least=100)
    later = Load(root, queue_id=_LATER)
    topics = [f"topics/topic_{topic}" for topic in range(later.topics)]
    with Application(root, reconcile__trigger=trigger) as application, Visible(root, topics) as visible:
        with Traffic(root, commits) as traffic:
            due = time.time() + warm_up
            at = round(due * 1000) + np.random.default_rng(SEED).integers(0, seconds * 1000, n)
            later.land_scheduled(0, at)
            time.sleep(max(0.0, due + seconds - time.time()))
        application.until(lambda: visible.count >= n + traffic.transactions)
    late = lateness(visible, _LATER, at)[0]
    traffic.delays(visible, 0, 0)
    prove_tables(root, n + traffic.transactions, 0)
    say(f"{name}: {n} delivered, {statistics.median(late):.2f} s late, at most {max(late):.2f} s")
    shape = {"delivered": n, "seconds": seconds, "commits_per_second": commits, "trigger": trigger}
    report(f"{name}_p50", statistics.median(late), "s", n, **shape)
    report(f"{name}_p99", p99(late), "s", n, **shape, worst=round(max(late), 3))


def lateness(visible: Visible, queue_id: int, deliver_at: Offsets) -> tuple[list[float], NDArray[np.float64]]:
    """Seconds from the time of each message of a half queue to visible, and when it was (time.monotonic).

    ``deliver_at``: by offset, ms since the epoch. Raises CheckbackError when one has not become visible, or more than
    once, or before its time.
    """
    offsets, seen = visible.rows("half_queue_offset", "half_queue_id", queue_id)
    if not np.array_equal(np.sort(offsets), np.arange(len(deliver_at))):
        lost = len(deliver_at) - len(np.unique(offsets))
        raise CheckbackError(f"{lost} scheduled messages were not published, {len(offsets)} rows were")
    late = seen + (time.time() - time.monotonic()) - deliver_at[offsets] / 1000
    if len(late) and late.min() < 0:
        raise CheckbackError(f"a scheduled message was visible {-late.min():.3f} s before its time")
    return late.tolist(), seen
