"""Lookup of the rows of `half` that a batch acts on, by integers, in the tasks that read `half`."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from checkback.messages.trace_context import TRACEPARENT
from checkback.reconcile.records.actions import ACTED_ON, PUBLISHED, Actions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.reconcile.records.segment_records import Bits, Records

#: one action on a row of `half`; sent to every task
WANTED = np.dtype(
    [
        ("queue_id", "<i4"),
        ("offset", "<i8"),
        ("store", "<i8"),
        ("action", "u1"),
        ("detail", "u1"),
        ("check_times", "<i4"),
        ("due", "<i8"),
    ]
)
_UNDELAYED = np.dtype([field for field in WANTED.descr if field[0] != "due"])
_IDENTITY = np.dtype([("group", "<i8"), ("transaction", "<i8")])
_COUNT = struct.Struct("<q")

Numbers = NDArray[Any]


@dataclass(frozen=True)
class HalfLookup:
    """WANTED records sorted by queue_id, offset and store, with the batch's time (ms) and id.

    The records have no field ``due`` if it is 0 in all of them.
    ``identity``: their group and transaction hashes, if `half` repeats (queue_id, queue_offset, store_timestamp); else
    None. ``links``: how many trace contexts of the messages a task reports at most.
    """

    records: Records
    identity: Records | None
    batch_time: int
    batch_id: int
    links: int = 0

    @classmethod
    def of(cls, actions: Actions, batch_id: int, by_identity: bool = False, links: int = 0) -> HalfLookup:
        """The lookup for the actions on pending half messages. ``by_identity``: always match the identity, too."""
        about = actions.only(*ACTED_ON).records
        about = about[np.lexsort((about["store"], about["offset"], about["queue_id"]))]
        records = np.empty(len(about), WANTED if about["due"].any() else _UNDELAYED)
        for name in records.dtype.names or ():
            records[name] = about[name]
        identity = None
        if by_identity or actions.repeated:
            identity = np.empty(len(about), _IDENTITY)
            identity["group"], identity["transaction"] = about["group"], about["transaction"]
        return cls(records, identity, actions.batch_time, batch_id, links)

    def published(self) -> HalfLookup:
        """Only the messages to publish."""
        mine = np.isin(self.records["action"], PUBLISHED)
        identity = None if self.identity is None else self.identity[mine]
        return replace(self, records=self.records[mine], identity=identity)

    def find(
        self, queue_id: Numbers, offset: Numbers, store: Numbers, identity: tuple[Numbers, Numbers] | None = None
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """(rows, records): indexes of the wanted rows, and of the record that each matches.

        Several records may share an offset: an offset may be reused after its segment was evicted.
        """
        rows, found = [], []
        for queue in np.unique(queue_id):
            begin, end = self._between("queue_id", queue, queue)
            offsets = self.records["offset"][begin:end]
            row = np.flatnonzero(queue_id == queue)
            at = np.searchsorted(offsets, offset[row])
            while len(row):
                inside = at < end - begin
                row, at = row[inside], at[inside]
                same = offsets[at] == offset[row]
                row, at = row[same], at[same]
                hit = self.records["store"][begin + at] == store[row]
                if self.identity is not None and identity is not None:
                    hit &= self.identity["group"][begin + at] == identity[0][row]
                    hit &= self.identity["transaction"][begin + at] == identity[1][row]
                rows.append(row[hit])
                found.append(begin + at[hit])
                row, at = row[~hit], at[~hit] + 1
        if not rows:
            return np.empty(0, np.intp), np.empty(0, np.intp)
        return np.concatenate(rows), np.concatenate(found)

    def most_in(self, spans: Mapping[str, tuple[int, int]]) -> int:
        """Data skipping: how many records rows with these (min, max) of queue_id and queue_offset may match at most.

        Without them any may.
        """
        queues, offsets = spans.get("queue_id"), spans.get("queue_offset")
        first, last = (0, len(self.records)) if queues is None else self._between("queue_id", *queues)
        if offsets is None:
            return last - first
        rows = self.records["offset"][first:last]
        if queues is None or queues[0] != queues[1]:
            return int(((rows >= offsets[0]) & (rows <= offsets[1])).sum())
        begin, end = _run_of(rows, *offsets)
        return end - begin

    def spans(self) -> dict[str, tuple[int, int]]:
        """(min, max) of queue_id and queue_offset."""
        columns = {"queue_id": self.records["queue_id"], "queue_offset": self.records["offset"]}
        return {name: (int(values.min()), int(values.max())) for name, values in columns.items() if len(values)}

    def _between(self, name: str, least: int, most: int) -> tuple[int, int]:
        return _run_of(self.records[name], least, most)

    def missing(self, notes: Iterable[bytes]) -> tuple[int, int]:
        """(number of records not found, number found more than once), from the tasks' notes (`FoundRows`)."""
        seen = np.zeros(len(self.records), bool)
        total = 0
        for note in notes:
            bits = np.frombuffer(zlib.decompress(note[_COUNT.size :]), np.uint8)
            seen |= np.unpackbits(bits, count=len(seen)).astype(bool)
            total += _COUNT.unpack_from(note)[0]
        found = int(seen.sum())
        return len(seen) - found, total - found


def _run_of(values: Numbers, least: int, most: int) -> tuple[int, int]:
    """The slice of the values from ``least`` to ``most``, inclusive. Not with most + 1, which may overflow."""
    return int(np.searchsorted(values, least, "left")), int(np.searchsorted(values, most, "right"))


def due_times(records: Records) -> Numbers:
    """The field ``due`` of some of a lookup's records."""
    return records["due"] if "due" in (records.dtype.names or ()) else np.zeros(len(records), np.int64)


class FoundRows:
    """The records found by a task; the driver verifies from the tasks' notes that each was found once."""

    def __init__(self, wanted: HalfLookup) -> None:
        self._seen: Bits = np.zeros(len(wanted.records), bool)
        self._total = 0
        self._links = wanted.links
        #: traceparents of their messages, each once, ``wanted.links`` at most
        self.traces: list[str] = []

    def add(self, records: NDArray[np.intp]) -> None:
        """Add found records."""
        self._seen[records] = True
        self._total += len(records)

    def add_traces(self, messages: pa.RecordBatch, rows: NDArray[np.intp]) -> None:
        """Add the traceparents of some rows of `half`, while there are fewer than ``links``."""
        if len(self.traces) < self._links:
            properties = messages.column("properties").take(pa.array(rows))
            # As bytes: another writer of `half` may have stored invalid UTF-8.
            names, values = (part.cast(pa.binary()) for part in (properties.keys, properties.items))
            there = values.filter(pc.equal(names, TRACEPARENT.encode())).unique().to_pylist()
            found = [(value or b"").decode("latin-1") for value in there]
            self.traces = list(dict.fromkeys([*self.traces, *found]))[: self._links]

    def note(self) -> bytes:
        """Their number, and a bitmap of the records, compressed."""
        return _COUNT.pack(self._total) + zlib.compress(np.packbits(self._seen).tobytes(), 1)
