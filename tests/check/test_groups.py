"""P6: a producer group that is dead or slow takes nobody else's turn, and a batch of checks has an end."""

from __future__ import annotations

import heapq
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from check.servers import Received, Server, Wire, reply, request, says, unused_url
from check.test_worker import asked, batches
from checkback.check.circuit_breaker import CircuitBreaker, Limits
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import CheckScheduler
from checkback.check.wire import CheckRequest
from checkback.check.worker import CheckWorker

if TYPE_CHECKING:
    from collections.abc import Mapping

NOON = 1_795_176_000.0
_TIMEOUT_S, _QUICK_S = 5.0, 0.01
_LIMITS = Limits(failures=10, pause_s=30, trial_s=_TIMEOUT_S + 1)


@dataclass
class Batch:
    """Threads that ask in a time of their own. ``takes``: seconds of a try by group; _TIMEOUT_S is no answer.

    ``handed``: when each check was sent, by group; ``ended``: when the last answer was there.
    """

    takes: Mapping[str, float]
    threads: int
    until: float
    handed: dict[str, list[float]] = field(default_factory=dict)
    ended: float = NOON

    def run(self, requests: list[CheckRequest]) -> Batch:
        scheduler, breakers = (
            CheckScheduler(requests, until=self.until),
            {group: CircuitBreaker() for group in self.takes},
        )
        free: list[tuple[float, int]] = [(NOON, number) for number in range(self.threads)]
        busy: list[tuple[float, int, CheckRequest, int]] = []
        while free or busy:
            # Whoever is ready first: a try that ends, or a thread that takes the next.
            if busy and (not free or busy[0][0] <= free[0][0]):
                now, number, done, turn = heapq.heappop(busy)
                group = done.producer_group
                scheduler.done(done)
                if self.takes[group] < _TIMEOUT_S:
                    breakers[group] = breakers[group].answered(now, turn)
                elif turn >= 0:
                    breakers[group] = breakers[group].broken(now, turn, _LIMITS)
                self.ended = max(self.ended, now)
                heapq.heappush(free, (now, number))
                continue
            now, number = heapq.heappop(free)
            taken = scheduler.take(now)
            if not isinstance(taken, CheckRequest):
                continue  # nobody has a limit here: there is none left, or the time is over
            group = taken.producer_group
            entered = breakers[group].enter(now, _LIMITS)
            self.handed.setdefault(group, []).append(now)
            if entered is None:
                heapq.heappush(busy, (now, number, taken, -1))
            else:
                breakers[group] = entered
                heapq.heappush(busy, (now + self.takes[group], number, taken, entered.turn))
        return self


def _requests(**counts: int) -> list[CheckRequest]:
    return [request(group=group, offset=offset) for group, count in counts.items() for offset in range(count)]


@given(
    st.integers(2, 32),
    st.integers(1, 400),
    st.integers(1, 2000),
    st.sampled_from([_TIMEOUT_S, _TIMEOUT_S - 0.5, 1.0]),
)
def test_every_check_of_a_healthy_group_has_its_turn_in_the_same_batch(
    threads: int, healthy: int, sick: int, takes: float
) -> None:
    """At the latest when it would have had half of the threads to itself: the other group, dead or slow, has the rest.

    And the batch ends at its time, plus one try.
    """
    until = NOON + 30
    alone = Batch({"well": _QUICK_S}, max(1, threads // 2), until).run(_requests(well=healthy))
    both = Batch({"well": _QUICK_S, "sick": takes}, threads, until).run(_requests(sick=sick, well=healthy))
    assert len(both.handed["well"]) == healthy == len(alone.handed["well"])
    for together, by_itself in zip(both.handed["well"], alone.handed["well"], strict=True):
        assert together <= by_itself + _QUICK_S + 1e-6
    assert both.ended <= until + takes


@given(st.integers(2, 32), st.integers(1, 5000))
def test_dead_group_holds_a_batch_for_a_few_timeouts_only(threads: int, dead: int) -> None:
    """Its breaker opens; what is left of it is not tried."""
    batch = Batch({"dead": _TIMEOUT_S}, threads, NOON + 3600).run(_requests(dead=dead))
    assert len(batch.handed["dead"]) == dead
    assert batch.ended - NOON <= -(-_LIMITS.failures // threads) * _TIMEOUT_S + 1e-6


def test_dead_and_slow_endpoints_beside_a_healthy_one() -> None:
    """Over HTTP: the slow one gives no answer until every check of the healthy group is there."""
    wanted, all_there, held_up = 60, threading.Event(), []

    def well(received: Received, wire: Wire) -> bool:
        wire.send(reply(says("COMMIT")))
        if len(healthy.received) >= wanted:
            all_there.set()
        return True

    def slow(received: Received, wire: Wire) -> bool:
        if not all_there.wait(30):
            held_up.append(received)
        wire.send(reply(says("UNKNOWN")))
        return True

    with Server(well) as healthy, Server(slow) as sluggish:
        groups = {
            "well": CheckedGroup((healthy.url,)),
            "slow": CheckedGroup((sluggish.url,)),
            "dead": CheckedGroup((unused_url(),)),
        }
        worker = CheckWorker(groups, 40, None, concurrency=8, limits=Limits(failures=2), batch_time_s=60)
        given = [*batches("slow", 30), *batches("dead", 30), *batches("well", wanted)]
        answers, _ = asked(worker, given)
    said = {group: [row["outcome"] for row in answers if row["producer_group"] == group] for group in groups}
    assert said["well"] == ["COMMIT"] * wanted
    assert said["slow"] == ["UNKNOWN"] * 30
    assert said["dead"] == ["NO_ANSWER"] * 30
    assert held_up == []
