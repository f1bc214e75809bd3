"""The next timer that is due, so that a continuous run starts a batch when nothing has landed.

Spark's no-data batches would start one at every trigger while there is an operator with timers: a second of work each.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.reconcile.state.state_codec import AT_ONCE, NO_TIMER

if TYPE_CHECKING:
    from collections.abc import Iterable

    from checkback.reconcile.records.segment_records import Records

Key = tuple[int, int]
_FIELDS = ("queue_id", "segment", "wake", "batch_time")


class WakeTimers:
    """The segments' timers, as far as they are known. Thread-safe."""

    def __init__(self) -> None:
        self._at: dict[Key, int] = {}
        self._put_off: set[Key] = set()
        self._told: set[Key] | None = set()  # None once the checkpoint's timers are known
        self._asked = self._begun = False
        self._next_try: int | None = None
        self._now: int | None = None
        self._lock = threading.Lock()

    def update(self, told: Records, next_try: int | None = None) -> None:
        """Update after a batch: SEGMENT records (`reconcile.records.actions`) of the segments it touched.

        ``next_try``: time of the next retry of a topic table (ms); None = no message waits for one.
        """
        with self._lock:
            self._asked, self._begun, self._next_try = False, True, next_try
            for queue_id, segment, wake, time in zip(*(told[name].tolist() for name in _FIELDS), strict=True):
                key = queue_id, segment
                self._put_off.discard(key)
                if wake == NO_TIMER:
                    self._at.pop(key, None)
                elif wake == AT_ONCE:
                    # Not before the timer: if the clock was set back, earlier batches would be no-ops.
                    self._at[key] = time + 1
                    self._put_off.add(key)
                else:
                    self._at[key] = wake
                if self._told is not None:
                    self._told.add(key)

    def at_once(self, now: int) -> bool:
        """True if a batch deferred work that can be done at ``now`` (ms)."""
        with self._lock:
            return self._next_try == AT_ONCE or any(self._at[key] <= now for key in self._put_off)

    @property
    def next_try(self) -> int | None:
        """Time of the next retry of a topic table (ms); None = no message waits for one."""
        with self._lock:
            return self._next_try

    @property
    def wants_to_know(self) -> bool:
        """True if the checkpoint's timers are unknown, after the first batch: not earlier, to start fast."""
        with self._lock:
            return self._begun and self._told is not None

    @property
    def timers(self) -> tuple[tuple[int, int, int], ...] | None:
        """All timers: (queue_id, segment, ms); None while those of the checkpoint are unknown."""
        with self._lock:
            return None if self._told is not None else tuple((*key, at) for key, at in self._at.items())

    def know(self, timers: Iterable[tuple[int, int, int]]) -> None:
        """Add the checkpoint's timers: (queue_id, segment, ms). Those reported by batches since are newer."""
        with self._lock:
            told, self._told = self._told or set(), None
            for queue, segment, at in timers:  # a segment may have two
                if (queue, segment) not in told:
                    self._at[queue, segment] = min(at, self._at.get((queue, segment), at))

    def due(self, now: int) -> bool:
        """True if a batch is needed at ``now`` (ms): once per batch, and always while not all timers are known.

        Also if the clock was set back while a message waits for its topic's table: its retry is then too far ahead.
        """
        with self._lock:
            back = self._next_try is not None and self._now is not None and now < self._now
            self._now = now
            if self._asked:
                return False
            tries = () if self._next_try is None else (self._next_try,)
            self._asked = back or self._told is not None or min([*self._at.values(), *tries], default=now + 1) <= now
            return self._asked
