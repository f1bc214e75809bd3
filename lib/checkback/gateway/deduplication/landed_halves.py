"""The half messages that have landed and are remembered, by name and by place. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.gateway.deduplication.cached_half import STATE_OF
from checkback.messages.limits import LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.deduplication.cached_half import CachedHalf

    Integers = NDArray[np.int64]
#: offsets of evicted entries that are kept at least
_EVICTED = 4096


class LandedHalves:
    """Half messages in the order of landing: some 360 bytes each, which Python's gc does not track.

    Lookups return copies: an entry's state changes.
    """

    def __init__(self, groups: Collection[str]) -> None:
        """``groups``: each has its own share; all others together have one."""
        self._shares = {name: code for code, name in enumerate(["", *sorted(groups)])}
        #: by share, in the order of landing
        self._landed: list[deque[CachedHalf]] = [deque() for _ in self._shares]
        self._by_name: dict[str, CachedHalf] = {}
        #: by queue and offset
        self._by_place: dict[int, dict[int, CachedHalf]] = {}
        #: by queue, ascending: also those of evicted entries behind the first
        self._offsets: dict[int, deque[int]] = {}
        #: by name, who has reserved it
        self._reserved: dict[str, Any] = {}

    def __len__(self) -> int:
        """The number of half messages."""
        return sum(map(len, self._landed))

    def reserve(self, names: Sequence[str], owner: object) -> bool:
        """Reserve the names of half messages that will land; False if one is known or reserved, or twice among them."""
        reserved = dict.fromkeys(names, owner)
        known = self._by_name.keys().isdisjoint(names) and self._reserved.keys().isdisjoint(names)
        if len(reserved) < len(names) or not known:
            return False
        self._reserved |= reserved
        return True

    def release(self, names: Iterable[str]) -> None:
        """They will not land, or have."""
        for name in names:
            del self._reserved[name]

    def under_way(self, name: str) -> Any:
        """Who has reserved the name; None = nobody."""
        return self._reserved.get(name)

    def named(self, name: str) -> CachedHalf | None:
        """The half message of a transaction: of several the one added last, because that is evicted last."""
        half = self._by_name.get(name)
        return None if half is None else copy(half)

    def at(self, queue_id: int, queue_offset: int) -> CachedHalf | None:
        """The half message at a place."""
        half = self._by_place.get(queue_id, _NOTHING).get(queue_offset)
        return None if half is None else copy(half)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> bool:
        """Set the state of the half message at a place, unless it has one. Is one known there?"""
        half = self._by_place.get(queue_id, _NOTHING).get(queue_offset)
        if half is not None and half.state is None:
            half.state = state
        return half is not None

    def pending(self, places: Sequence[tuple[int, int]], names: Sequence[str]) -> list[CachedHalf] | None:
        """The half messages at these places, not copies; None unless each has this name there, and no state."""
        found: list[CachedHalf] = []
        for (queue_id, queue_offset), name in zip(places, names, strict=True):
            half = self._by_place.get(queue_id, _NOTHING).get(queue_offset)
            if half is None or half.state is not None or half.name != name:
                return None
            found.append(half)
        return found

    def first(self, queue_id: int) -> int | None:
        """The first offset of the queue that is known; None = none is."""
        offsets, known = self._offsets.get(queue_id), self._by_place.get(queue_id, _NOTHING)
        while offsets and offsets[0] not in known:
            offsets.popleft()
        return offsets[0] if offsets else None

    def last(self, queue_id: int) -> int:
        """The last offset of the queue that is known; -1 = none is."""
        offsets = self._offsets.get(queue_id)
        return offsets[-1] if offsets else -1

    def decided(self, queue_id: int, offsets: Integers, states: NDArray[np.uint8]) -> None:
        """Set the states of those that are known, whatever they were, except CANCEL; ``states``: codes."""
        known = self._by_place.get(queue_id, _NOTHING)
        for offset, code in zip(offsets.tolist(), states.tolist(), strict=True):
            half = known.get(offset)
            if half is not None and half.state != "CANCEL":
                half.state = STATE_OF[code]

    def land(self, halves: Sequence[CachedHalf]) -> None:
        """Add half messages of one queue whose names are reserved, at offsets above all that are known of it."""
        queue_id = halves[0].queue_id
        names, offsets = [half.name for half in halves], [half.queue_offset for half in halves]
        self.release(names)
        self._by_name.update(zip(names, halves, strict=True))
        self._by_place.setdefault(queue_id, {}).update(zip(offsets, halves, strict=True))
        self._offsets.setdefault(queue_id, deque()).extend(offsets)
        self._append(halves)

    def extend(self, halves: Iterable[CachedHalf]) -> None:
        """Add half messages, except those at a place that is known."""
        places = self._by_place
        new = [one for one in halves if places.setdefault(one.queue_id, {}).setdefault(one.queue_offset, one) is one]
        self._by_name.update((half.name, half) for half in new)
        self._offsets |= {queue_id: deque(sorted(places[queue_id])) for queue_id in {half.queue_id for half in new}}
        self._append(new)

    def _append(self, halves: Sequence[CachedHalf]) -> None:
        if len(self._shares) == 1:
            self._landed[0].extend(halves)
            return
        for half in halves:
            self._landed[self._shares.get(half.name.partition("/")[0], 0)].append(half)

    def forget(self, before: int, most: int, kept: Mapping[int, int]) -> int:
        """Evict as `DeduplicationCache.forget`; ``kept``: by queue, the first offset that stays. Returns how many."""
        old = np.array([sum(1 for _ in takewhile(lambda half: half.stored < before, share)) for share in self._landed])
        beyond = len(self) - int(old.sum()) - most
        if beyond > 0:
            old = old + beyond_of(np.array(list(map(len, self._landed))) - old, beyond)
        gone = sum(self._evict(share, count, kept) for share, count in zip(self._landed, old.tolist(), strict=True))
        for queue_id, known in self._by_place.items():
            if len(self._offsets[queue_id]) > 2 * len(known) + _EVICTED:
                self._offsets[queue_id] = deque(offset for offset in self._offsets[queue_id] if offset in known)
        return gone

    def _evict(self, share: deque[CachedHalf], most: int, kept: Mapping[int, int]) -> int:
        """Evict the oldest of a share, up to the first that stays. Returns how many."""
        for count in range(most):
            half = share[0]
            if half.queue_offset >= kept.get(half.queue_id, LONG_MAX):
                return count
            share.popleft()
            del self._by_place[half.queue_id][half.queue_offset]
            if self._by_name.get(half.name) is half:
                del self._by_name[half.name]
        return most


_NOTHING: dict[int, CachedHalf] = {}


def beyond_of(held: Sequence[int] | Integers, beyond: int) -> Integers:
    """How many each share loses, ``beyond`` in all: one at a time from the share that is then the largest.

    Of equal ones, from the first.
    """
    counts = np.asarray(held)
    low, high = 0, int(counts.max(initial=0))
    while low < high:  # the lowest level to which all can be brought
        level = (low + high) // 2
        if np.maximum(counts - level, 0).sum() <= beyond:
            high = level
        else:
            low = level + 1
    gone: Integers = np.maximum(counts - low, 0)
    left = beyond - int(gone.sum())
    gone[np.flatnonzero(counts - gone == low)[:left]] += 1
    return gone
