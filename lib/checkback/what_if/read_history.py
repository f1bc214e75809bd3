"""Which batch read which files of a source, as `batches` tells (`read_ranges`, `restored_at`). Pure.

A file's *place* is its version and number within it, as one number. What is told of a row is a *code*: twice the turn
that read it, and 1 more if the rebuild before that batch restored it; NOT_TOLD, or NEVER = no batch has read it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.read_ranges import READ
from checkback.what_if.records import NEVER, NOT_TOLD

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa
    from numpy.typing import NDArray

    from checkback.what_if.timeline import Timeline

#: more than a commit has files
_FILES = 1 << 24


def place_of(version: int, index: int) -> int:
    """The place of a file; index -1: before the version's files."""
    return version * _FILES + index + 1


@dataclass(frozen=True)
class ReadHistory:
    """Of one source: the places after ``begins`` up to ``ends``, ascending, have these ``codes``.

    ``unread``: the place after which no batch has read anything; None = not known.
    """

    begins: NDArray[Any]
    ends: NDArray[Any]
    codes: NDArray[Any]
    unread: int | None

    def of(self, places: NDArray[Any]) -> NDArray[Any]:
        """The code of each of these places."""
        found = np.full(len(places), NOT_TOLD)
        if len(self.ends):
            at = np.minimum(np.searchsorted(self.ends, places), len(self.ends) - 1)
            inside = (places > self.begins[at]) & (places <= self.ends[at])
            found[inside] = self.codes[at[inside]]
        if self.unread is not None:
            found[places > self.unread] = NEVER
        return found

    def first_version(self, turn: int) -> int | None:
        """The first version of which the batches from ``turn`` on have read anything; None = none tells."""
        mine = self.begins[self.codes >= 2 * turn]
        return max(0, int(mine.min()) // _FILES) if len(mine) else None


def histories(ranges: pa.ChunkedArray, restored: pa.ChunkedArray, timeline: Timeline) -> dict[str, ReadHistory]:
    """By source, from the columns `read_ranges` and `restored_at` of the batches in order."""
    restored_at: dict[int, Mapping[str, int]] = {
        turn: dict(restored[turn].as_py()) for turn in np.flatnonzero(restored.is_valid().to_numpy()).tolist()
    }
    told = _by_source(ranges)
    return {name: _history(told[name], name, restored_at, timeline) for name in READ}


def decoded(codes: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """By code the turn, NOT_TOLD or NEVER; and whether a rebuild has restored it."""
    plain = (codes == NOT_TOLD) | (codes == NEVER)
    return np.where(plain, codes, codes // 2), ~plain & (codes % 2 == 1)


def _by_source(ranges: pa.ChunkedArray) -> dict[str, tuple[NDArray[Any], NDArray[Any], NDArray[Any]]]:
    """By source: the turns that tell of it, and the places after which and up to which each has read."""
    turns, names, spans = [], [], []
    first = 0
    for chunk in ranges.chunks:
        offsets = np.asarray(chunk.offsets)
        turns.append(first + np.repeat(np.arange(len(chunk)), np.diff(offsets)))
        inside = slice(int(offsets[0]), int(offsets[-1]))
        names.append(chunk.keys[inside])
        items = chunk.items[inside]
        spans.append([np.asarray(items.field(number).fill_null(0)) for number in range(4)])
        first += len(chunk)
    turn = np.concatenate([np.empty(0, np.int64), *turns])
    name = np.array([each for chunk in names for each in chunk.to_pylist()], object)
    version, index, to_version, to_index = (
        np.concatenate([np.empty(0, np.int64), *(span[number] for span in spans)]) for number in range(4)
    )
    begins, ends = version * _FILES + index + 1, to_version * _FILES + to_index + 1
    mine = {source: name == source for source in READ}
    return {source: (turn[here], begins[here], ends[here]) for source, here in mine.items()}


def _history(
    told: tuple[NDArray[Any], NDArray[Any], NDArray[Any]],
    name: str,
    restored_at: Mapping[int, Mapping[str, int]],
    timeline: Timeline,
) -> ReadHistory:
    turns, begins, ends = told
    rebuilt = []
    silent = np.setdiff1d(np.arange(len(timeline)), [*turns, *timeline.finished])
    for turn, versions in restored_at.items():
        before = np.flatnonzero(turns < turn)
        last = int(turns[before[-1]]) if len(before) else -1
        # What a batch that does not tell has read is not told of either.
        if name in versions and not ((silent > last) & (silent < turn)).any():
            until = int(ends[before].max(initial=-1))
            rebuilt.append((until, max(place_of(versions[name], -1), until), 2 * turn + 1))
    more = np.array(rebuilt, np.int64).reshape(-1, 3)
    begins, ends, codes = (
        np.concatenate(both) for both in ((begins, more[:, 0]), (ends, more[:, 1]), (2 * turns, more[:, 2]))
    )
    some = ends > begins
    order = np.argsort(ends[some], kind="stable")
    whole = len(turns) and turns[-1] == len(timeline) - 1
    unread = int(told[2].max()) if whole else None
    return ReadHistory(begins[some][order], ends[some][order], codes[some][order], unread)
