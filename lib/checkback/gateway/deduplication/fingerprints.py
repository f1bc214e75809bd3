"""Hashes of half messages' content, by which the gateway knows a retry. No I/O, no clock."""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from checkback.messages.half import Half

_64_BITS = 2**64 - 1
#: what the hash is of besides the body, the keys and the properties
_OTHERS = ("real_topic", "real_queue_id", "tags", "check_immunity_s", "delay_ms", "deliver_at", "committed")


def fingerprint(half: Half) -> int:
    """A 64-bit hash of the content, without the time, which may be the gateway's and then differs in a retry.

    Python's own hash, keyed for each process: it is the cheapest, and never leaves the process.
    """
    # A sum, because their order is not content.
    properties = sum(map(_hash_of, half.properties, half.properties.values())) & _64_BITS if half.properties else 0
    return hash(
        (
            half.body,
            half.keys,
            hash(
                (
                    half.real_topic,
                    half.real_queue_id,
                    half.tags,
                    half.check_immunity_s,
                    half.delay_ms,
                    half.deliver_at,
                    half.committed,
                    properties,
                )
            ),
        )
    )


def fingerprints(rows: pa.Table) -> NDArray[np.int64]:
    """`fingerprint` of each row of `half`; ``properties`` without nulls."""
    if not len(rows):
        return np.zeros(0, np.int64)
    others = zip(*(_values(rows.column(name)) for name in _OTHERS), _property_sums(rows), strict=True)
    columns = (_values(rows.column("body")), _values(rows.column("keys")), map(hash, others))
    return np.fromiter(map(hash, zip(*columns, strict=True)), np.int64, len(rows))


def _values(column: pa.ChunkedArray) -> Iterable[Any]:
    """The values, times in ms."""
    if column.null_count == len(column):
        return repeat(None, len(column))
    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.int64()), 1000)
    found: list[Any] = column.to_pylist()
    return found


def _hash_of(name: str, value: str | None) -> int:
    """A hash that can be added up: one of a tuple cannot, because it is almost linear in those of its items."""
    return hash(f"{len(name)}:{name}{value}")


def _property_sums(rows: pa.Table) -> list[int]:
    column = rows.column("properties")
    maps = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    offsets = np.asarray(maps.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    pairs = map(_hash_of, maps.keys[first:last].to_pylist(), maps.items[first:last].to_pylist())
    hashes = np.fromiter(pairs, np.int64, last - first).view(np.uint64)
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes)])
    found: list[int] = (total[offsets[1:] - first] - total[offsets[:-1] - first]).tolist()
    return found
