"""Codec between a segment and its block of bytes in the state store.

Layout, little-endian: a header, then LZ4-compressed: the bitmap of seen offsets, the PENDING, EARLY and SCHEDULED
records, each byte-transposed (the first bytes of all records, then the second bytes, and so on). The high bytes of
times and offsets form runs that way, and a full segment takes a quarter of the space, which is copied to Python and
back. The version in the header changes with the layout; CHANGELOG lists the versions that a release reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.errors import StateError
from checkback.reconcile.records.records import EARLY, PENDING, SCHEDULED, Records
from checkback.reconcile.segment import Segment
from checkback.reconcile.state.group_hash import GROUP_HASH, GroupHash

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: same layout; the version identifies the group hash. Beside a block with scheduled messages are `next_deliveries`.
VERSIONS = {GroupHash.XXHASH64: 7, GroupHash.SHA1: 8}


def _pending_without(*names: str) -> np.dtype[np.void]:
    return np.dtype([(name, PENDING[name]) for name in PENDING.names or () if name not in names])


#: PENDING and group hash by version. 2 did not distinguish checks that count from others; 3 and 4 had no delays; 5 and
#: 6 had no `next_deliveries`.
_LAYOUTS = {
    2: (_pending_without("asked", "delay"), GroupHash.XXHASH64),
    3: (_pending_without("delay"), GroupHash.XXHASH64),
    4: (_pending_without("delay"), GroupHash.SHA1),
    5: (PENDING, GroupHash.XXHASH64),
    6: (PENDING, GroupHash.SHA1),
    **{version: (PENDING, group_hash) for group_hash, version in VERSIONS.items()},
}
#: versions without scheduled messages
_UNSCHEDULED = (2, 3, 4)
# mark, version, segment size, timer, seen_until, number of pending, number of early, compressed bytes
_HEADER = struct.Struct("<2sHIqqIII")
# the delivery timer, number of scheduled; not in _UNSCHEDULED
_MORE = struct.Struct("<qI")
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


def encode(segment: Segment, timers: Timers = NO_TIMERS, group_hash: GroupHash = GROUP_HASH) -> bytes:
    """The block of a segment. ``timers``: the registered ones, so that listing timers is unnecessary.

    ``group_hash``: that of its records.
    """
    bits = np.packbits(segment.seen, bitorder="little")
    raw = b"".join((bits.tobytes(), *map(_bytes_of, (segment.pending, segment.early, segment.scheduled))))
    packed: bytes = pa.compress(raw, _CODEC, asbytes=True)
    counts = len(segment.pending), len(segment.early), len(packed)
    head = _HEADER.pack(_MARK, VERSIONS[group_hash], len(segment.seen), timers.due, segment.seen_until, *counts)
    return head + _MORE.pack(timers.delivery, len(segment.scheduled)) + packed


def decode(block: bytes, base: int, size: int, group_hash: GroupHash | None = None) -> tuple[Segment, Timers]:
    """The segment in a block, and its timers. ``group_hash``: that of the events to apply, None = there are none.

    Raises StateError if the block is truncated, or has another version, group hash or segment size.
    """
    if len(block) < _HEADER.size or block[:2] != _MARK:
        raise StateError("a segment's state is not Checkback's", fix=REBUILD)
    _, version, length, timer, seen_until, n_pending, n_early, n_packed = _HEADER.unpack_from(block)
    refuse_other(version, length, size, group_hash)
    layout, _ = _LAYOUTS[version]
    start, delivery, n_scheduled = _HEADER.size, NO_TIMER, 0
    if version not in _UNSCHEDULED:
        start += _MORE.size
        if len(block) < start:
            raise StateError("a segment's state is cut off", fix=REBUILD)
        delivery, n_scheduled = _MORE.unpack_from(block, _HEADER.size)
    n_bits = -(-length // 8)
    sizes = (n_bits, n_pending * layout.itemsize, n_early * EARLY.itemsize, n_scheduled * SCHEDULED.itemsize)
    packed = block[start:]
    # Arrow's decompress does not detect truncated input.
    if len(packed) != n_packed:
        raise StateError("a segment's state is cut off", fix=REBUILD)
    raw = np.frombuffer(pa.decompress(packed, sum(sizes), _CODEC), np.uint8)
    bits, pending, early, scheduled = np.split(raw, np.cumsum(sizes)[:-1])
    seen = np.unpackbits(bits, count=length, bitorder="little").astype(bool)
    records = _brought_up(_records(pending, layout)), _records(early, EARLY), seen_until, _records(scheduled, SCHEDULED)
    return Segment(base, seen, *records), Timers(timer, delivery)


def version_of(block: bytes) -> int:
    """The version of a block that `decode` reads."""
    version: int = _HEADER.unpack_from(block)[1]
    return version


def refuse_other(version: int, length: int, size: int, group_hash: GroupHash | None) -> None:
    """Raises StateError if state of this version and segment size, ``length``, is not what the caller expects."""
    if version not in _LAYOUTS:
        raise StateError(
            f"a segment's state has version {version}, this release reads {', '.join(map(str, sorted(_LAYOUTS)))}",
            fix=f"run the release that wrote it, or {REBUILD}",
        )
    _, hashed_by = _LAYOUTS[version]
    if group_hash not in (None, hashed_by):
        raise StateError(
            f"the checkpoint names producer groups by {hashed_by.value}, its folder `rules` says {group_hash.value}",
            fix=f"put that folder back, or {REBUILD}",
        )
    if length != size:
        raise StateError(
            f"the checkpoint has segments of {length} offsets, the settings say {size}",
            where="reconcile.segment_size",
            fix=f"set it to {length}, or {REBUILD}",
        )


def _brought_up(pending: Records) -> Records:
    """PENDING records, migrated from those of any version."""
    if pending.dtype == PENDING:
        return pending
    records = np.zeros(len(pending), PENDING)
    for name in pending.dtype.names or ():
        records[name] = pending[name]
    if "asked" not in (pending.dtype.names or ()):
        records["asked"] = pending["check_times"]
    return records


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
