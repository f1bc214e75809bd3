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
    seconds_late = lateness(visible, _LATER, at).tolist()
    traffic.delays(visible, 0, 0)  # each of them once, too
    prove_tables(root, n + traffic.transactions, 0)
    say(f"{name}: {n} delivered, {statistics.median(seconds_late):.2f} s late, at most {max(seconds_late):.2f} s")
    shape = {"delivered": n, "seconds": seconds, "commits_per_second": commits, "trigger": trigger}
    report(f"{name}_p50", statistics.median(seconds_late), "s", n, **shape)
    report(f"{name}_p99", p99(seconds_late), "s", n, **shape, worst=round(max(seconds_late), 3))


def lateness(visible: Visible, queue_id: int, deliver_at: Offsets) -> NDArray[np.float64]:
    """Seconds from the time of each message of a half queue to visible, by offset; ``deliver_at``: ms since the epoch.

    Raises CheckbackError as `late`.
    """
    offsets, seen = visible.rows("half_queue_offset", "half_queue_id", queue_id)
    return late(deliver_at, offsets, seen + (time.time() - time.monotonic()))


def late(deliver_at: Offsets, offsets: Offsets, seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """The same, of messages seen at times in seconds since the epoch.

    Raises CheckbackError when one was not seen, or twice, or before its time.
    """
    if not np.array_equal(np.sort(offsets), np.arange(len(deliver_at))):
        lost = len(deliver_at) - len(np.unique(offsets))
        raise CheckbackError(f"{lost} scheduled messages were not published, {len(offsets)} rows were")
    found = np.empty(len(offsets))
    found[offsets] = seen - deliver_at[offsets] / 1000
    if (found < 0).any():
        raise CheckbackError(f"a scheduled message was visible {-found.min():.3f} s before its time")
    return found
