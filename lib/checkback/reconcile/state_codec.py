"""Codec between a segment and its block of bytes in the state store.

Layout, little-endian: a header, then LZ4-compressed: the bitmap of seen offsets, the PENDING and the EARLY records,
both byte-transposed (the first bytes of all records, then the second bytes, and so on). The high bytes of times and
offsets form runs that way, and a full segment takes a quarter of the space, which is copied to Python and back. The
version in the header changes with the layout; CHANGELOG lists the versions that a release reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkback.errors import StateError
from checkback.reconcile.group_hash import GROUP_HASH, GroupHash
from checkback.reconcile.records import EARLY, PENDING, Records
from checkback.reconcile.segment import Segment

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: same layout; the version identifies the group hash
VERSIONS = {GroupHash.XXHASH64: 3, GroupHash.SHA1: 4}
#: PENDING and group hash by version. 2 did not distinguish checks that count from others.
_LAYOUTS = {
    2: (np.dtype([(name, PENDING[name]) for name in PENDING.names or () if name != "asked"]), GroupHash.XXHASH64),
    **{version: (PENDING, group_hash) for group_hash, version in VERSIONS.items()},
}
# mark, version, segment size, timer, seen_until, number of pending, number of early, compressed bytes
_HEADER = struct.Struct("<2sHIqqIII")
_MARK = b"CB"
_CODEC = "lz4_raw"
_FEW = 256  # up to this number of records, one transpose is faster than one assignment per byte
_REBUILD = "rebuild the checkpoint from the tables: `checkback rebuild`"

#: sentinel: the segment has no timer
NO_TIMER = -1
#: sentinel: the segment has deferred work for the next batch
AT_ONCE = 0


def encode(segment: Segment, timer: int = NO_TIMER, group_hash: GroupHash = GROUP_HASH) -> bytes:
    """The block of a segment. ``timer``: its registered timer (ms), so that listing timers is unnecessary.

    ``group_hash``: that of its records.
    """
    bits = np.packbits(segment.seen, bitorder="little")
    raw = b"".join((bits.tobytes(), _bytes_of(segment.pending), _bytes_of(segment.early)))
    packed: bytes = pa.compress(raw, _CODEC, asbytes=True)
    counts = len(segment.pending), len(segment.early), len(packed)
    return _HEADER.pack(_MARK, VERSIONS[group_hash], len(segment.seen), timer, segment.seen_until, *counts) + packed


def decode(block: bytes, base: int, size: int, group_hash: GroupHash | None = None) -> tuple[Segment, int]:
    """The segment in a block, and its timer. ``group_hash``: that of the events to apply, None = there are none.

    Raises StateError if the block is truncated, or has another version, group hash or segment size.
    """
    if len(block) < _HEADER.size or block[:2] != _MARK:
        raise StateError("a segment's state is not Checkback's", fix=_REBUILD)
    _, version, length, timer, seen_until, n_pending, n_early, n_packed = _HEADER.unpack_from(block)
    if version not in _LAYOUTS:
        raise StateError(
            f"a segment's state has version {version}, this release reads {', '.join(map(str, _LAYOUTS))}",
            fix=f"run the release that wrote it, or {_REBUILD}",
        )
    layout, hashed_by = _LAYOUTS[version]
    if group_hash not in (None, hashed_by):
        raise StateError(
            f"the checkpoint names producer groups by {hashed_by.value}, its folder `rules` says {group_hash.value}",
            fix=f"put that folder back, or {_REBUILD}",
        )
    if length != size:
        raise StateError(
            f"the checkpoint has segments of {length} offsets, the settings say {size}",
            where="reconcile.segment_size",
            fix=f"set it to {length}, or {_REBUILD}",
        )
    n_bits = -(-length // 8)
    sizes = (n_bits, n_pending * layout.itemsize, n_early * EARLY.itemsize)
    packed = block[_HEADER.size :]
    # Arrow's decompress does not detect truncated input.
    if len(packed) != n_packed:
        raise StateError("a segment's state is cut off", fix=_REBUILD)
    raw = np.frombuffer(pa.decompress(packed, sum(sizes), _CODEC), np.uint8)
    bits, pending, early = np.split(raw, np.cumsum(sizes)[:-1])
    seen = np.unpackbits(bits, count=length, bitorder="little").astype(bool)
    return Segment(base, seen, _brought_up(_records(pending, layout)), _records(early, EARLY), seen_until), timer


def _brought_up(pending: Records) -> Records:
    """PENDING records, migrated from those of any version."""
    if pending.dtype == PENDING:
        return pending
    records = np.zeros(len(pending), PENDING)
    for name in pending.dtype.names or ():
        records[name] = pending[name]
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
