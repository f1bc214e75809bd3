"""What pending transactions cost: those that a batch does not touch, and ops spread over all of them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.load import SEED, Load
from benchmarks.processes import lake
from benchmarks.proof import prove
from benchmarks.report import report, rounded, say, scaled
from benchmarks.stepper import Stepper

if TYPE_CHECKING:
    from collections.abc import Callable

#: how many are pending, by figure
PENDING = {"none": 0, "100k": 100_000, "1m": 1_000_000, "10m": 10_000_000}
#: among how many of them the ops of one batch are spread
SPREAD = "1m"
WARM_UP = 5
ROUNDS = 5
#: the half queue of those that stay pending
_WAITING = 1


class _Work:
    """Two half queues: of one each transaction ends in the batch that takes it, the others wait."""

    def __init__(self, root: str, stepper: Stepper) -> None:
        self._stepper = stepper
        self._busy, self._waiting = Load(root), Load(root, body_bytes=32, queue_id=_WAITING)
        self.ended = self.waiting = self.answered = 0

    def new(self, n: int) -> float:
        """Seconds of a batch of new transactions with their ops."""
        first, self.ended = self.ended, self.ended + n
        return self._stepper.step(lambda: self._busy.land(first, n), published=n)

    def wait(self, n: int, most: int) -> None:
        """Let half messages without ops land until ``n`` of them have, ``most`` a batch."""
        while self.waiting < n:
            first, more = self.waiting, min(most, n - self.waiting)
            self.waiting += more
            seconds = self._stepper.step(lambda: self._waiting.land_half(first, more), 0, pending=more)  # noqa: B023 - called at once
            say(f"flat_state: {self.waiting} waiting; a batch of {more} in {seconds:.2f} s")

    def answer(self, offsets: np.ndarray) -> float:
        """Seconds of a batch of ops for some that wait."""
        n = len(offsets)
        self.answered += n
        return self._stepper.step(lambda: self._waiting.land_op(offsets), published=n, pending=-n)


def bench(root: str) -> None:
    """Batches of 100,000 with 0 to 10 million others pending; a batch of 1,000 ops spread over a million."""
    n, few = scaled(100_000, least=1_000), scaled(1_000, least=20)
    pending = {name: scaled(size, least=0) for name, size in PENDING.items()}
    some = np.random.default_rng(SEED).permutation(pending[SPREAD])[: few * (ROUNDS + 1)].reshape(-1, few)
    seconds: dict[str, list[float]] = {}
    with lake(root) as place:
        with Stepper(place) as stepper:
            work = _Work(root, stepper)
            _rounds("warm-up", lambda _: work.new(n), WARM_UP)
            seconds["few"] = _rounds(f"{few} new", lambda _: work.new(few))
            for name, size in pending.items():
                work.wait(size, most=pending[SPREAD])
                seconds[name] = _rounds(f"{n} new, {size} waiting", lambda _: work.new(n))
                if name == SPREAD:
                    seconds["random"] = _rounds(
                        f"{few} ops for {size} waiting", lambda number: work.answer(some[number])
                    )
        prove(place, work.ended + work.answered, work.waiting - work.answered)
    for name in list(pending)[1:]:
        _ratio(f"flat_state_{name}", seconds[name], seconds["none"], batch=n, pending=pending[name])
    _ratio("flat_state_random", seconds["random"], seconds["few"], batch=few, pending=pending[SPREAD])


def _rounds(what: str, work: Callable[[int], float], n: int = ROUNDS) -> list[float]:
    """The seconds of ``n`` rounds, after one that finds everything as other work has left it."""
    seconds = []
    for number in range(n + 1):
        seconds.append(work(number))
        say(f"flat_state: {what}: {seconds[-1]:.2f} s")
    return seconds[1:]


def _ratio(name: str, seconds: list[float], without: list[float], **shape: int) -> None:
    ratio = statistics.median(seconds) / statistics.median(without)
    report(name, ratio, "ratio", ROUNDS, **shape, seconds=rounded(seconds), seconds_without=rounded(without))
