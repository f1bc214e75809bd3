"""Number of pending half messages, and the oldest, as reported by the segments."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.reconcile.actions import AS_BEFORE

if TYPE_CHECKING:
    from checkback.reconcile.records import Records

_FIELDS = ("queue_id", "segment", "pending", "oldest")


class PendingCount:
    """The segments with pending half messages, each as of the last batch that touched it.

    Segments that no batch has touched since the start are known only if ``update`` was called for them before.
    """

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def update(self, told: Records) -> None:
        """Apply the SEGMENT records (`reconcile.actions`) of a batch."""
        with self._lock:
            for queue_id, segment, pending, oldest in zip(*(told[name].tolist() for name in _FIELDS), strict=True):
                if pending == AS_BEFORE:
                    continue
                if pending:
                    self._segments[queue_id, segment] = pending, oldest
                else:
                    self._segments.pop((queue_id, segment), None)

    @property
    def pending(self) -> int:
        """Number of pending half messages."""
        with self._lock:
            return sum(pending for pending, _ in self._segments.values())

    @property
    def oldest(self) -> int | None:
        """born_timestamp of the oldest (ms); None = nothing is pending."""
        with self._lock:
            return min((oldest for _, oldest in self._segments.values()), default=None)
