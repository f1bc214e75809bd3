"""What scheduled messages cost the traffic beside them: 10 million, due at random within days, or within a day."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.load import SEED, Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

if TYPE_CHECKING:
    from benchmarks.processes import Lakehouse

SCHEDULED = 10_000_000
BATCH = 100_000
#: within how many days they are due, by figure: delay.max, 3 a second, scattered over all segments; 116 a second
DAYS = {"scheduled": 40, "scheduled_day": 1}
_MS_A_DAY = 86_400_000
#: in which they are scheduled, before the first comes due
LOAD_S = 240
#: messages scheduled by one step
_STEP = 1_000_000
WARM_UP = 5
ROUNDS = 5
#: the half queue of those that are scheduled
_LATER = 1


def bench(root: str) -> None:
    """Batches of 100,000 without scheduled messages, then beside 10 million; what comes due is delivered in them."""
    n, batch = scaled(SCHEDULED, least=10_000), scaled(BATCH, least=1_000)
    for name, days in DAYS.items():
        with lake(f"{root}/{name}") as place:
            _figure(place, name, n, batch, days)


def _figure(place: Lakehouse, name: str, n: int, batch: int, days: int) -> None:
    busy, later = Load(place.root), Load(place.root, queue_id=_LATER)
    random = np.random.default_rng(SEED)
    ended = 0
    with Stepper(place) as stepper:

        def traffic(what: str, rounds: int) -> list[float]:
            nonlocal ended
            seconds = []
            for _ in range(rounds):
                first, ended = ended, ended + batch
                seconds.append(stepper.step(lambda: busy.land(first, batch), published=batch))  # noqa: B023 - called at once
                say(f"{name}: {what}: {seconds[-1]:.2f} s")
            return seconds

        traffic("warm-up", WARM_UP)
        without = traffic(f"{batch} new", ROUNDS)
        due = time.time() + scaled(LOAD_S, least=60)
        for first in range(0, n, _STEP):
            due = max(due, time.time() + 60)  # none before it is scheduled: it would be published as it lands
            at = round(due * 1000) + random.integers(0, days * _MS_A_DAY, min(_STEP, n - first))
            seconds = stepper.step(lambda: later.land_scheduled(first, at), 0, scheduled=len(at))  # noqa: B023 - called at once
            say(f"{name}: {first + len(at)} scheduled; {len(at)} in {seconds:.2f} s")
        time.sleep(max(0.0, due - time.time()))
        # The first finds everything as the load has left it, and delivers what has come due since.
        traffic("after the load", 1)
        delivered = stepper.delivered
        beside = traffic(f"{batch} new, {n} scheduled", ROUNDS)
        delivered = stepper.delivered - delivered
    prove(place, ended + stepper.delivered, 0, scheduled=n - stepper.delivered)
    shape = {"scheduled": n, "batch": batch, "days": days, "delivered": delivered}
    ratio = statistics.median(beside) / statistics.median(without)
    report(name, ratio, "ratio", ROUNDS, **shape, seconds=rounded(beside), seconds_without=rounded(without))
