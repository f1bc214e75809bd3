"""What transaction.check_jitter added to the interval after a check, as a function of SQL for both engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from checkback.reconcile.records.records import NOT_STATED, PENDING
from checkback.reconcile.segment import jitter

if TYPE_CHECKING:
    from collections.abc import Iterable

#: its name
NAME = "own_jitter"
_MASK = (1 << 64) - 1
#: XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md), with Spark's seed
_SEED = 42
_P1, _P2, _P3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
_P4, _P5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5


def own_jitter(transaction_ids: pa.Array, offsets: pa.Array, asked: pa.Array, most: pa.Array) -> pa.Array:
    """In ms, of the check after ``asked`` checks of each transaction; ``most``: transaction.check_jitter, ms."""
    records = np.zeros(len(offsets), PENDING)
    records["transaction"] = _hashes(transaction_ids.to_pylist())
    records["offset"] = offsets.fill_null(0).to_numpy(zero_copy_only=False)
    records["asked"] = asked.fill_null(0).to_numpy(zero_copy_only=False) + 1
    limits = most.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return pa.array(jitter(records, np.maximum(limits, 0)), pa.int64())


def _hashes(texts: Iterable[str | None]) -> list[int]:
    """As `reconcile.event_columns.identity_columns`."""
    known: dict[str | None, int] = {None: NOT_STATED}
    for text in texts:
        if text is not None and text not in known:
            found = xxhash64(text.encode(errors="surrogatepass"))
            known[text] = ~NOT_STATED if found == NOT_STATED else found
    return [known[text] for text in texts]


def xxhash64(data: bytes) -> int:
    """Spark's xxhash64 of a string, signed."""
    at, size = 0, len(data)
    if size >= 32:
        lanes = [(_SEED + _P1 + _P2) & _MASK, (_SEED + _P2) & _MASK, _SEED, (_SEED - _P1) & _MASK]
        while at + 32 <= size:
            lanes = [_round(lane, _word(data, at + 8 * number)) for number, lane in enumerate(lanes)]
            at += 32
        found = sum(_rotated(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)) & _MASK
        for lane in lanes:
            found = ((found ^ _round(0, lane)) * _P1 + _P4) & _MASK
    else:
        found = (_SEED + _P5) & _MASK
    found = (found + size) & _MASK
    while at + 8 <= size:
        found = (_rotated(found ^ _round(0, _word(data, at)), 27) * _P1 + _P4) & _MASK
        at += 8
    if at + 4 <= size:
        found = (_rotated(found ^ (int.from_bytes(data[at : at + 4], "little") * _P1 & _MASK), 23) * _P2 + _P3) & _MASK
        at += 4
    for byte in data[at:]:
        found = _rotated(found ^ (byte * _P5 & _MASK), 11) * _P1 & _MASK
    for shift, factor in ((33, _P2), (29, _P3), (32, 1)):
        found = (found ^ found >> shift) * factor & _MASK
    return found - (1 << 64) if found >> 63 else found


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _rotated(value: int, by: int) -> int:
    return (value << by | value >> 64 - by) & _MASK


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * _P2) & _MASK, 31) * _P1 & _MASK
