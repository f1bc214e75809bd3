"""When something is next due, so that an application that runs on starts a batch though nothing has landed.

Spark would start one at every trigger as long as there is an operator with timers: a second of work each, for nothing.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.reconcile.state_codec import AT_ONCE, NO_TIMER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkback.reconcile.segment import Records

Key = tuple[int, int]
_FIELDS = ("queue_id", "segment", "wake", "batch_time")


class WakeTimers:
    """The segments' timers, as far as they are known. Every method may be called by any thread."""

    def __init__(self) -> None:
        self._at: dict[Key, int] = {}
        self._put_off: set[Key] = set()
        self._told: set[Key] | None = set()  # until the others are known
        self._asked = self._begun = False
        self._next_try: int | None = None
        self._lock = threading.Lock()

    def update(self, told: Records, next_try: int | None = None) -> None:
        """A batch is done: SEGMENT records (`reconcile.actions`) of the segments that it touched.

        ``next_try``: when a topic's table is to be tried again (ms); None = no message waits for one.
        """
        with self._lock:
            self._asked, self._begun, self._next_try = False, True, next_try
            for queue_id, segment, wake, time in zip(*(told[name].tolist() for name in _FIELDS), strict=True):
                key = queue_id, segment
                self._put_off.discard(key)
                if wake == NO_TIMER:
                    self._at.pop(key, None)
                elif wake == AT_ONCE:
                    # Not sooner than the timer: where the clock was set back, batches before it would do nothing.
                    self._at[key] = time + 1
                    self._put_off.add(key)
                else:
                    self._at[key] = wake
                if self._told is not None:
                    self._told.add(key)

    def at_once(self, now: int) -> bool:
        """Has a batch put off something to the next, and can that do it at ``now`` (ms)?"""
        with self._lock:
            return self._next_try == AT_ONCE or any(self._at[key] <= now for key in self._put_off)

    @property
    def next_try(self) -> int | None:
        """When a topic's table is to be tried again (ms); None = no message waits for one."""
        with self._lock:
            return self._next_try

    @property
    def wants_to_know(self) -> bool:
        """Has a batch been done, and has the checkpoint not told yet? Before, a start has enough to do."""
        with self._lock:
            return self._begun and self._told is not None

    def know(self, timers: Iterable[tuple[int, int, int]]) -> None:
        """What the checkpoint held before: (queue_id, segment, ms). What batches have told since is newer."""
        with self._lock:
            told, self._told = self._told or set(), None
            self._at |= {(queue, segment): at for queue, segment, at in timers if (queue, segment) not in told}

    def due(self, now: int) -> bool:
        """Is a batch needed at ``now`` (ms)? Yes is said once a batch; always while not all timers are known."""
        with self._lock:
            if self._asked:
                return False
            tries = () if self._next_try is None else (self._next_try,)
            self._asked = self._told is not None or min([*self._at.values(), *tries], default=now + 1) <= now
            return self._asked
