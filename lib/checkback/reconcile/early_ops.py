"""How many segments a group's ops may open of which nothing else is known (rule 3): pure, without Spark.

A segment costs a read, a write and a timer, however few ops wait in it. Half messages come one after the other, and so
do ops that a batch reads before them: they fill few segments. Ops in ever new ones are made up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from checkback.reconcile.segment import Kind

if TYPE_CHECKING:
    from collections.abc import Collection

    from checkback.reconcile.segment import Records

#: segments a group, of a batch in one partition
SEGMENTS = 256
#: ops of a batch for one segment that are worth it
OPS = 16


class EarlyOpLimit:
    """Of one batch in one partition."""

    def __init__(self) -> None:
        self._opened: dict[int, int] = {}

    def crowded(self, events: Records) -> Collection[int]:
        """The groups (hashes) whose ops may not open this unseen segment with ``events``, its EVENT records."""
        ops = events[events["kind"] < Kind.UNKNOWN]
        if not 0 < len(ops) < OPS or (ops["kind"] == Kind.HALF).any():
            return ()
        groups = np.unique(ops["group"]).tolist()
        full = {group for group in groups if self._opened.get(group, 0) >= SEGMENTS}
        self._opened |= {group: self._opened.get(group, 0) + 1 for group in groups if group not in full}
        return full
