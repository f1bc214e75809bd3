"""Numbers of pending half messages and of scheduled messages, and the oldest pending, as the segments report them."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.reconcile.records.actions import AS_BEFORE

if TYPE_CHECKING:
    from checkback.reconcile.records.records import Records

_FIELDS = ("queue_id", "segment", "pending", "oldest", "scheduled")


class PendingCount:
    """The segments with pending half messages or scheduled messages, each as of the last batch that touched it.

    Segments that no batch has touched since the start are known only if ``update`` was called for them before.
    """

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._lock = threading.Lock()

    def update(self, told: Records) -> None:
        """Apply the SEGMENT records (`reconcile.records.actions`) of a batch."""
        with self._lock:
            columns = (told[name].tolist() for name in _FIELDS)
            for queue_id, segment, pending, oldest, scheduled in zip(*columns, strict=True):
                if pending == AS_BEFORE:
                    continue
                if pending or scheduled:
                    self._segments[queue_id, segment] = pending, oldest, scheduled
                else:
                    self._segments.pop((queue_id, segment), None)

    @property
    def pending(self) -> int:
        """Number of pending half messages."""
        with self._lock:
            return sum(pending for pending, _, _ in self._segments.values())

    @property
    def scheduled(self) -> int:
        """Number of scheduled messages."""
        with self._lock:
            return sum(scheduled for _, _, scheduled in self._segments.values())

    @property
    def oldest(self) -> int | None:
        """born_timestamp of the oldest (ms); None = nothing is pending."""
        with self._lock:
            return min((oldest for pending, oldest, _ in self._segments.values() if pending), default=None)
