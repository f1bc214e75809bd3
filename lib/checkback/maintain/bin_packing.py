"""Which small files of a table become one: a pure function. No I/O.

A file is written again only with others that are together at least as large: so a row is written again some ten times
in all, however often `maintain` runs, and not by every run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from checkback.storage.schemas import statistics_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: tables whose files, and the rows in them, lie in the order of the offsets: rows are looked up by these
BY_OFFSET = ("half", "op")
#: of a group: a commit names each of them
MOST_FILES = 10_000


@dataclass(frozen=True)
class Candidate:
    """A file: path, bytes, bytes of its rows when they are read, (least, greatest) of the columns with statistics."""

    path: str
    size: int
    memory: int
    spans: Mapping[str, tuple[Any, Any]]


def order_of(name: str) -> tuple[str, ...]:
    """The columns by whose least values the files of a table are put in order: of most tables the time."""
    columns = statistics_of(name)
    return columns[:2] if name in BY_OFFSET else columns[-1:]


def groups(
    files: Sequence[Candidate], order: Sequence[str], target: int, least: int, memory: int
) -> list[list[Candidate]]:
    """Files that are to become one, in order: each group at most ``target`` bytes, and ``memory`` bytes when read.

    None when fewer than ``least`` files are smaller than ``target``. Files of ``target`` bytes and more stay as they
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
    """Sorts by the least value; a file of which it is not known comes first."""
    span = file.spans.get(column)
    return (False, 0) if span is None else (True, span[0])
