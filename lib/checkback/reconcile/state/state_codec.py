"""Codec between a segment and its block of bytes in the state store.

Layout, little-endian: a header, then LZ4-compressed: the bitmap of seen offsets, the PENDING, EARLY and SCHEDULED
records, each byte-transposed (the first bytes of all records, then the second bytes, and so on). The high bytes of
times and offsets form runs that way, and a full segment takes a quarter of the space, which is copied to Python and
back.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.errors import StateError
from checkback.reconcile.records.segment_records import EARLY, PENDING, SCHEDULED, Records
from checkback.reconcile.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: of the layout of a block, and of `next_deliveries` beside it
VERSION = 1
# mark, version, segment size, both timers, seen_until, number of pending, of early, of scheduled, compressed bytes
_HEADER = struct.Struct("<2sHIqqqIIII")
_MARK = b"CB"
_CODEC = "lz4_raw"
_FEW = 256  # up to this number of records, one transpose is faster than one assignment per byte
REBUILD = "rebuild the checkpoint from the tables: `checkback rebuild`"

#: sentinel: the segment has no timer
NO_TIMER = -1
#: sentinel: the segment has deferred work for the next batch
AT_ONCE = 0


class Timers(NamedTuple):
    """A segment's registered timers (ms): for what is ``due`` in it, and for its next ``delivery``; or NO_TIMER."""

    due: int = NO_TIMER
    delivery: int = NO_TIMER


NO_TIMERS = Timers()


def encode(segment: Segment, timers: Timers = NO_TIMERS) -> bytes:
    """The block of a segment. ``timers``: the registered ones, so that listing timers is unnecessary."""
    bits = np.packbits(segment.seen, bitorder="little")
    records = segment.pending, segment.early, segment.scheduled
    raw = b"".join((bits.tobytes(), *map(_bytes_of, records)))
    packed: bytes = pa.compress(raw, _CODEC, asbytes=True)
    fields = len(segment.seen), *timers, segment.seen_until, *map(len, records), len(packed)
    return _HEADER.pack(_MARK, VERSION, *fields) + packed


def decode(block: bytes, base: int, size: int) -> tuple[Segment, Timers]:
    """The segment in a block, and its timers.

    Raises StateError if the block is truncated, or has another version or segment size.
    """
    if len(block) < _HEADER.size or block[:2] != _MARK:
        raise StateError("a segment's state is not Checkback's", fix=REBUILD)
    _, version, length, due, delivery, seen_until, n_pending, n_early, n_scheduled, n_packed = _HEADER.unpack_from(
        block
    )
    refuse_other(version, length, size)
    sizes = (
        -(-length // 8),
        n_pending * PENDING.itemsize,
        n_early * EARLY.itemsize,
        n_scheduled * SCHEDULED.itemsize,
    )
    packed = block[_HEADER.size :]
    # Arrow's decompress does not detect truncated input.
    if len(packed) != n_packed:
        raise StateError("a segment's state is cut off", fix=REBUILD)
    raw = np.frombuffer(pa.decompress(packed, sum(sizes), _CODEC), np.uint8)
    bits, pending, early, scheduled = np.split(raw, np.cumsum(sizes)[:-1])
    seen = np.unpackbits(bits, count=length, bitorder="little").astype(bool)
    records = _records(pending, PENDING), _records(early, EARLY), seen_until, _records(scheduled, SCHEDULED)
    return Segment(base, seen, *records), Timers(due, delivery)


def refuse_other(version: int, length: int, size: int) -> None:
    """Raises StateError if state of this version and segment size, ``length``, is not what the caller expects."""
    if version != VERSION:
        raise StateError(
            f"a segment's state has version {version}, this release reads {VERSION}",
            fix=f"run the release that wrote it, or {REBUILD}",
        )
    if length != size:
        raise StateError(
            f"the checkpoint has segments of {length} offsets, the settings say {size}",
            where="reconcile.segment_size",
            fix=f"set it to {length}, or {REBUILD}",
        )


def _bytes_of(records: Records) -> bytes:
    rows = np.ascontiguousarray(records).view(np.uint8).reshape(-1, records.dtype.itemsize)
    turned: bytes = rows.T.tobytes()
    return turned


def _records(raw: NDArray[np.uint8], kind: np.dtype[np.void]) -> Records:
    """The inverse of `_bytes_of`."""
    rows = raw.reshape(kind.itemsize, -1)
    if rows.shape[1] <= _FEW:
        few: Records = np.ascontiguousarray(rows.T).view(kind).reshape(-1)
        return few
    records = np.empty(rows.shape[1], kind)
    places = records.view(np.uint8).reshape(-1, kind.itemsize)
    for place, row in enumerate(rows):
        places[:, place] = row
    return records
