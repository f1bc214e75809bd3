"""Transactions that land all the time: half messages every 200 ms, their ops a second later; and how late each is."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.load import Load
from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from benchmarks.visible import Visible

TICK_S = 0.2
#: from half messages to their ops
TICKS_TO_OPS = 5


class Traffic:
    """Lands so many transactions a second, committed by delta-rs as the gateway commits. Use as a context.

    At its end all ops have landed, too. ``landed``: when each tick's ops had (time.monotonic).
    """

    def __init__(self, root: str, per_second: int, queue_id: int = 0) -> None:
        self._load = Load(root, queue_id=queue_id)
        self.queue_id = queue_id
        self._tick = max(1, round(per_second * TICK_S))
        self.landed: list[float] = []
        self._ending = threading.Event()
        self._failed: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Traffic:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        if self._failed is not None:
            raise CheckbackError(f"the traffic has ended: {self._failed}") from self._failed

    @property
    def transactions(self) -> int:
        """Transactions whose ops have landed."""
        return len(self.landed) * self._tick

    def delays(self, visible: Visible, begin: float, end: float) -> NDArray[np.float64]:
        """Seconds from landed to visible of the transactions whose ops landed between two times.

        Raises CheckbackError when one has not become visible, or more than once.
        """
        offsets, seen = visible.rows("half_queue_offset", "half_queue_id", self.queue_id)
        return delays(np.array(self.landed), self._tick, offsets, seen, begin, end)

    def _run(self) -> None:
        try:
            begin, halves = time.monotonic(), 0
            while not self._ending.is_set() or len(self.landed) < halves:
                if not self._ending.is_set():
                    self._load.land_half(halves * self._tick, self._tick)
                    halves += 1
                if halves - len(self.landed) > TICKS_TO_OPS or self._ending.is_set():
                    first = len(self.landed) * self._tick
                    self._load.land_op(np.arange(first, first + self._tick))
                    self.landed.append(time.monotonic())
                self._ending.wait(begin + halves * TICK_S - time.monotonic())
        except Exception as error:  # noqa: BLE001 - told where the thread is joined
            self._failed = error


def delays(
    landed: NDArray[np.float64],
    tick: int,
    offsets: NDArray[np.int64],
    seen: NDArray[np.float64],
    begin: float,
    end: float,
) -> NDArray[np.float64]:
    """Seconds from landed to seen, of the ticks that landed between two times.

    ``landed``: by tick, each of ``tick`` offsets. ``seen``: when each of ``offsets`` was. Raises CheckbackError when
    one of all that landed was not seen, or was seen twice.
    """
    if not np.array_equal(np.sort(offsets), np.arange(len(landed) * tick)):
        lost = len(landed) * tick - len(np.unique(offsets))
        raise CheckbackError(f"{lost} transactions were not published, {len(offsets)} rows were")
    since = landed[offsets // tick]
    return np.asarray((seen - since)[(since >= begin) & (since < end)])
