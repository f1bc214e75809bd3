"""The half messages that the gateway remembers, in columns: some 200 bytes each, none tracked by Python's gc."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import compress
from typing import TYPE_CHECKING

import numpy as np

from checkback.gateway.deduplication.cached_half import CODE_OF, STATE_OF, CachedHalf, HalfEntries, HalfRun
from checkback.gateway.deduplication.landed_names import LandedNames
from checkback.messages.limits import LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: evicted entries whose places are not reused yet
_EVICTED = 4096


class LandedHalves:
    """Half messages in the order of landing, by name and by (queue_id, queue_offset). No I/O, no clock.

    An entry has a number, which is never reused; it stands at a position in the columns, in the order of numbers.
    Evicted entries keep their position until the columns are compacted.
    """

    def __init__(self, groups: Collection[str]) -> None:
        """``groups``: each has its own share; all others together have one."""
        self._shares = {name: code for code, name in enumerate(["", *sorted(groups)])}
        self._next = self._live = 0
        self._numbers, self._offsets, self._fingerprints = array("q"), array("q"), array("q")
        self._born, self._stored = array("q"), array("q")
        self._queue_ids, self._share = array("i"), array("i")
        self._states, self._alive = bytearray(), bytearray()
        #: empty: one of the first names
        self._names: list[str] = []
        self._topics: list[str] = []
        self._by_name = LandedNames()
        #: by queue: ascending offsets, and their numbers
        self._places: dict[int, tuple[array[int], array[int]]] = {}

    def __len__(self) -> int:
        """The number of half messages."""
        return self._live

    def reserve(self, names: list[str]) -> int | None:
        """Reserve the names of half messages that will land; None if one is known or reserved, or twice among them."""
        if self._by_name.maybe_first(names) and any(self.named(name) is not None for name in names):
            return None
        return self._by_name.reserve(names)

    def release(self, reservation: int, names: list[str]) -> None:
        """They will not land."""
        self._by_name.release(reservation, names)

    def under_way(self, name: str) -> tuple[int, int] | None:
        """The reservation of a name whose half message has not landed, and its number there; None = it has none."""
        return self._by_name.under_way(name)

    def named(self, name: str) -> CachedHalf | None:
        """The half message of a transaction: of several the one added last, because that is evicted last."""
        number = self._by_name.number(name)
        position = None if number is None else self._known(number)
        return None if position is None else self._entry(position)

    def at(self, queue_id: int, queue_offset: int) -> CachedHalf | None:
        """The half message at a place."""
        position = self._placed(queue_id, queue_offset)
        return None if position is None else self._entry(position)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> bool:
        """Set the state of the half message at a place, unless it has one. Is one known there?"""
        position = self._placed(queue_id, queue_offset)
        if position is None:
            return False
        if not self._states[position]:
            self._states[position] = CODE_OF[state]
        return True

    def pending(self, places: Sequence[tuple[int, int]], names: Sequence[str]) -> list[int] | None:
        """The numbers of the half messages at these places; None unless each has this name there, and no state."""
        found: list[int] = []
        for (queue_id, queue_offset), name in zip(places, names, strict=True):
            position = self._placed(queue_id, queue_offset)
            if position is None or self._states[position] or self._name(position) != name:
                return None
            found.append(self._numbers[position])
        return found

    def ended_numbers(self, numbers: Sequence[int], states: Sequence[str]) -> None:
        """Set the states of half messages of `pending`, which have not been evicted since."""
        for number, state in zip(numbers, states, strict=True):
            position = self._known(number)
            if position is not None and not self._states[position]:
                self._states[position] = CODE_OF[state]

    def first(self, queue_id: int) -> int | None:
        """The first offset of the queue that is known; None = none is."""
        offsets, _ = self._places.get(queue_id, _NOWHERE)
        return offsets[0] if offsets else None

    def decided(self, queue_id: int, offsets: Integers, states: NDArray[np.uint8]) -> None:
        """Set the states of those that are known, whatever they were, except CANCEL; ``states``: codes."""
        positions, known = self._all_placed(queue_id, offsets)
        column, at = np.frombuffer(self._states, np.uint8), positions[known]
        column[at] = np.where(column[at] == CODE_OF["CANCEL"], column[at], states[known])

    def land(self, run: HalfRun) -> None:
        """Add half messages whose names are reserved, at offsets above all that are known of the queue."""
        count = len(run.names)
        offsets, numbers = self._places.setdefault(run.queue_id, (array("q"), array("q")))
        its, places = range(self._next, self._next + count), range(run.first, run.first + count)
        for column, values in (
            (offsets, places),
            (numbers, its),
            (self._numbers, its),
            (self._offsets, places),
            (self._fingerprints, run.fingerprints),
            (self._born, run.born),
        ):
            column.extend(values)
        self._stored += array("q", (run.stored,)) * count
        self._queue_ids += array("i", (run.queue_id,)) * count
        self._states += run.states
        self._alive += b"\1" * count
        number = self._next
        for reservation, size in run.reservations:
            self._by_name.landed(reservation, number)
            number += size
        self._names += run.names
        self._topics += run.topics
        self._share.extend(self._shares_of(run.names))
        self._next += count
        self._live += count

    def extend(self, more: HalfEntries) -> None:
        """Add half messages, except those at a place that is known."""
        new = np.ones(len(more.names), np.bool_)
        numbers = self._next + np.arange(len(more.names))
        for queue_id, rows in rows_by_queue(more.queue_ids):
            self._extend_places(queue_id, rows, more.offsets, numbers, new)
        topics, states = more.topics, more.states
        if not new.all():
            numbers = numbers[new]
            topics = list(compress(topics, new))
            states = np.frombuffer(states, np.uint8)[new].tobytes()
        for column, values in (
            (self._numbers, numbers),
            (self._offsets, more.offsets),
            (self._fingerprints, more.fingerprints),
            (self._born, more.born),
            (self._stored, more.stored),
            (self._queue_ids, more.queue_ids.astype(np.int32)),
        ):
            column.frombytes((values if len(values) == len(numbers) else values[new]).tobytes())
        self._states += states
        self._alive += b"\1" * len(numbers)
        self._extend_names(more.names, new, numbers)
        self._topics += topics
        self._next += len(more.names)
        self._live += len(numbers)

    def _extend_names(self, names: list[str] | pa.StringArray, new: NDArray[np.bool_], numbers: Integers) -> None:
        if not isinstance(names, list) and not self._next and len(names):
            self._by_name.begin(names, new)
            self._names += [""] * len(numbers)
            self._share.extend(compress(self._shares_of(names), new))
            return
        texts = names if isinstance(names, list) else names.to_pylist()
        added = texts if new.all() else list(compress(texts, new))
        self._by_name.add(added, numbers.tolist())
        self._names += added
        self._share.extend(self._shares_of(added))

    def _shares_of(self, names: list[str] | pa.StringArray) -> Iterable[int]:
        if len(self._shares) == 1:
            return bytes(len(names))
        texts = names if isinstance(names, list) else (name.as_py() for name in names)
        return (self._shares.get(name.partition("/")[0], 0) for name in texts)

    def forget(self, before: int, most: int, kept: Mapping[int, int]) -> int:
        """Evict as `DeduplicationCache.forget`; ``kept``: by queue, the first offset that stays. Returns how many."""
        alive = np.frombuffer(self._alive, np.bool_)
        share = np.frombuffer(self._share, np.int32)
        young = alive & (np.frombuffer(self._stored, np.int64) >= before)
        first = int(young.argmax()) if young.any() else len(young)
        gone = np.bincount(share[:first][alive[:first]], minlength=len(self._shares))
        beyond = self._live - int(gone.sum()) - most
        if beyond > 0:
            gone = gone + beyond_of(np.bincount(share[alive], minlength=len(self._shares)) - gone, beyond)
        positions = [np.flatnonzero(alive & (share == code))[: gone[code]] for code in np.flatnonzero(gone).tolist()]
        del alive, share, young  # arrays in use cannot grow
        if kept:
            positions = [self._before(of_share, kept) for of_share in positions]
        evicted = np.concatenate([np.zeros(0, np.int64), *positions])
        self._evict(evicted)
        if len(self._names) - self._live > max(_EVICTED, self._live):
            self._compact()
        return len(evicted)

    def _evict(self, positions: Integers) -> None:
        if not len(positions):
            return
        numbers = np.frombuffer(self._numbers, np.int64)[positions]
        self._by_name.remove(list(map(self._names.__getitem__, positions.tolist())), numbers)
        np.frombuffer(self._alive, np.uint8)[positions] = 0
        # Mostly they are one run.
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            nothing = [""] * len(run)
            self._names[run[0] : run[-1] + 1] = self._topics[run[0] : run[-1] + 1] = nothing
        self._live -= len(positions)
        self._by_name.evicted(self._numbers[self._alive.index(1)] if self._live else None)

    def _before(self, positions: Integers, kept: Mapping[int, int]) -> Integers:
        """The positions before the first whose offset stays."""
        queue_ids = np.frombuffer(self._queue_ids, np.int32)[positions]
        limits = np.full(len(positions), LONG_MAX)
        for queue_id, offset in kept.items():
            limits[queue_ids == queue_id] = offset
        stays = np.frombuffer(self._offsets, np.int64)[positions] >= limits
        return positions[: stays.argmax()] if stays.any() else positions

    def _compact(self) -> None:
        """Drop the evicted entries."""
        alive = np.frombuffer(self._alive, np.bool_)
        for name in ("_numbers", "_offsets", "_fingerprints", "_born", "_stored", "_queue_ids", "_share"):
            column: array[int] = getattr(self, name)
            setattr(self, name, array(column.typecode, np.asarray(column)[alive].tobytes()))
        self._states = bytearray(np.frombuffer(self._states, np.uint8)[alive].tobytes())
        self._names, self._topics = list(compress(self._names, alive)), list(compress(self._topics, alive))
        self._alive = bytearray(b"\1" * len(self._names))
        known = np.frombuffer(self._numbers, np.int64)
        for queue_id, (offsets, numbers) in list(self._places.items()):
            left = np.isin(np.asarray(numbers), known, assume_unique=True)
            self._places[queue_id] = (_filtered(offsets, left), _filtered(numbers, left))

    def _extend_places(
        self, queue_id: int, rows: Integers, all_offsets: Integers, all_numbers: Integers, new: NDArray[np.bool_]
    ) -> None:
        """Add places of a queue; ``new`` becomes False for the rows at a place that is known."""
        offsets, numbers = self._places.setdefault(queue_id, (array("q"), array("q")))
        more, its = all_offsets[rows], all_numbers[rows]
        if (np.diff(more) > 0).all() and (not offsets or offsets[-1] < more[0]):
            offsets.frombytes(more.tobytes())
            numbers.frombytes(its.tobytes())
            return
        known = np.array([self._known(number) is not None for number in numbers], np.bool_)
        before = np.asarray(offsets)[known]
        together = np.concatenate([before, more])
        places, firsts = np.unique(together, return_index=True)
        added = np.zeros(len(together), np.bool_)
        added[firsts] = True
        new[rows] = added[len(before) :]
        every = np.concatenate([np.asarray(numbers)[known], its])[firsts]
        self._places[queue_id] = (array("q", places.tobytes()), array("q", every.tobytes()))

    def _placed(self, queue_id: int, queue_offset: int) -> int | None:
        """The position of the half message at a place."""
        offsets, numbers = self._places.get(queue_id, _NOWHERE)
        at = _place_in(offsets, queue_offset)
        return self._known(numbers[at]) if at < len(offsets) and offsets[at] == queue_offset else None

    def _all_placed(self, queue_id: int, offsets: Integers) -> tuple[Integers, NDArray[np.bool_]]:
        """The position of the half message at each offset, and whether there is one."""
        places, numbers = self._places.get(queue_id, _NOWHERE)
        if not places or not self._numbers:
            return np.zeros(len(offsets), np.int64), np.zeros(len(offsets), np.bool_)
        ordered, every = np.frombuffer(places, np.int64), np.frombuffer(self._numbers, np.int64)
        at = _places_in(ordered, offsets)
        wanted = np.frombuffer(numbers, np.int64)[at]
        positions = _places_in(every, wanted)
        known = (ordered[at] == offsets) & (every[positions] == wanted)
        return positions, known & np.frombuffer(self._alive, np.bool_)[positions]

    def _known(self, number: int) -> int | None:
        """The position of an entry, if it is not evicted."""
        position = _place_in(self._numbers, number)
        known = position < len(self._numbers) and self._numbers[position] == number and self._alive[position]
        return position if known else None

    def _entry(self, position: int) -> CachedHalf:
        return CachedHalf(
            self._queue_ids[position],
            self._offsets[position],
            self._name(position),
            self._fingerprints[position],
            self._topics[position],
            self._born[position],
            self._stored[position],
            STATE_OF[self._states[position]],
        )

    def _name(self, position: int) -> str:
        name = self._names[position]
        return name or self._by_name.first_name(self._numbers[position])


_NOWHERE: tuple[array[int], array[int]] = (array("q"), array("q"))


def rows_by_queue(queue_ids: Integers) -> Iterator[tuple[int, Integers]]:
    """The rows of each queue, ascending."""
    if len(queue_ids) and (queue_ids == queue_ids[0]).all():
        yield int(queue_ids[0]), np.arange(len(queue_ids))
        return
    for queue_id in np.unique(queue_ids).tolist():
        yield queue_id, np.flatnonzero(queue_ids == queue_id)


def _place_in(ordered: array[int], number: int) -> int:
    """Where a number is in ascending ones, or where it would be: without a search if they have no gap before it."""
    place = number - ordered[0] if ordered else 0
    if 0 <= place < len(ordered) and ordered[place] == number:
        return place
    return bisect_left(ordered, number)


def _places_in(ordered: Integers, numbers: Integers) -> Integers:
    """Where each number is in ascending ones, if it is there: without a search if they have no gap."""
    last = len(ordered) - 1
    at = numbers - ordered[0] if ordered[-1] - ordered[0] == last else np.searchsorted(ordered, numbers)
    found: Integers = np.clip(at, 0, last)
    return found


def _filtered(column: array[int], wanted: NDArray[np.bool_]) -> array[int]:
    return array("q", np.asarray(column)[wanted].tobytes())


def shared_texts(column: pa.ChunkedArray) -> list[str]:
    """The texts, equal ones as one object; null is empty."""
    texts: list[str] = []
    for chunk in column.chunks:
        code = (chunk.fill_null("") if chunk.null_count else chunk).dictionary_encode()
        values = code.dictionary.to_pylist()
        texts += map(values.__getitem__, code.indices.to_pylist())
    return texts


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
