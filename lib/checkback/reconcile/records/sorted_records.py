"""Searching and numbering NumPy records that are sorted by offset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Bits, Records


def sort(records: Records, offset: str, *then: str) -> Records:
    """Records sorted by these fields (stable); unchanged if the offsets are strictly increasing."""
    if (records[offset][1:] > records[offset][:-1]).all():
        return records
    return records[np.lexsort([records[name] for name in (*reversed(then), offset)])]


def first_of_each(offsets: NDArray[Any]) -> Bits:
    """Mask of the first of each distinct offset; ``offsets`` are sorted."""
    first = np.ones(len(offsets), bool)
    first[1:] = offsets[1:] != offsets[:-1]
    return first


def only(rows: NDArray[Any], wanted: Bits) -> NDArray[Any]:
    """The wanted rows; no copy if that is all of them."""
    return rows if wanted.all() else rows[wanted]


def find(offsets: NDArray[Any], wanted: NDArray[Any]) -> tuple[NDArray[np.intp], Bits]:
    """The index of each wanted offset in the sorted offsets, and whether it is present."""
    at = np.searchsorted(offsets, wanted)
    if not len(offsets):
        return at, np.zeros(len(wanted), bool)
    at = np.minimum(at, len(offsets) - 1)
    return at, offsets[at] == wanted


def occurrence(ops: Records, *names: str) -> NDArray[Any]:
    """Number the ops that are equal in these fields: 0, 1, ... ``ops`` are sorted by offset."""
    if (ops["offset"][1:] > ops["offset"][:-1]).all():
        return np.zeros(len(ops), np.int64)
    order = np.lexsort([ops[name] for name in reversed(names)])  # stable: equal ops stay in order of arrival
    other = np.ones(len(ops), bool)
    other[1:] = np.logical_or.reduce([ops[name][order][1:] != ops[name][order][:-1] for name in names])
    turns = np.empty(len(ops), np.int64)
    starts = np.flatnonzero(other)
    turns[order] = np.arange(len(ops)) - np.repeat(starts, np.diff(np.append(starts, len(ops))))
    return turns
