"""The batches in the order in which a consumer reads them, and which of them a position has. Pure: no clock, no I/O."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from checkback.consumer.position import BatchKey, Position, last_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


class ListedBatch(NamedTuple):
    """A batch, and the tables that it wrote; None = not known. ``versions``: theirs, until it is listed.

    ``first``: None = it is one batch; of a run of consecutive ones (`batch_runs`) id and time of the first, while
    ``key`` and ``finished_at`` are those of the last.
    """

    key: BatchKey
    finished_at: int
    tables: frozenset[str] | None
    versions: tuple[tuple[str, int], ...] = ()
    first: tuple[int, int] | None = None

    @property
    def first_id(self) -> int:
        """The first batch."""
        return self.key.batch_id if self.first is None else self.first[0]

    @property
    def first_time(self) -> int:
        """The time of the first batch (ms)."""
        return self.key.batch_time if self.first is None else self.first[1]

    def of(self, batch_id: int, time: int) -> bool:
        """True if a batch of this id and time (ms) is the batch, or, as far as is known, one of the run."""
        return self.first_id <= batch_id <= self.key.batch_id and self.first_time <= time <= self.key.batch_time


class BatchListing:
    """Batches in order; only appended to. ``latest``: the latest time up to each batch of its run.

    One thread appends while others read: whoever sees a batch in ``batches`` finds all else of it. The other members
    may have one batch more.

    ``needed``: by table the indices of batches and the least version of the table that these and all later ones name,
    ascending. Where a later batch names a smaller version, the table was recreated, or restored, before it.
    """

    def __init__(self, floor: Position | None = None) -> None:
        """``floor``: the batches that it has whole are left out, as far as that is worth it."""
        self.floor = floor or Position()
        self.batches: list[ListedBatch] = []
        self.index: dict[BatchKey, int] = {}
        self.begins: list[int] = []
        self.latest: list[int] = []
        self.finished: list[int] = []
        self.needed: dict[str, tuple[array[int], array[int]]] = {}

    def append(self, batch: ListedBatch) -> None:
        """Append a batch that is new."""
        at, time = len(self.batches), batch.key.batch_time
        last = self.batches[-1].key if self.batches else None
        if last is None or last.application != batch.key.application or last.batch_id > batch.key.batch_id:
            self.begins = [*self.begins, at]
        else:
            time = max(time, self.latest[-1])
        self.index[batch.key] = at
        self.latest.append(time)
        self.finished.append(batch.finished_at)
        for name, version in batch.versions:
            places, versions = self.needed.get(name) or (array("q"), array("q"))
            kept = bisect_right(versions, version)
            if kept < len(versions):  # copies: another thread may read them
                places, versions = places[:kept], versions[:kept]
            versions.append(version)
            places.append(at)  # last: as many of both count
            self.needed[name] = places, versions
        self.batches.append(batch._replace(versions=()))

    def extend(self, found: Iterable[ListedBatch]) -> None:
        """Append those that are new, application by application."""
        new = {
            batch.key: batch for batch in sorted(found, key=lambda one: one.finished_at) if batch.key not in self.index
        }
        if not new:
            return
        begun: dict[str, int] = {}
        for batch in new.values():
            begun.setdefault(batch.key.application, batch.finished_at)
        for batch in sorted(new.values(), key=lambda one: (begun[one.key.application], one.key)):
            self.append(batch)

    def runs(self) -> Iterator[tuple[str, int, int]]:
        """Consecutive batches of one application: that, the first index, and the last one + 1."""
        count = len(self.batches)  # before the begins: they may have one more
        begins = self.begins
        for first, end in zip(begins, [*begins[1:], count], strict=False):
            if first < count:
                yield self.batches[first].key.application, first, min(end, count)

    def end(self, batch_id: int, first: int, end: int) -> int:
        """Behind the batches of a run with ids up to this one."""
        return bisect_right(self.batches, batch_id, first, end, key=lambda batch: batch.key.batch_id)

    def index_of(self, key: BatchKey) -> int | None:
        """Index of the batch, or of the run that it is in; None if it is not there."""
        found = self.index.get(key)
        return found if found is not None else self._find(key.batch_id, key.batch_time, key.application)

    def key_of(self, batch_id: int, time: int) -> BatchKey | None:
        """The batch of this id and time (ms); None if it is not there."""
        at = self._find(batch_id, time)
        return None if at is None else BatchKey(self.batches[at].key.application, batch_id, time)

    def _find(self, batch_id: int, time: int, application: str | None = None) -> int | None:
        """``application``: None = any. A batch of its own comes before a run."""
        found = None
        for name, first, end in self.runs():
            at = self.end(batch_id - 1, first, end) if application in (None, name) else end
            while at < end and self.batches[at].first_id <= batch_id:
                if self.batches[at].of(batch_id, time):
                    found = at
                    if self.batches[at].first is None:
                        return at
                at += 1
        return found

    def first_behind(self, table: str, version: int, created_at: int) -> tuple[int, int] | None:
        """Index of the first batch whose rows a table of this version may lack, and the version that has them.

        None: it has those of all. ``created_at``: when the table was made (ms); what was in its place before does not
        matter, nor does where a batch's version is not known.
        """
        places, versions = self.needed.get(table) or (array("q"), array("q"))
        count = len(places)
        old = bisect_left(places, created_at, 0, count, key=self.finished.__getitem__)
        at = max(old, bisect_right(versions, version, 0, count))
        return None if at >= count else (places[at - 1] + 1 if at else 0, versions[at])

    def consumed_before(self, index: int) -> Position:
        """The position before the batch with this index: all earlier ones are consumed."""
        last: dict[str, BatchKey] = {}
        for application, first, end in self.runs():
            if first < index:
                at = min(end, index) - 1
                last = last_of([BatchKey(application, self.batches[at].key.batch_id, self.latest[at])], last)
        latest = self.batches[index - 1].key.batch_time if index > 0 else None
        return self.floor.after_batches(last.values(), latest)

    def lacks(self, position: Position) -> bool:
        """True if a batch that the position names is gone: the table was restored from a backup."""
        return any(not self._has(name, last, position.times[name]) for name, last in position.consumed.items())

    def _has(self, application: str, batch_id: int, until: int) -> bool:
        """True if there is such a batch, of a time up to ``until`` (ms)."""
        for name, first, end in self.runs():
            if name == application:
                at = self.end(batch_id - 1, first, end)
                if at < end:
                    batch = self.batches[at]
                    if batch.first_id <= batch_id and batch.first_time <= until:
                        return batch.first is not None or batch.key.batch_time <= until
        return False

    def first_since(self, time: int) -> int:
        """Index of the first batch of a time (ms) or later; the number of batches if there is none."""
        count = len(self.batches)
        return next((at for at in range(count) if self.batches[at].key.batch_time >= time), count)

    def first_unconsumed(self, position: Position) -> int:
        """Index of the first batch that is not consumed whole; the number of batches if there is none."""
        end = 0
        for application, first, end in self.runs():
            last = position.consumed.get(application)
            if last is None:
                return first
            at = bisect_right(self.latest, position.times[application], first, self.end(last, first, end))
            if at < end:
                return at
        return end


def begins_of(batches: Sequence[ListedBatch]) -> NDArray[np.int64]:
    """The index of each batch, or of the first one of each run, among all batches; last, their number."""
    counts = [0, *(batch.key.batch_id - batch.first_id + 1 for batch in batches)]
    found: NDArray[np.int64] = np.cumsum(np.array(counts, np.int64))
    return found
