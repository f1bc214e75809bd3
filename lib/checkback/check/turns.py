"""Threads that ask for many groups at once, so that a group whose producer hangs does not hold up the others."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING
from zlib import crc32

from checkback.check.pace import Pace, Rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from checkback.check.exchange import CheckAnswer, CheckRequest


class Turns:
    """Requests that wait, handed out so that groups share the threads and none goes faster than it may.

    Next comes a request of the group with the fewest under way: of two groups each has half the threads, whatever
    the one's producer does, and all of them once the other has nothing left. A group that has to wait for its ``rates``
    holds no thread. Within a group the order is another one for each check, so that those who come last, and may be
    left when the time is over, are not always the same, nor stand always behind the same ones that make an endpoint
    fail.

    ``paces``: what the groups used of their rates before. ``until``: nothing is handed out from then on. Times are
    seconds since the epoch.
    """

    def __init__(
        self,
        requests: Sequence[CheckRequest],
        rates: Mapping[str, Rate] | None = None,
        paces: Mapping[str, Pace] | None = None,
        until: float = float("inf"),
    ) -> None:
        self._waiting: dict[str, deque[CheckRequest]] = defaultdict(deque)
        for request in sorted(requests, key=lambda request: crc32(request.webhook_id.encode())):
            self._waiting[request.producer_group].append(request)
        self._under_way: Counter[str] = Counter()
        self._rates = rates or {}
        self._paces = dict(paces or {})
        self._until = until
        self._lock = Lock()

    def take(self, now: float) -> CheckRequest | float | None:
        """The next request, or seconds until there may be one; None when there is none any more."""
        with self._lock:
            if not self._waiting or now >= self._until:
                return None
            waits = {group: self._wait(group, now) for group in self._waiting}
            ready = [group for group, wait in waits.items() if not wait]
            if not ready:
                return min(*waits.values(), self._until - now)
            group = min(ready, key=self._under_way.__getitem__)
            self._under_way[group] += 1
            requests = self._waiting.pop(group)
            request = requests.popleft()
            if requests:
                self._waiting[group] = requests  # behind the groups that have as few under way
            if group in self._rates:
                pace = self._paces.get(group, Pace())
                self._paces[group] = pace.sent(now, self._rates[group], request.webhook_id)
            return request

    def done(self, request: CheckRequest) -> None:
        """A request that was taken has its outcome."""
        with self._lock:
            self._under_way[request.producer_group] -= 1

    def left(self) -> Iterator[CheckRequest]:
        """The requests that were not handed out."""
        for requests in self._waiting.values():
            yield from requests

    def paces(self) -> dict[str, Pace]:
        """What the groups have used of their rates."""
        return dict(self._paces)

    def _wait(self, group: str, now: float) -> float:
        rate = self._rates.get(group)
        return 0.0 if rate is None else self._paces.get(group, Pace()).wait(now, rate)


def ask_all(
    ask: Callable[[CheckRequest], CheckAnswer],
    turns: Turns,
    threads: int,
    clock: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> list[tuple[CheckRequest, CheckAnswer]]:
    """Every request that had its turn with its answer, in the order of the answers.

    ``ask`` is called from ``threads`` threads. What had no turn is ``turns.left()`` afterwards.
    """
    answers: list[tuple[CheckRequest, CheckAnswer]] = []

    def work() -> None:
        while (taken := turns.take(clock())) is not None:
            if isinstance(taken, float):
                sleep(taken)
                continue
            try:
                answers.append((taken, ask(taken)))
            finally:
                turns.done(taken)

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="check") as pool:
        for worker in [pool.submit(work) for _ in range(min(threads, sum(1 for _ in turns.left())))]:
            worker.result()
    return answers
