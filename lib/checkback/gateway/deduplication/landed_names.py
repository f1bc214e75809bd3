"""Names of half messages, and the number of the one that each refers to. No I/O, no clock."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import pyarrow as pa
    from numpy.typing import NDArray

    Integers = NDArray[np.int64]

#: names that are Python objects at once
_AT_ONCE = 10_000
#: so few names are looked up one by one
_FEW = 8
#: instead of the number of a reservation's first name: they are on their way; they will not land
_UNDER_WAY, _RELEASED = -1, -2


class LandedNames:
    """The number that each name refers to; names may be reserved before their half messages have numbers.

    A dictionary of a million names is in no cache of a processor: looking into it is what a name costs. So names that
    come together are looked up and reserved at once, and are not touched again when they land.
    """

    def __init__(self) -> None:
        #: numbers; below 0: -1 - a place of a reservation
        self._numbers: dict[str, int] = {}
        self._first_names: _FirstNames | None = None
        #: by reservation, ascending: its first place, and the number of its first name
        self._begins, self._firsts = array("q"), array("q")
        self._next = 0

    def number(self, name: str) -> int | None:
        """The number of the half message that has landed under this name: of several, that added last."""
        found = self._numbers.get(name)
        if found is None:
            return None if self._first_names is None else self._first_names.number(name)
        if found >= 0:
            return found
        reservation, row = self._reserved(found)
        first = self._firsts[reservation]
        return first + row if first >= 0 else None

    def under_way(self, name: str) -> tuple[int, int] | None:
        """The reservation of a name whose half message has not landed, and its number there; None = it has none."""
        found = self._numbers.get(name, 0)
        if found >= 0:
            return None
        reservation, row = self._reserved(found)
        return (self._begins[reservation], row) if self._firsts[reservation] == _UNDER_WAY else None

    def maybe_first(self, names: Collection[str]) -> bool:
        """May one of them be one of the first names? It may be evicted."""
        if self._first_names is None:
            return False
        if len(names) <= _FEW:
            return any(self._first_names.number(name) is not None for name in names)
        return not self._first_names.isdisjoint(names)

    def reserve(self, names: Collection[str]) -> int | None:
        """Reserve names that are not `maybe_first`; None, and nothing is reserved, if one is known or there twice."""
        if not names:
            return None
        known, place = self._numbers, self._next
        before = len(known)
        places = range(-1 - place, -1 - place - len(names), -1)
        deque(map(known.setdefault, names, places), 0)
        if len(known) - before == len(names):
            self._begins.append(place)
            self._firsts.append(_UNDER_WAY)
            self._next += len(names)
            return place
        for name, mine in zip(names, places, strict=True):
            if known.get(name) == mine:
                del known[name]
        return None

    def landed(self, reservation: int, first: int) -> None:
        """The names of a reservation have the numbers from ``first`` on."""
        self._firsts[bisect_right(self._begins, reservation) - 1] = first

    def release(self, reservation: int, names: Collection[str]) -> None:
        """The names of a reservation will not land."""
        for name in names:
            del self._numbers[name]
        self.landed(reservation, _RELEASED)

    def add(self, names: Sequence[str], numbers: Sequence[int]) -> None:
        """Names that have landed, and their numbers."""
        self._numbers.update(zip(names, numbers, strict=True))

    def begin(self, names: pa.StringArray, added: NDArray[np.bool_]) -> None:
        """The first names: they have the numbers from 0 on. ``added``: which of the numbers there are."""
        self._first_names = _FirstNames(names, added)

    def first_name(self, number: int) -> str:
        """The name of one of the first numbers, while one of them is not evicted."""
        return "" if self._first_names is None else self._first_names.name(number)

    def remove(self, names: list[str], numbers: Integers) -> None:
        """These numbers are evicted: their names refer to nothing, unless it is to other numbers."""
        known = self._numbers
        found = np.fromiter(map(known.pop, names, numbers.tolist()), np.int64, len(names))
        reserved = np.flatnonzero(found < 0)
        its = found.copy()
        if len(reserved):
            places = -1 - found[reserved]
            begins, firsts = np.asarray(self._begins), np.asarray(self._firsts)
            which = np.searchsorted(begins, places, side="right") - 1
            its[reserved] = np.where(firsts[which] >= 0, firsts[which] + places - begins[which], -1)
        others = np.flatnonzero(its != numbers).tolist()
        if others:
            known.update((names[row], int(found[row])) for row in others)
            for name, number in zip(names, numbers.tolist(), strict=True):
                if self.number(name) == number:
                    known.pop(name, None)

    def evicted(self, first: int | None) -> None:
        """All numbers below ``first`` are evicted; None = all."""
        if self._first_names is not None and (first is None or first >= len(self._first_names)):
            self._first_names = None
        gone = 0
        for begin, number in zip(islice(self._begins, 1, None), self._firsts, strict=False):
            size = begin - self._begins[gone]
            if number == _UNDER_WAY or (number >= 0 and first is not None and number + size > first):
                break
            gone += 1
        del self._begins[:gone], self._firsts[:gone]

    def _reserved(self, found: int) -> tuple[int, int]:
        """The reservation of a place, and the name's number there."""
        reservation = bisect_right(self._begins, -1 - found) - 1
        return reservation, -1 - found - self._begins[reservation]


class _FirstNames:
    """The names of the entries with the numbers from 0 on, as one Arrow array, and an index of their hashes."""

    def __init__(self, names: pa.StringArray, added: NDArray[np.bool_]) -> None:
        """``added``: which of the numbers there are."""
        self._names = names
        hashes = hashes_of(names)
        order = np.argsort(hashes, kind="stable")
        order = order[added[order]]
        self._hashes, self._numbers = array("q", hashes[order].tobytes()), array("q", order.tobytes())

    def __len__(self) -> int:
        return len(self._names)

    def name(self, number: int) -> str:
        name: str = self._names[number].as_py()
        return name

    def number(self, name: str) -> int | None:
        """The last number with this name."""
        wanted = hash(name)
        at = bisect_right(self._hashes, wanted) - 1
        while at >= 0 and self._hashes[at] == wanted:
            if self.name(self._numbers[at]) == name:
                return self._numbers[at]
            at -= 1
        return None

    def isdisjoint(self, names: Collection[str]) -> bool:
        """Is none of the names here? False may also mean that one has the hash of another."""
        wanted = np.fromiter(map(hash, names), np.int64, len(names))
        known = np.frombuffer(self._hashes, np.int64)
        at = np.minimum(np.searchsorted(known, wanted), len(known) - 1)
        return not bool((known[at] == wanted).any())


def hashes_of(names: pa.StringArray) -> Integers:
    """Python's hash of each name; they are not held as Python objects all at once."""
    hashes = np.empty(len(names), np.int64)
    for first in range(0, len(names), _AT_ONCE):
        part = names[first : first + _AT_ONCE]
        hashes[first : first + len(part)] = np.fromiter(map(hash, part.to_pylist()), np.int64, len(part))
    return hashes
