"""How many half messages are pending, and since when, by what the segments say of themselves."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.reconcile.actions import AS_BEFORE

if TYPE_CHECKING:
    from checkback.reconcile.segment import Records

_FIELDS = ("queue_id", "segment", "pending", "oldest")


class PendingCount:
    """The segments with pending half messages, as the last batch left them that touched them.

    Of segments that no batch has touched since the start it knows if ``update`` was told of them before.
    """

    def __init__(self) -> None:
        self._segments: dict[tuple[int, int], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def update(self, told: Records) -> None:
        """SEGMENT records (`reconcile.actions`) of a batch."""
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
        """Pending half messages."""
        with self._lock:
            return sum(pending for pending, _ in self._segments.values())

    @property
    def oldest(self) -> int | None:
        """Birth of the oldest (ms); None = nothing is pending."""
        with self._lock:
            return min((oldest for _, oldest in self._segments.values()), default=None)
