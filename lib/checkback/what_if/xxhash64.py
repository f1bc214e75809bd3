"""xxHash64 with Spark's seed, of many strings at a time: `transaction.check_jitter` depends on it.

https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md; Spark: org.apache.spark.sql.catalyst.expressions.XXH64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_SEED = 42
_P1, _P2, _P3, _P4, _P5 = (
    np.uint64(prime)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)


def xxhash64(texts: Sequence[str]) -> NDArray[np.int64]:
    """The hash of each text, as Spark's function xxhash64."""
    encoded = [text.encode() for text in texts]
    lengths = np.array([len(text) for text in encoded], np.int64)
    found = np.empty(len(encoded), np.uint64)
    for length in np.unique(lengths):
        mine = np.flatnonzero(lengths == length)
        content = np.frombuffer(b"".join(encoded[row] for row in mine), np.uint8).reshape(len(mine), int(length))
        found[mine] = _of_one_length(content)
    hashes: NDArray[np.int64] = found.view(np.int64)
    return hashes


def _of_one_length(content: NDArray[np.uint8]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        rows, length = content.shape
        at, seed = 0, np.uint64(_SEED)
        if length >= 32:
            lanes = [np.full(rows, start) for start in (seed + _P1 + _P2, seed + _P2, seed, seed - _P1)]
            while at + 32 <= length:
                lanes = [_round(lane, _word(content, at + 8 * place)) for place, lane in enumerate(lanes)]
                at += 32
            found = sum((_turned(lane, by) for lane, by in zip(lanes, (1, 7, 12, 18), strict=True)), np.uint64(0))
            for lane in lanes:
                found = (found ^ _round(np.zeros(rows, np.uint64), lane)) * _P1 + _P4
        else:
            found = np.full(rows, seed + _P5)
        found = found + np.uint64(length)
        while at + 8 <= length:
            found = _turned(found ^ _round(np.zeros(rows, np.uint64), _word(content, at)), 27) * _P1 + _P4
            at += 8
        if at + 4 <= length:
            found = _turned(found ^ (_word(content, at, 4) * _P1), 23) * _P2 + _P3
            at += 4
        for place in range(at, length):
            found = _turned(found ^ (content[:, place].astype(np.uint64) * _P5), 11) * _P1
        found = (found ^ (found >> np.uint64(33))) * _P2
        found = (found ^ (found >> np.uint64(29))) * _P3
        found ^= found >> np.uint64(32)
    hashes: NDArray[Any] = found
    return hashes


def _round(lane: Any, word: Any) -> Any:
    return _turned(lane + word * _P2, 31) * _P1


def _turned(value: Any, by: int) -> Any:
    return (value << np.uint64(by)) | (value >> np.uint64(64 - by))


def _word(content: NDArray[np.uint8], at: int, size: int = 8) -> Any:
    """Little-endian words of ``size`` bytes."""
    bytes_ = np.ascontiguousarray(content[:, at : at + size])
    return bytes_.view(f"<u{size}").reshape(-1).astype(np.uint64)
