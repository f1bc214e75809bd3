"""Numbers of pending half messages by group, the oldest pending, and of scheduled messages, as the segments report."""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING

import numpy as np
from xxhash import xxh64_intdigest

from checkback.observe.batch import OTHER
from checkback.reconcile.records.actions import AS_BEFORE, GROUP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.reconcile.records.records import Records

_FIELDS = ("queue_id", "segment", "pending", "oldest", "scheduled")
#: of Spark's xxhash64
_SEED = 42

_Groups = list[tuple[int, int, int]]


def names_by_hash(groups: Iterable[str]) -> dict[int, str]:
    """The groups by the hashes that events and actions name them by, as `identity_columns` does."""
    found = {}
    for name in groups:
        number = xxh64_intdigest(hashlib.sha1(name.encode()).hexdigest().encode(), _SEED)  # noqa: S324 - not for security
        found[number - (number >> 63 << 64)] = name
    return found


class PendingCount:
    """The segments with pending half messages or scheduled messages, each as of the last batch that touched it.

    ``groups``: those with a count of their own; all others are OTHER. Segments that no batch has touched since the
    start are known only if ``update`` was called for them before.
    """

    def __init__(self, groups: Iterable[str] = ()) -> None:
        self._names: Mapping[int, str] = names_by_hash(groups)
        self._segments: dict[tuple[int, int], tuple[int, int, int, _Groups]] = {}
        self._lock = threading.Lock()

    def update(self, told: Records, groups: Records | None = None) -> None:
        """Apply the SEGMENT records (`reconcile.records.actions`) of a batch, and their GROUP records."""
        of: dict[tuple[int, int], _Groups] = {}
        for queue_id, segment, *group in (np.empty(0, GROUP) if groups is None else groups).tolist():
            of.setdefault((queue_id, segment), []).append((group[0], group[1], group[2]))
        with self._lock:
            columns = (told[name].tolist() for name in _FIELDS)
            for queue_id, segment, pending, oldest, scheduled in zip(*columns, strict=True):
                if pending == AS_BEFORE:
                    continue
                key = queue_id, segment
                # Deliveries alone do not read the block: what is pending is as before.
                before = self._segments.get(key, (0, 0, 0, []))[3] if pending else []
                if pending or scheduled:
                    self._segments[key] = pending, oldest, scheduled, of.get(key, before)
                else:
                    self._segments.pop(key, None)

    @property
    def scheduled(self) -> int:
        """Number of scheduled messages."""
        with self._lock:
            return sum(scheduled for _, _, scheduled, _ in self._segments.values())

    def by_group(self) -> dict[str, tuple[int, int | None]]:
        """By group its pending half messages, and born_timestamp of the oldest (ms; None = nothing is pending)."""
        found: dict[str, tuple[int, int | None]] = dict.fromkeys((*self._names.values(), OTHER), (0, None))
        with self._lock:
            for pending, oldest, _, groups in self._segments.values():
                told = sum(number for _, number, _ in groups)
                # A segment reports its largest groups only.
                rest = [(0, pending - told, oldest)] if pending > told else []
                for group, number, since in (*groups, *rest):
                    name = self._names.get(group, OTHER)
                    count, first = found[name]
                    found[name] = count + number, since if first is None else min(first, since)
        return found
