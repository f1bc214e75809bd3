"""Schedules in-flight checks fairly over groups: no head-of-line blocking by a group whose producer hangs."""

from __future__ import annotations

import time
import traceback
from collections import Counter, defaultdict, deque
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple, TypeAlias
from zlib import crc32

from checkback.check.connections import Post
from checkback.check.endpoint_health import Rate, RateState
from checkback.check.wire import NO_ANSWER, CheckAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence

    from checkback.check.connections import Connections, Response
    from checkback.check.endpoint import Trial
    from checkback.check.wire import CheckRequest

#: The coroutine of one check: it yields a Post and is sent the Response, or yields a Trial and is sent None when that
#: is over. It returns the answer.
Dialogue: TypeAlias = "Generator[Post | Trial, Response | None, CheckAnswer]"


_LONG_S = float("inf")


class ActiveCheck(NamedTuple):
    """An in-flight check."""

    request: CheckRequest
    dialogue: Dialogue
    started: float


class CheckScheduler:
    """Pending requests, scheduled fairly over groups and within their rate limits.

    The next request is of the group with the fewest in flight: of two groups each gets half the slots, regardless of
    the other's producer, and all of them once the other has no requests left. A group waiting for its rate limit
    (``rates``) holds no slot. Within a group the order differs for each check, so that it is not always the same ones
    that come last, and may be left at the deadline, or that follow requests which make an endpoint fail.

    ``paces``: the groups' earlier use of their rates. ``until``: the deadline for handing out requests. Times are
    seconds since the epoch.
    """

    def __init__(
        self,
        requests: Sequence[CheckRequest],
        rates: Mapping[str, Rate] | None = None,
        paces: Mapping[str, RateState] | None = None,
        until: float = float("inf"),
    ) -> None:
        self._waiting: dict[str, deque[CheckRequest]] = defaultdict(deque)
        for request in sorted(requests, key=lambda request: crc32(request.webhook_id.encode())):
            self._waiting[request.producer_group].append(request)
        self._under_way: Counter[str] = Counter()
        self._rates = rates or {}
        self._paces = dict(paces or {})
        self._until = until

    def take(self, now: float) -> CheckRequest | float | None:
        """The next request, or seconds until there may be one; None if none are left."""
        if not self._waiting or now >= self._until:
            return None
        ready: Iterable[str] = self._waiting
        if self._rates:
            waits = {group: self._wait(group, now) for group in self._waiting}
            ready = [group for group, wait in waits.items() if not wait]
            if not ready:
                return min(*waits.values(), self._until - now)
        group = min(ready, key=self._under_way.__getitem__)
        self._under_way[group] += 1
        requests = self._waiting.pop(group)
        request = requests.popleft()
        if requests:
            self._waiting[group] = requests  # behind the groups with as few in flight
        if group in self._rates:
            pace = self._paces.get(group, RateState())
            self._paces[group] = pace.sent(now, self._rates[group], request.webhook_id)
        return request

    def done(self, request: CheckRequest) -> None:
        """Release the slot of a request that has its outcome."""
        self._under_way[request.producer_group] -= 1

    def left(self) -> Iterator[CheckRequest]:
        """The requests not handed out."""
        for requests in self._waiting.values():
            yield from requests

    def paces(self) -> dict[str, RateState]:
        """The groups' use of their rates."""
        return dict(self._paces)

    def _wait(self, group: str, now: float) -> float:
        rate = self._rates.get(group)
        return 0.0 if rate is None else self._paces.get(group, RateState()).wait(now, rate)


def run_checks(
    begin: Callable[[CheckRequest], Dialogue],
    scheduler: CheckScheduler,
    connections: Connections[ActiveCheck],
    concurrency: int,
    clock: Callable[[], float] = time.time,
    timer: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> list[tuple[CheckRequest, CheckAnswer]]:
    """Every request handed out with its answer, in the order of the answers.

    ``begin`` starts its dialogue: an error in it is NO_ANSWER for that check only. At most ``concurrency`` are in
    flight at a time, all in this thread. Requests not handed out are ``turns.left()`` afterwards.
    """
    answers: list[tuple[CheckRequest, CheckAnswer]] = []
    waiting: list[tuple[Trial, ActiveCheck]] = []
    under_way, most = 0, max(1, concurrency)

    def go_on(asking: ActiveCheck, response: Response | None) -> int:
        """Advance the check by one step; returns 1 if it has ended, else 0."""
        try:
            step = asking.dialogue.send(response)
            if isinstance(step, Post):
                connections.post(step, asking)
            else:
                waiting.append((step, asking))
        except StopIteration as end:
            answer: CheckAnswer = end.value
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 - it affects this check only
            # A failed batch is replayed: one endpoint could block every group forever.
            delivered = response is not None and response.sent
            answer = _given_up(error, clock(), timer() - asking.started, delivered)
        else:
            return 0
        scheduler.done(asking.request)
        answers.append((asking.request, answer))
        return 1

    while True:
        # Step 1: fill the free slots, once: in-flight checks must not starve, however fast new ones end.
        wait_s = 0.0
        for _ in range(most - under_way):
            taken = scheduler.take(clock())
            if taken is None or isinstance(taken, float):
                wait_s = _LONG_S if taken is None else taken
                break
            under_way += 1 - go_on(ActiveCheck(taken, begin(taken), timer()), None)
        # Step 2: wait for something to do.
        if not under_way:
            if wait_s == _LONG_S:
                return answers
            sleep(wait_s)
            continue
        if under_way == most:
            wait_s = _LONG_S
        for trial, _ in waiting:
            wait_s = min(wait_s, max(0.0, trial.until - timer()))
        # Step 3: advance the checks that have a response, then those whose trial is over.
        for asking, response in connections.responses(wait_s):
            under_way -= go_on(asking, response)
        if waiting:
            now = timer()
            over = [asking for trial, asking in waiting if trial.over(now)]
            waiting[:] = [(trial, asking) for trial, asking in waiting if not trial.over(now)]
            for asking in over:
                under_way -= go_on(asking, None)


def _given_up(error: Exception, now: float, seconds: float, delivered: bool) -> CheckAnswer:
    """The answer of a check ended by an internal error. Its text is not quoted: it may contain what was sent."""
    place = traceback.extract_tb(error.__traceback__)[-1].name
    return CheckAnswer(
        outcome=NO_ANSWER,
        endpoint=None,
        error=f"could not be asked: {type(error).__name__} in {place}",
        latency_ms=round(seconds * 1000),
        answered_at=datetime.fromtimestamp(now, tz=timezone.utc),
        delivered=delivered,
    )
