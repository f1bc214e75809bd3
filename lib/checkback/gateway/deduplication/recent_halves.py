"""Rows of `half` and `op` as entries of the deduplication cache, by column: a start reads a million. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.gateway.deduplication.remembered_half import CODE_OF, RememberedColumns, fingerprints, joined_names
from checkback.messages.op import STATES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from checkback.storage.rejected_ops import RejectedOps

    Integers = NDArray[np.int64]


def entries_of(rows: pa.Table) -> RememberedColumns:
    """The entries of rows of `half`, in their order.

    Unexpected nulls: empty text, and times as in `event_columns.half_events`.
    """
    stored = _us(rows, "store_timestamp", np.zeros(len(rows), np.int64))
    committed = np.asarray(rows.column("committed").fill_null(False)).astype(np.uint8)
    comparable = np.asarray(rows.column("erased_at").is_null()) & np.asarray(rows.column("body").is_valid())
    return RememberedColumns(
        queue_ids=_integers(rows.column("queue_id")),
        offsets=_integers(rows.column("queue_offset")),
        names=joined_names(rows.column("producer_group"), rows.column("transaction_id")),
        # What is erased, or has lost its body to retention, cannot be compared: 0 = unknown.
        fingerprints=np.where(comparable, fingerprints(rows), 0),
        topics=_shared_texts(rows.column("real_topic")),
        born=_us(rows, "born_timestamp", stored) // 1000,
        stored=stored // 1000,
        states=(committed * CODE_OF["COMMIT"]).tobytes(),
    )


def last_of(parts: Sequence[RememberedColumns], most: int) -> RememberedColumns:
    """The ``most`` that landed last, in the order of landing."""
    names = pa.chunked_array([part.names for part in parts], pa.string())
    topics = [topic for part in parts for topic in part.topics]
    columns = [
        np.concatenate([np.zeros(0, np.int64), *(getattr(part, column) for part in parts)])
        for column in ("queue_ids", "offsets", "fingerprints", "born", "stored")
    ]
    states = np.frombuffer(b"".join(part.states for part in parts), np.uint8)
    order = np.lexsort((columns[1], columns[4]))[max(0, len(names) - most) :]
    if len(order) == len(names) and (np.diff(order) == 1).all():  # as it usually is: less memory
        joined = pa.concat_arrays(names.chunks or [pa.array([], pa.string())])
        return RememberedColumns(
            columns[0], columns[1], joined, columns[2], topics, columns[3], columns[4], states.tobytes()
        )
    queue_ids, offsets, prints, born, stored = (column[order] for column in columns)
    places = order.tolist()
    return RememberedColumns(
        queue_ids,
        offsets,
        pa.concat_arrays(names.take(pa.array(order)).chunks or [pa.array([], pa.string())]),
        prints,
        [topics[place] for place in places],
        born,
        stored,
        states[order].tobytes(),
    )


class FirstOps:
    """The first op that fits each of the half messages (`first_op`), and was not ``rejected``."""

    def __init__(self, halves: RememberedColumns, rejected: RejectedOps) -> None:
        self._halves, self._rejected = halves, rejected
        self._names = pa.array(halves.names, pa.string())
        #: by queue: offsets, ascending, and the half message at each; of several at one the first
        self._places: dict[int, tuple[Integers, Integers]] = {}
        for queue_id in np.unique(halves.queue_ids).tolist():
            rows = np.flatnonzero(halves.queue_ids == queue_id)
            offsets, firsts = np.unique(halves.offsets[rows], return_index=True)
            self._places[queue_id] = offsets, rows[firsts]
        #: columns: half message, stored (us), born (ms), not a ROLLBACK, code of the state
        self._found: list[Integers] = []
        self._count = 0

    def add(self, ops: pa.Table) -> None:
        """Rows of `op`."""
        ops = ops.filter(pc.is_in(ops.column("state"), pa.array(STATES)))
        queue_ids, offsets = _integers(ops.column("queue_id")), _integers(ops.column("queue_offset"), -1)
        halves = np.full(len(ops), -1)
        for queue_id, (places, its) in self._places.items():
            rows = np.flatnonzero(queue_ids == queue_id)
            at = np.minimum(np.searchsorted(places, offsets[rows]), len(places) - 1)
            halves[rows] = np.where(places[at] == offsets[rows], its[at], -1)
        if not (halves >= 0).all():
            ops, halves = ops.filter(pa.array(halves >= 0)), halves[halves >= 0]
        own = self._own(ops, halves)
        if self._rejected:
            at = np.flatnonzero(np.isin(_integers(ops.column("queue_offset"), -1), self._rejected.offsets))
            own[at] &= np.array([op not in self._rejected for op in ops.take(pa.array(at)).to_pylist()], np.bool_)
        if not own.all():
            ops, halves = ops.filter(pa.array(own)), halves[own]
        stored = _us(ops, "store_timestamp", np.zeros(len(ops), np.int64))
        state = _integers(pc.index_in(ops.column("state"), pa.array(STATES)))
        born = _us(ops, "born_timestamp", stored) // 1000
        commits = state != STATES.index("ROLLBACK")
        codes = np.array([CODE_OF[name] for name in STATES])[state]
        self._found.append(np.stack([halves, stored, born, commits.astype(np.int64), codes]))
        self._count += len(ops)
        if self._count > 2 * len(self._halves.names):  # many ops for few half messages
            self._found = [self._first()]
            self._count = self._found[0].shape[1]

    def ended(self) -> RememberedColumns:
        """The half messages with the states of these ops, where they had none."""
        halves = self._halves
        states = np.frombuffer(halves.states, np.uint8).copy()
        if self._found:
            half, _, _, _, codes = self._first()
            states[half] = np.where(states[half], states[half], codes)
        return RememberedColumns(**{**vars(halves), "states": states.tobytes()})

    def _own(self, ops: pa.Table, halves: Integers) -> NDArray[np.bool_]:
        """Which ops have the group and the transaction id, if any, of their half message."""
        groups, ids = ops.column("producer_group"), ops.column("transaction_id")
        wanted = self._names.take(pa.array(halves))
        own = np.array(pc.equal(joined_names(groups, ids), wanted))
        for row in np.flatnonzero(np.asarray(pc.is_null(ids)) | np.asarray(pc.is_null(groups))).tolist():
            group, transaction_id = groups[row].as_py(), ids[row].as_py()
            own[row] = transaction_id is None and group == wanted[row].as_py().partition("/")[0]
        return own

    def _first(self) -> Integers:
        """The first op of each half message."""
        found = np.concatenate(self._found, axis=1)
        if np.bincount(found[0]).max(initial=0) <= 1:
            return found
        found = found[:, np.lexsort(found[3::-1])]
        _, firsts = np.unique(found[0], return_index=True)
        return found[:, firsts]


def rows_by_queue(queue_ids: Integers) -> Iterator[tuple[int, Integers]]:
    """The rows of each queue, ascending."""
    if len(queue_ids) and (queue_ids == queue_ids[0]).all():
        yield int(queue_ids[0]), np.arange(len(queue_ids))
        return
    for queue_id in np.unique(queue_ids).tolist():
        yield queue_id, np.flatnonzero(queue_ids == queue_id)


def _shared_texts(column: pa.ChunkedArray) -> list[str]:
    """The texts, equal ones as one object; null is empty."""
    texts: list[str] = []
    for chunk in column.chunks:
        code = (chunk.fill_null("") if chunk.null_count else chunk).dictionary_encode()
        values = code.dictionary.to_pylist()
        texts += map(values.__getitem__, code.indices.to_pylist())
    return texts


def _integers(column: pa.ChunkedArray, null: int = 0) -> Integers:
    return np.asarray(column.cast(pa.int64()).fill_null(null))


def _us(rows: pa.Table, name: str, null: Integers) -> Integers:
    """A column of times, in us."""
    times = rows.column(name).cast(pa.int64())
    return np.asarray(times) if not times.null_count else np.where(np.asarray(times.is_null()), null, _integers(times))
