"""Threads that ask for many groups at once, so that a group whose producer hangs does not hold up the others."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.check.exchange import CheckAnswer, CheckRequest


class Turns:
    """Requests that wait, handed out so that groups share the threads.

    Next comes a request of the group with the fewest under way: of two groups each has half the threads, whatever
    the one's producer does, and all of them once the other has nothing left.
    """

    def __init__(self, requests: Sequence[CheckRequest]) -> None:
        self._waiting: dict[str, deque[CheckRequest]] = defaultdict(deque)
        for request in requests:
            self._waiting[request.producer_group].append(request)
        self._under_way: Counter[str] = Counter()
        self._lock = Lock()

    def take(self) -> CheckRequest | None:
        """The next request; None when none waits."""
        with self._lock:
            if not self._waiting:
                return None
            group = min(self._waiting, key=self._under_way.__getitem__)
            self._under_way[group] += 1
            requests = self._waiting.pop(group)
            request = requests.popleft()
            if requests:
                self._waiting[group] = requests  # behind the groups that have as few under way
            return request

    def done(self, request: CheckRequest) -> None:
        """A request that was taken has its outcome."""
        with self._lock:
            self._under_way[request.producer_group] -= 1


def ask_all(
    ask: Callable[[CheckRequest], CheckAnswer], requests: Sequence[CheckRequest], threads: int
) -> list[tuple[CheckRequest, CheckAnswer]]:
    """Every request with its answer, in the order of the answers. ``ask`` is called from ``threads`` threads."""
    turns = Turns(requests)
    answers: list[tuple[CheckRequest, CheckAnswer]] = []

    def work() -> None:
        while (request := turns.take()) is not None:
            try:
                answers.append((request, ask(request)))
            finally:
                turns.done(request)

    with ThreadPoolExecutor(max_workers=max(1, threads), thread_name_prefix="check") as pool:
        for worker in [pool.submit(work) for _ in range(min(threads, len(requests)))]:
            worker.result()
    return answers
