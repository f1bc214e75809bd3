"""Ops that were taken before their half messages could be looked up, and how many a token may have. No I/O, no clock.

Another gateway acknowledges a half message when it is in its journal, and an op for it may come here before it is in
`half`: it is taken unverified, and `reconcile` judges it as any early op (docs/protocol.md, rules 2 and 3). Nothing
else would keep a client from filling `op` with ops for half messages that never come.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from checkback.gateway.deduplication.remembered_half import short, whose
from checkback.storage.first_op import misfit

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from checkback.gateway.authentication import Groups
    from checkback.gateway.deduplication.remembered_half import RememberedHalf
    from checkback.messages.op import Op

    Place = tuple[int, int]

#: Maximum number of ops of a token whose half messages are not known to have landed: what a gateway acknowledges in
#: some seconds at full speed.
UNVERIFIED_MAX = 50_000
#: maximum number that is looked up along with other half messages
LOOK_UPS = 1000


class OpKey(NamedTuple):
    """An op's half message, and the names by which it must match: ops of other names end other transactions."""

    queue_id: int
    queue_offset: int
    producer_group: str
    transaction_id: str | None

    @classmethod
    def of(cls, op: Op) -> OpKey:
        """That of an op."""
        return cls(op.queue_id, op.queue_offset, op.producer_group, short(op.transaction_id))

    @property
    def place(self) -> Place:
        """That of the half message."""
        return self.queue_id, self.queue_offset


class _Taken(NamedTuple):
    """``state`` of the op, and when it was taken (ms)."""

    state: str
    at: int


@dataclass
class _Ops:
    """Of a token. ``waiting``: in the order in which they are looked up.

    ``unfit``: when those were taken that proved to be another group's or transaction's; a heap.
    """

    waiting: dict[OpKey, _Taken] = field(default_factory=dict)
    unfit: list[int] = field(default_factory=list)


class UnverifiedOps:
    """The first op of each group and transaction id at a place, until its half message has been found."""

    def __init__(self, keep_ms: int, most: int = UNVERIFIED_MAX) -> None:
        """``keep_ms``: how long those count whose half messages do not come: `reconcile` then rejects them."""
        self._keep_ms = keep_ms
        self._most = most
        self._of: dict[Groups, _Ops] = {}

    def __len__(self) -> int:
        """Number of ops, of all tokens, those of other half messages included."""
        return sum(len(mine.waiting) + len(mine.unfit) for mine in list(self._of.values()))

    def state(self, op: Op, groups: Groups) -> str | None:
        """The state of the op that was taken first for this half message; None = none was."""
        mine = self._of.get(groups)
        first = None if mine is None else mine.waiting.get(OpKey.of(op))
        return None if first is None else first.state

    def full(self, groups: Groups) -> bool:
        """May the token have no more of them?"""
        mine = self._of.get(groups)
        return mine is not None and len(mine.waiting) + len(mine.unfit) >= self._most

    def add(self, op: Op, groups: Groups, now: int) -> None:
        """An op is taken, at ``now`` (ms)."""
        self._of.setdefault(groups, _Ops()).waiting[OpKey.of(op)] = _Taken(op.state, now)

    def discard(self, op: Op, groups: Groups) -> None:
        """It was not stored after all."""
        mine = self._of.get(groups)
        if mine is not None:
            mine.waiting.pop(OpKey.of(op), None)

    def to_look_up(self, groups: Groups) -> list[Place]:
        """Half messages to look up because the token has used half of its room."""
        mine = self._of.get(groups)
        if mine is None or len(mine.waiting) + len(mine.unfit) <= self._most // 2:
            return []
        return [key.place for key in islice(mine.waiting, LOOK_UPS)]

    def looked_up(
        self, groups: Groups, places: Collection[Place], found: Mapping[Place, RememberedHalf], now: int
    ) -> None:
        """``found``: those of the half messages at ``places``, of `to_look_up`, that have landed by ``now`` (ms)."""
        mine = self._of.get(groups)
        if mine is None:
            return
        before = now - self._keep_ms
        asked = set(places)
        for key in [key for key in islice(mine.waiting, LOOK_UPS) if key.place in asked]:
            taken, half = mine.waiting.pop(key), found.get(key.place)
            if half is None:
                if taken.at >= before:
                    mine.waiting[key] = taken  # behind the others
            elif misfit(key.producer_group, key.transaction_id, *whose(half)) is not None:
                heappush(mine.unfit, taken.at)
        while mine.unfit and mine.unfit[0] < before:
            heappop(mine.unfit)
