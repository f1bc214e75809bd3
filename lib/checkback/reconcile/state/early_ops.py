"""Limit on the segments that a group's ops may create without a half message (rule 3): pure, without Spark.

A segment costs a read, a write and a timer, however few ops wait in it. Offsets of half messages are consecutive, and
so are those of ops read before them: they fill few segments. Ops in ever new segments are forged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.records.records import Kind

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.reconcile.records.records import Records

#: maximum number of segments per group, batch and partition
SEGMENTS = 256
#: number of ops in a batch for one segment that justify creating it
OPS = 16


class EarlyOpLimit:
    """The limit in one batch and partition."""

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}

    def crowded(self, events: Records) -> Collection[int]:
        """The groups (hashes) whose ops may not create this unseen segment; ``events``: its EVENT records."""
        ops = events[events["kind"] < Kind.UNKNOWN]
        if not 0 < len(ops) < OPS or np.isin(events["kind"], (Kind.HALF, Kind.MESSAGE)).any():
            return ()
        groups = np.unique(ops["group"]).tolist()
        full = {group for group in groups if self._opened.get(group, 0) >= SEGMENTS}
        self._opened |= {group: self._opened.get(group, 0) + 1 for group in groups if group not in full}
        return full
