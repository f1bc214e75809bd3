"""A million scheduled messages that come due within a minute, and the commits that go on meanwhile.

The due times are at random: each batch delivers a few messages of every segment, from all over `half`.
"""

from __future__ import annotations

import time

import numpy as np

from benchmarks.application import Application
from benchmarks.lateness import lateness
from benchmarks.load import SEED, Load
from benchmarks.proof import prove_tables
from benchmarks.report import p99, report, say, scaled
from benchmarks.traffic import Traffic
from benchmarks.visible import Visible

SCHEDULED = 1_000_000
PER_SECOND = 1_000
#: in which they come due
STORM_S = 60
#: from landing until a minute of usual traffic begins: they are scheduled, and all gets warm
WARM_UP_S = 90
USUAL_S = 60
#: ops that land so shortly before the storm may wait for its first batches, too
MARGIN_S = 3
_LATER = 1


def bench(root: str) -> None:
    """Deliveries a second, how late they are, and the delay of commits meanwhile."""
    n, per_second = scaled(SCHEDULED, least=2_000), scaled(PER_SECOND, least=100)
    storm, usual = scaled(STORM_S, least=5), scaled(USUAL_S, least=5)
    warm_up = MARGIN_S + scaled(WARM_UP_S, least=20)
    later = Load(root, queue_id=_LATER)
    topics = [f"topics/topic_{topic}" for topic in range(later.topics)]
    with (
        Application(root) as application,
        Visible(root, topics) as visible,
        Visible(root, ["deliveries"]) as delivered,
    ):
        with Traffic(root, per_second, queue_id=0) as traffic:
            due = time.time() + warm_up + usual
            at = round(due * 1000) + np.random.default_rng(SEED).integers(0, storm * 1000, n)
            later.land_scheduled(0, at)
            say(f"delay_storm: {n} scheduled, due in {due - time.time():.0f} s")
            time.sleep(max(0.0, due + storm - time.time()))
            application.until(lambda: delivered.count >= n)
        application.until(lambda: visible.count >= n + traffic.transactions)
    late = lateness(visible, _LATER, at)
    last = float((at / 1000 + late).max()) - due
    begin = due + (time.monotonic() - time.time())
    before = traffic.delays(visible, begin - MARGIN_S - usual, begin - MARGIN_S).tolist()
    during = traffic.delays(visible, begin - MARGIN_S, begin + last).tolist()
    prove_tables(root, n + traffic.transactions, 0)
    say(f"delay_storm: {n} delivered in {last:.1f} s; {np.median(late):.2f} s late")
    shape = {"scheduled": n, "due_within_s": storm, "commits_per_second": per_second}
    report("delay_storm", n / last, "deliveries/s", 1, **shape)
    report("delay_storm_late_p99", p99(late.tolist()), "s", n, **shape, worst=round(float(late.max()), 3))
    report("delay_storm_p99", p99(during), "s", len(during), **shape, worst=round(max(during), 3))
    report("delay_storm_p99_ratio", p99(during) / p99(before), "ratio", len(during), p99_before=round(p99(before), 3))
