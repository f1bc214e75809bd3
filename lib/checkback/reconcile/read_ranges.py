"""Which files of `half` and `op` a batch has read, as recorded in `batches`. Pure.

Spark's offset log has where a batch ended in each of its sources, but keeps only the last 100 batches. The files of a
version are those that its commit added as new data (``dataChange``), numbered from 0 in the order of its log entry.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.storage.checkpoints.checkpoint import StreamPosition
from checkback.storage.schemas import SOURCES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from checkback.storage.checkpoints.checkpoint import Batch

#: the query whose batches these are, and its sources with rows
_QUERY, READ = "reconcile", ("half", "op")


class ReadRange(NamedTuple):
    """The files after ``from_index`` of ``from_version``, up to ``to_index`` of ``to_version``; -1 = none of it."""

    from_version: int
    from_index: int
    to_version: int
    to_index: int


def read_ranges(batch: Batch, before: Batch | None, restored: Mapping[str, int] | None = None) -> dict[str, ReadRange]:
    """By source what the batch read: from the end of the batch ``before`` it to its own.

    ``before``: None = it is the first of its checkpoint, which begins with the tables' beginning or, after a rebuild,
    with the versions ``restored``. A source is left out while its first snapshot is read in several batches: the
    snapshot's files are numbered otherwise than those of a version.
    """
    found = {}
    for at, name in enumerate(SOURCES[_QUERY]):
        if name not in READ:
            continue
        begin = (None if before is None else before.position(at)) or StreamPosition("", (restored or {}).get(name, 0))
        end = batch.position(at) or begin
        if not (begin.starting or end.starting):
            found[name] = ReadRange(begin.version, max(begin.index, -1), end.version, max(end.index, -1))
    return found
