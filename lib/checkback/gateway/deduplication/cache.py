"""The gateway's cache of half messages, by which retries and ops are recognized. No I/O, no clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from checkback.gateway.deduplication.cached_half import STATE_OF
from checkback.gateway.deduplication.landed_halves import LandedHalves

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from checkback.gateway.deduplication.cached_half import CachedHalf

#: Most half messages cached after a lookup. They do not evict those that landed recently.
RECALLED_MAX = 20_000


class DeduplicationCache:
    """The half messages that the gateway caches, and the next offset of each queue.

    Recent ones are indexed by name and by (queue_id, queue_offset); older ones, looked up for an op, by the latter
    only: a name refers to the last half message sent under it. Those in queues that this gateway does not own (any
    more) are found by name only: their state in the cache may be stale.
    """

    def __init__(
        self,
        next_offsets: Mapping[int, int],
        groups: Collection[str] = (),
    ) -> None:
        """``next_offsets``: by queue, the first unassigned offset.

        ``groups``: each has its own share of the cache; all others together have one, because clients can invent many.
        """
        self._next = dict(next_offsets)
        self._landed = LandedHalves(groups)
        self._recalled: dict[tuple[int, int], CachedHalf] = {}
        #: half messages whose op is in the journal and not in the table yet
        self._ending: dict[tuple[int, int], CachedHalf] = {}

    def __len__(self) -> int:
        """The number of half messages cached."""
        return len(self._landed) + len(self._recalled)

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that the gateway owns."""
        return tuple(self._next)

    def next_offset(self, queue_id: int) -> int:
        """The first unassigned offset of the queue. Raises KeyError for a queue not owned."""
        return self._next[queue_id]

    def assigned(self, queue_id: int, queue_offset: int) -> bool:
        """Has a gateway assigned the offset? In queues not owned: another gateway may have."""
        return queue_id not in self._next or queue_offset < self._next[queue_id]

    def named(self, name: str) -> CachedHalf | None:
        """The half message of a transaction, if cached."""
        return self._landed.named(name)

    def reserve(self, names: Sequence[str], owner: object) -> bool:
        """Reserve the names of transactions whose half messages will land together, until they land or `release`.

        False, and nothing is reserved, if one of them is cached or reserved, or twice among them.
        """
        return self._landed.reserve(names, owner)

    def release(self, names: Iterable[str]) -> None:
        """The half messages of these names, which are reserved, will not land."""
        self._landed.release(names)

    def under_way(self, name: str) -> Any:
        """The owner of a name that is reserved; None = it is not."""
        return self._landed.under_way(name)

    def at(self, queue_id: int, queue_offset: int) -> CachedHalf | None:
        """The half message at an offset of an owned queue, if cached."""
        place = (queue_id, queue_offset)
        if queue_id not in self._next:
            return self._ending.get(place)
        half = self._landed.at(queue_id, queue_offset)
        return half or self._recalled.get(place) or self._ending.get(place)

    def unflushed_op(self, half: CachedHalf) -> None:
        """Keep a half message, with the state of its op, until the op is in the table (`flushed_ops`)."""
        self._ending[half.queue_id, half.queue_offset] = half

    def flushed_ops(self, places: Iterable[tuple[int, int]]) -> None:
        """The ops of these half messages are in the table: look-ups find them."""
        for place in places:
            self._ending.pop(place, None)

    def ended_with(self, queue_id: int, queue_offset: int) -> str | None:
        """The state of the op, if it is known here and may not be in the table yet."""
        half = self._ending.get((queue_id, queue_offset))
        return None if half is None else half.state

    def landed(self, halves: Sequence[CachedHalf]) -> None:
        """Cache half messages that have landed in one queue, under reserved names, and advance its next offset.

        A name refers to the entry added last, because that is evicted last.
        """
        self._assigned(halves[-1].queue_id, halves[-1].queue_offset)
        self._landed.land(halves)

    def landed_before(self, halves: Iterable[CachedHalf]) -> None:
        """Cache half messages that are in the table, in any queue. Existing entries are kept."""
        self._landed.extend(halves)
        for queue_id in self._next:
            self._assigned(queue_id, self._landed.last(queue_id))

    def _assigned(self, queue_id: int, queue_offset: int) -> None:
        if queue_id in self._next:
            self._next[queue_id] = max(self._next[queue_id], queue_offset + 1)

    def recalled(self, halves: Iterable[CachedHalf], now: int) -> None:
        """Cache half messages that were looked up, as of ``now`` (ms). Existing entries are kept."""
        for half in halves:
            place = (half.queue_id, half.queue_offset)
            if half.queue_id in self._next and self.at(*place) is None:
                self._recalled[place] = replace(half, stored=now)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> bool:
        """Record the op of a cached half message. The first stands; False: it is not cached."""
        known = self._landed.ended(queue_id, queue_offset, state)
        half = self._recalled.get((queue_id, queue_offset))
        if half is not None and half.state is None:
            self._recalled[queue_id, queue_offset] = replace(half, state=state)
        return known or half is not None

    def pending(self, places: Sequence[tuple[int, int]], names: Sequence[str]) -> list[CachedHalf] | None:
        """The entries of recent half messages at these places; None unless each has this name there, and no op.

        They are not copies: to end them, set their state.
        """
        owned = self._next
        return None if any(queue_id not in owned for queue_id, _ in places) else self._landed.pending(places, names)

    def first_offsets(self) -> dict[int, int]:
        """By queue that the gateway owns, the first offset from which on half messages are cached."""
        firsts = {queue_id: self._landed.first(queue_id) for queue_id in self._next}
        found = {queue_id: self._next[queue_id] if first is None else first for queue_id, first in firsts.items()}
        for queue_id, queue_offset in self._recalled:
            found[queue_id] = min(found[queue_id], queue_offset)
        return found

    def decided(self, queue_id: int, offsets: NDArray[np.int64], states: NDArray[np.uint8]) -> None:
        """Record decisions, which stand, whatever the op was; ``states``: codes of `cached_half`."""
        self._landed.decided(queue_id, offsets, states)
        if self._recalled:
            state_at = {(queue_id, at): STATE_OF[code] for at, code in zip(offsets.tolist(), states, strict=True)}
            for place in self._recalled.keys() & state_at:
                if self._recalled[place].state != "CANCEL":
                    self._recalled[place] = replace(self._recalled[place], state=state_at[place])

    def forget(self, before: int, most: int, unflushed: Mapping[int, int] | None = None) -> int:
        """Evict what was stored or looked up before a time (ms), and what exceeds ``most``. Returns how many.

        Above ``most``, the largest share loses its oldest first: a busy group does not evict the others' entries.
        ``unflushed``: by queue, the first offset that is not in the table yet, or whose op is not, so that no look-up
        would find it.
        """
        gone = self._landed.forget(before, most, unflushed or {})
        # Those that were looked up can be looked up again: the oldest go first, regardless of their group.
        return gone + len(_taken(self._recalled, before, min(most, RECALLED_MAX)))


def _taken(known: dict[tuple[int, int], CachedHalf], before: int, most: int) -> list[CachedHalf]:
    """Remove and return those from before a time, and the oldest beyond ``most``."""
    # Collected in one pass, then deleted: popping from the front of a dict scans its deleted slots each time.
    old: list[CachedHalf] = []
    for half in known.values():
        if half.stored >= before and len(known) - len(old) <= most:
            break
        old.append(half)
    for half in old:
        del known[half.queue_id, half.queue_offset]
    return old
