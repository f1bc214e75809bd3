"""Finds the half message of other rows, by queue_id and queue_offset: an index of an Arrow table's rows. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.reconcile.records.sorted_records import find

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

#: Places that the index may have for each row, besides some for all: offsets follow one another, mostly.
_SPARSE, _SPARE = 8, 1024
KEY = ["queue_id", "queue_offset"]


class HalfIndex:
    """An index of ``half``: rows with queue_id and queue_offset, both possibly null."""

    def __init__(self, half: pa.Table) -> None:
        known = half.select(KEY).drop_null()
        self._queues = known.column("queue_id").unique()
        offsets = known.column("queue_offset").to_numpy()
        self._least, self._most = (int(offsets.min()), int(offsets.max())) if len(offsets) else (0, -1)
        self._width = self._most - self._least + 1
        self._offsets = self._keys = None
        if self._width * len(self._queues) > _SPARSE * len(offsets) + _SPARE:
            self._offsets = np.unique(offsets)
            self._width = len(self._offsets)
            self._keys = np.unique(self._numbered(known))
        places = self._places(half)
        self._rows = np.full(self._width * len(self._queues) if self._keys is None else len(self._keys), -1)
        self._rows[places[places >= 0]] = np.flatnonzero(places >= 0)

    def find(self, rows: pa.Table) -> Numbers:
        """Of each row the number of a half message with its queue_id and queue_offset; -1: there is none."""
        places = self._places(rows)
        if not len(self._rows):
            return places
        return np.where(places >= 0, self._rows[places], -1)

    def _places(self, rows: pa.Table) -> Numbers:
        """The place of each row in `_rows`; -1: it has none."""
        numbers = self._numbered(rows)
        return numbers if self._keys is None else _ranks(numbers, self._keys)

    def _numbered(self, rows: pa.Table) -> Numbers:
        """A number for each queue id and offset; -1: no half message has it."""
        queue = pc.index_in(rows.column("queue_id"), value_set=self._queues).fill_null(-1).to_numpy().astype(np.int64)
        column = rows.column("queue_offset")
        offset, there = column.fill_null(0).to_numpy(), column.is_valid().to_numpy()
        if self._offsets is None:
            there &= (offset >= self._least) & (offset <= self._most)
            offset = offset - self._least
        else:
            offset = _ranks(offset, self._offsets)
            there &= offset >= 0
        return np.where(there & (queue >= 0), queue * self._width + offset, -1)


def _ranks(values: Numbers, of: Numbers) -> Numbers:
    """The place of each value in the sorted ``of``; -1: it is not there."""
    at, known = find(of, values)
    return np.where(known, at, -1)
