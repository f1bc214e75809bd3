"""A segment as one block of bytes, and back: what the state store keeps for it.

Layout, little-endian: header, the seen bits, the PENDING records, the EARLY records. The version in the header
changes with the layout; CHANGELOG says which versions a release reads.
"""

from __future__ import annotations

import struct

import numpy as np

from checkback.errors import StateError
from checkback.reconcile.segment import EARLY, PENDING, Segment

VERSION = 1
# mark, version, segment size, timer, seen_until, number of pending, number of early
_HEADER = struct.Struct("<2sHIqqII")
_MARK = b"CB"

#: timer of a segment that has none
NO_TIMER = -1
#: told instead of a timer by a segment that waits for the next batch
AT_ONCE = 0


def encode(segment: Segment, timer: int = NO_TIMER) -> bytes:
    """The block of a segment. ``timer``: the one registered for it (ms), so that nobody need list timers."""
    header = _HEADER.pack(
        _MARK, VERSION, len(segment.seen), timer, segment.seen_until, len(segment.pending), len(segment.early)
    )
    bits = np.packbits(segment.seen, bitorder="little")
    return b"".join((header, bits.tobytes(), segment.pending.tobytes(), segment.early.tobytes()))


def decode(block: bytes, base: int, size: int) -> tuple[Segment, int]:
    """The segment in a block, and its timer.

    Raises StateError when the block is not whole, of another version, or of another segment size.
    """
    if len(block) < _HEADER.size or block[:2] != _MARK:
        raise StateError("a segment's state is not Checkback's", fix="rebuild the checkpoint from the tables")
    _, version, length, timer, seen_until, n_pending, n_early = _HEADER.unpack_from(block)
    if version != VERSION:
        raise StateError(
            f"a segment's state has version {version}, this release reads {VERSION}",
            fix="run the release that wrote it, or rebuild the checkpoint from the tables",
        )
    if length != size:
        raise StateError(
            f"the checkpoint has segments of {length} offsets, the settings say {size}",
            where="reconcile.segment_size",
            fix=f"set it to {length}, or rebuild the checkpoint from the tables",
        )
    n_bits = -(-length // 8)
    sizes = (_HEADER.size, n_bits, n_pending * PENDING.itemsize, n_early * EARLY.itemsize)
    if len(block) != sum(sizes):
        raise StateError("a segment's state is cut off", fix="rebuild the checkpoint from the tables")
    at_bits, at_pending, at_early, _ = np.cumsum(sizes)
    bits = np.frombuffer(block, np.uint8, n_bits, at_bits)
    seen = np.unpackbits(bits, count=length, bitorder="little").astype(bool)
    pending = np.frombuffer(block, PENDING, n_pending, at_pending)
    early = np.frombuffer(block, EARLY, n_early, at_early)
    return Segment(base, seen, pending, early, seen_until), timer
