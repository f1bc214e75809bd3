"""Bin-packing of a table's small files for compaction: a pure function. No I/O.

A file is rewritten only together with others that are in total at least as large. A row is therefore rewritten some ten
times in all, however often `maintain` runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.storage.schemas import statistics_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: tables whose files, and the rows in them, are sorted by offset, by which rows are looked up
BY_OFFSET = ("half", "op")
#: most files in a group: a commit lists each of them
MOST_FILES = 10_000


@dataclass(frozen=True)
class Candidate:
    """A file: path, size in bytes, in-memory size of its rows, (min, max) of the columns with statistics."""

    path: str
    size: int
    memory: int
    spans: Mapping[str, tuple[Any, Any]]


def order_of(name: str) -> tuple[str, ...]:
    """The columns by whose min values the files of a table are ordered: the time, for most tables."""
    columns = statistics_of(name)
    return columns[:2] if name in BY_OFFSET else columns[-1:]


def groups(
    files: Sequence[Candidate], order: Sequence[str], target: int, least: int, memory: int
) -> list[list[Candidate]]:
    """Groups of files to compact into one each, in order: at most ``target`` bytes, and ``memory`` bytes in memory.

    Empty if fewer than ``least`` files are smaller than ``target``. Files of ``target`` bytes and more stay as they
    are.
    """
    small = [file for file in files if file.size < target]
    if len(small) < least:
        return []
    small.sort(key=lambda file: [_first(file, column) for column in order])
    found: list[list[Candidate]] = []
    group: list[Candidate] = []
    size = unpacked = 0
    for file in small:
        size += file.size
        unpacked += file.memory
        if group and (size > target or unpacked > memory or len(group) == MOST_FILES):
            found.append(group)
            group, size, unpacked = [], file.size, file.memory
        group.append(file)
    found.append(group)
    return [worth for group in found if len(worth := _worth(group)) > 1]


def _worth(group: list[Candidate]) -> list[Candidate]:
    """Without the files that are larger than all smaller ones of the group together."""
    total = 0
    largest = 0
    for file in sorted(group, key=lambda file: file.size):
        if file.size <= total:
            largest = file.size
        total += file.size
    return [file for file in group if file.size <= largest]


def _first(file: Candidate, column: str) -> tuple[bool, Any]:
    """Sort key by the min value; files without statistics come first."""
    span = file.spans.get(column)
    return (False, 0) if span is None else (True, span[0])
