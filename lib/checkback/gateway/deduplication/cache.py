"""The half messages that the gateway remembers, by which retries and ops are recognized. No I/O, no clock."""

from __future__ import annotations

from collections import deque
from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace

from checkback.gateway.deduplication.remembered_half import STATE_OF
from checkback.messages.limits import LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.deduplication.remembered_half import RememberedHalf

    Integers = NDArray[np.int64]
    Place = tuple[int, int]

#: Most half messages remembered after a lookup. They do not evict those that were stored recently.
RECALLED_MAX = 20_000
#: offsets of evicted half messages that are kept at least
_EVICTED = 4096


class DeduplicationCache:
    """The half messages that the gateway remembers, some 360 bytes each, and the next offset of each queue.

    Recent ones are found by name and by (queue_id, queue_offset); older ones, looked up for an op, by the latter only:
    a name refers to the last half message sent under it. Those in queues that this gateway does not own (any more) are
    found by name only: their state here may be stale. Lookups return copies, because states change.
    """

    def __init__(self, next_offsets: Mapping[int, int], groups: Collection[str] = ()) -> None:
        """``next_offsets``: by queue, the first unassigned offset.

        ``groups``: each has its own share of the memory; all others together have one: clients can invent many.
        """
        self._next = dict(next_offsets)
        self._shares = {name: code for code, name in enumerate(["", *sorted(groups)])}
        #: by share, the recent ones in the order in which they were stored
        self._recent: list[deque[RememberedHalf]] = [deque() for _ in self._shares]
        self._by_name: dict[str, RememberedHalf] = {}
        #: by queue and offset
        self._by_place: dict[int, dict[int, RememberedHalf]] = {}
        #: by queue, ascending: also those of evicted ones behind the first
        self._offsets: dict[int, deque[int]] = {}
        #: by name, who has reserved it
        self._reserved: dict[str, Any] = {}
        self._recalled: dict[Place, RememberedHalf] = {}
        #: those whose op is in the journal and not in the table yet
        self._ending: dict[Place, RememberedHalf] = {}

    def __len__(self) -> int:
        """The number of half messages remembered."""
        return sum(map(len, self._recent)) + len(self._recalled)

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

    def named(self, name: str) -> RememberedHalf | None:
        """The half message of a transaction: of several the one stored last, because that is evicted last."""
        half = self._by_name.get(name)
        return None if half is None else copy(half)

    def reserve(self, names: Sequence[str], owner: object) -> bool:
        """Reserve the names of transactions whose half messages will be stored together, until then or `release`.

        False, and nothing is reserved, if one of them is known or reserved, or twice among them.
        """
        reserved = dict.fromkeys(names, owner)
        new = self._by_name.keys().isdisjoint(names) and self._reserved.keys().isdisjoint(names)
        if len(reserved) < len(names) or not new:
            return False
        self._reserved |= reserved
        return True

    def release(self, names: Iterable[str]) -> None:
        """The names are reserved no longer."""
        for name in names:
            del self._reserved[name]

    def in_flight(self, name: str) -> Any:
        """The owner of a name that is reserved; None = it is not."""
        return self._reserved.get(name)

    def at(self, queue_id: int, queue_offset: int) -> RememberedHalf | None:
        """The half message at an offset of an owned queue, if remembered."""
        place = (queue_id, queue_offset)
        if queue_id not in self._next:
            return self._ending.get(place)
        half = self._at(*place)
        return copy(half) if half is not None else self._recalled.get(place) or self._ending.get(place)

    def _at(self, queue_id: int, queue_offset: int) -> RememberedHalf | None:
        return self._by_place.get(queue_id, _NOTHING).get(queue_offset)

    def unflushed_op(self, half: RememberedHalf) -> None:
        """Keep a half message, with the state of its op, until the op is in the table (`flushed_ops`)."""
        self._ending[half.queue_id, half.queue_offset] = half

    def flushed_ops(self, places: Iterable[Place]) -> None:
        """The ops of these half messages are in the table: look-ups find them."""
        for place in places:
            self._ending.pop(place, None)

    def ended_with(self, queue_id: int, queue_offset: int) -> str | None:
        """The state of the op, if it is known here and may not be in the table yet."""
        half = self._ending.get((queue_id, queue_offset))
        return None if half is None else half.state

    def stored(self, halves: Sequence[RememberedHalf]) -> None:
        """Remember half messages that were stored at one queue's next offsets, under reserved names."""
        queue_id = halves[0].queue_id
        names, offsets = [half.name for half in halves], [half.queue_offset for half in halves]
        self.release(names)
        self._by_name.update(zip(names, halves, strict=True))
        self._by_place.setdefault(queue_id, {}).update(zip(offsets, halves, strict=True))
        self._offsets.setdefault(queue_id, deque()).extend(offsets)
        self._append(halves)
        self._assigned(queue_id, offsets[-1])

    def remember(self, halves: Iterable[RememberedHalf]) -> None:
        """Remember half messages that are in the table, in any queue; not those at a place that is known."""
        places = self._by_place
        new = [one for one in halves if places.setdefault(one.queue_id, {}).setdefault(one.queue_offset, one) is one]
        for half in new:
            if half.queue_id in self._next:
                self._by_name[half.name] = half
            else:  # a retry comes to the gateway that has the message
                self._by_name.setdefault(half.name, half)
        self._append(new)
        for queue_id in {half.queue_id for half in new}:
            self._offsets[queue_id] = deque(sorted(places[queue_id]))
            self._assigned(queue_id, self._offsets[queue_id][-1])

    def _append(self, halves: Sequence[RememberedHalf]) -> None:
        if len(self._shares) == 1:
            self._recent[0].extend(halves)
            return
        for half in halves:
            self._recent[self._shares.get(half.name.partition("/")[0], 0)].append(half)

    def _assigned(self, queue_id: int, queue_offset: int) -> None:
        if queue_id in self._next:
            self._next[queue_id] = max(self._next[queue_id], queue_offset + 1)

    def recalled(self, halves: Iterable[RememberedHalf], now: int) -> None:
        """Cache half messages that were looked up, as of ``now`` (ms). Existing entries are kept."""
        for half in halves:
            place = (half.queue_id, half.queue_offset)
            if half.queue_id in self._next and self.at(*place) is None:
                self._recalled[place] = replace(half, stored=now)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> bool:
        """Record the op of a half message. The first stands, but for a CANCEL; False: it is not remembered."""
        place = (queue_id, queue_offset)
        half, recalled = self._at(*place), self._recalled.get(place)
        last = state == "CANCEL"
        if half is not None and (last or half.state is None):
            half.state = state
        if recalled is not None and (last or recalled.state is None):
            self._recalled[place] = replace(recalled, state=state)
        return half is not None or recalled is not None

    def pending(self, places: Sequence[Place], names: Sequence[str]) -> list[RememberedHalf] | None:
        """The recent half messages at these places; None unless each has this name there, and no op.

        They are not copies: to end them, set their state.
        """
        found: list[RememberedHalf] = []
        for place, name in zip(places, names, strict=True):
            half = self._at(*place)
            if half is None or half.state is not None or half.name != name or half.queue_id not in self._next:
                return None
            found.append(half)
        return found

    def first_offsets(self) -> dict[int, int]:
        """By queue that the gateway owns, the first offset from which on half messages are remembered."""
        found = {}
        for queue_id, next_offset in self._next.items():
            offsets, known = self._offsets.get(queue_id), self._by_place.get(queue_id, _NOTHING)
            while offsets and offsets[0] not in known:
                offsets.popleft()
            found[queue_id] = offsets[0] if offsets else next_offset
        for queue_id, queue_offset in self._recalled:
            found[queue_id] = min(found[queue_id], queue_offset)
        return found

    def decided(self, queue_id: int, offsets: Integers, states: NDArray[np.uint8]) -> None:
        """Record decisions, which stand, whatever the op was, except CANCEL; ``states``: codes of `remembered_half`."""
        for queue_offset, code in zip(offsets.tolist(), states.tolist(), strict=True):
            half, recalled = self._at(queue_id, queue_offset), self._recalled.get((queue_id, queue_offset))
            if half is not None and half.state != "CANCEL":
                half.state = STATE_OF[code]
            if recalled is not None and recalled.state != "CANCEL":
                self._recalled[queue_id, queue_offset] = replace(recalled, state=STATE_OF[code])

    def forget(self, before: int, most: int, unflushed: Mapping[int, int] | None = None) -> int:
        """Evict what was stored or looked up before a time (ms), and what exceeds ``most``. Returns how many.

        Above ``most``, the largest share loses its oldest first: a busy group does not evict the others' entries.
        ``unflushed``: by queue, the first offset that is not in the table yet, or whose op is not, so that no look-up
        would find it.
        """
        counts = np.array(list(map(len, self._recent)))
        gone = np.array([sum(1 for _ in takewhile(lambda half: half.stored < before, one)) for one in self._recent])
        beyond = int(counts.sum() - gone.sum()) - most
        if beyond > 0:
            gone = gone + beyond_of(counts - gone, beyond)
        every = zip(self._recent, gone.tolist(), strict=True)
        evicted = sum(self._evict(share, count, unflushed or {}) for share, count in every)
        for queue_id, known in self._by_place.items():
            if len(self._offsets[queue_id]) > 2 * len(known) + _EVICTED:
                self._offsets[queue_id] = deque(offset for offset in self._offsets[queue_id] if offset in known)
        # Those that were looked up can be looked up again: the oldest go first, regardless of their group.
        return evicted + len(_taken(self._recalled, before, min(most, RECALLED_MAX)))

    def _evict(self, share: deque[RememberedHalf], most: int, unflushed: Mapping[int, int]) -> int:
        """Evict the oldest of a share, up to the first that stays. Returns how many."""
        for count in range(most):
            half = share[0]
            if half.queue_offset >= unflushed.get(half.queue_id, LONG_MAX):
                return count
            share.popleft()
            del self._by_place[half.queue_id][half.queue_offset]
            if self._by_name.get(half.name) is half:
                del self._by_name[half.name]
        return most


_NOTHING: dict[int, RememberedHalf] = {}


def _taken(known: dict[Place, RememberedHalf], before: int, most: int) -> list[RememberedHalf]:
    """Remove and return those from before a time, and the oldest beyond ``most``."""
    # Collected in one pass, then deleted: popping from the front of a dict scans its deleted slots each time.
    old: list[RememberedHalf] = []
    for half in known.values():
        if half.stored >= before and len(known) - len(old) <= most:
            break
        old.append(half)
    for half in old:
        del known[half.queue_id, half.queue_offset]
    return old


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
