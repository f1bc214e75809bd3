"""A million transactions that come due at once, and the commits that go on meanwhile.

The application is `checkback reconcile` with both queries, as users run it. The producers have no endpoint: each check
is answered NO_ANSWER at once, so that asking takes its share of the machine, and no producer does.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.application import Application
from benchmarks.load import Load
from benchmarks.proof import prove_tables
from benchmarks.report import p99, report, say, scaled
from benchmarks.traffic import Traffic
from benchmarks.visible import Visible
from checkback.errors import CheckbackError

PENDING = 1_000_000
PER_SECOND = 1_000
#: from the birth of those that will be checked until a minute of usual traffic begins: they land, and all gets warm
WARM_UP_S = 90
USUAL_S = 60
#: ops that land so shortly before the storm may wait for its end, too
MARGIN_S = 3
_WAITING = 1
_INTERVAL = "1h"  # one check each


def bench(root: str) -> None:
    """Check requests a second from the moment they are due to the last one visible; and the delay of commits then."""
    n, per_second = scaled(PENDING, least=2_000), scaled(PER_SECOND, least=100)
    warm_up, usual = MARGIN_S + scaled(WARM_UP_S, least=20), scaled(USUAL_S, least=5)
    timeout = f"{warm_up + usual}s"
    topics = [f"topics/topic_{topic}" for topic in range(Load(root).topics)]
    with (
        Application(root, transaction__timeout=timeout, transaction__check_interval=_INTERVAL) as application,
        Visible(root, topics) as visible,
        Visible(root, ["check_requests"]) as requests,
    ):
        with Traffic(root, per_second) as traffic:
            born, due = time.time(), time.monotonic() + warm_up + usual
            Load(root, body_bytes=32, queue_id=_WAITING).land_half(0, n, born)
            say(f"check_storm: {n} half messages landed, due in {due - time.monotonic():.0f} s")
            time.sleep(max(0.0, due - time.monotonic()))
            application.until(lambda: requests.count >= n)
        application.until(lambda: visible.count >= traffic.transactions)
    offsets, seen = _requests(requests)
    if not np.array_equal(np.sort(offsets), np.arange(n)):
        raise CheckbackError(f"{len(offsets)} checks of {len(np.unique(offsets))} transactions, instead of {n}")
    last = float(seen.max())
    before = traffic.delays(visible, due - MARGIN_S - usual, due - MARGIN_S).tolist()
    during = traffic.delays(visible, due - MARGIN_S, last).tolist()
    prove_tables(root, traffic.transactions, n, timeout=timeout, check_interval=_INTERVAL)
    say(f"check_storm: {n} checks in {last - due:.1f} s, the first after {float(seen.min()) - due:.1f} s")
    shape = {"pending": n, "commits_per_second": per_second}
    report("check_storm", n / (last - due), "check requests/s", 1, **shape, seconds=round(last - due, 3))
    report("check_storm_p99", p99(during), "s", len(during), **shape, worst=round(max(during), 3))
    report("check_storm_p99_ratio", p99(during) / p99(before), "ratio", len(during), p99_before=round(p99(before), 3))


def _requests(requests: Visible) -> tuple[np.ndarray, np.ndarray]:
    return requests.rows("queue_offset", "queue_id", _WAITING)
