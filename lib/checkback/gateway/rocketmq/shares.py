"""What all callers share, of which those of one token get half at most: so that none keeps the others out. Pure."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checkback.gateway.authentication import Groups


class Shares:
    """So many places. Groups None: no tokens are configured."""

    def __init__(self, places: int) -> None:
        self._places, self._each = places, max(1, places // 2)
        self._taken = Counter[object]()

    def take(self, groups: Groups) -> bool:
        """Take a place; False: there is none."""
        full = self._taken.total() >= self._places or (groups is not None and self._taken[groups] >= self._each)
        if not full:
            self._taken[groups] += 1
        return not full

    def give_back(self, groups: Groups) -> None:
        """A place that was taken is free."""
        self._taken[groups] -= 1
        if not self._taken[groups]:
            del self._taken[groups]
