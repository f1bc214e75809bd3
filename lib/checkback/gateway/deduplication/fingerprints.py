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
#: columns whose values many messages share
_SHARED = ("real_topic", "real_queue_id", "tags", "check_immunity_s", "delay_ms", "deliver_at", "committed")
_ALL_ONE = np.zeros(1, np.int64)
_FEW = 4


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
    """`fingerprint` of each row of `half`, by column; ``properties`` without nulls."""
    if not len(rows):
        return np.zeros(0, np.int64)
    columns = (rows.column("body").to_pylist(), rows.column("keys").to_pylist(), _others(rows))
    return np.fromiter(map(hash, zip(*columns, strict=True)), np.int64, len(rows))


def _others(rows: pa.Table) -> Iterable[int]:
    """Of each row the hash of what is neither its body nor its keys: few are distinct, each is hashed once."""
    coded = [_coded(rows.column(name)) for name in _SHARED]
    sums = _property_sums(rows.column("properties"))
    if (sums == sums[0]).all():
        coded.append((_ALL_ONE, [int(sums[0])]))
    else:
        distinct, which = np.unique(sums, return_inverse=True)
        coded.append((which, distinct.tolist()))
    row_code, count = np.zeros(len(rows), np.int64), 1
    for codes, values in coded:
        if len(values) > 1:
            row_code, count = row_code * len(values) + codes, count * len(values)
            if count > _FEW * len(rows):
                distinct, row_code = np.unique(row_code, return_inverse=True)
                count = len(distinct)
    last = np.zeros(count, np.int64)  # row of each code; of those that are not there the first
    last[row_code] = np.arange(len(rows))
    columns = [
        repeat(values[0], len(last)) if len(values) == 1 else map(values.__getitem__, codes[last].tolist())
        for codes, values in coded
    ]
    hashes = list(map(hash, zip(*columns, strict=True)))
    return map(hashes.__getitem__, row_code.tolist())


def _coded(column: pa.ChunkedArray) -> tuple[NDArray[np.int64], list[Any]]:
    """Of each row the number of its value, which counts from 0 on; and the values."""
    if column.null_count == len(column):
        return _ALL_ONE, [None]
    if pa.types.is_timestamp(column.type):
        column = pc.divide(column.cast(pa.int64()), 1000)
    encoded = (column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)).dictionary_encode()
    codes, values = encoded.indices, encoded.dictionary.to_pylist()
    if codes.null_count:
        codes = codes.fill_null(len(values))
        values.append(None)
    return np.asarray(codes), values


def _hash_of(name: str, value: str | None) -> int:
    """A hash that can be added up: one of a tuple cannot, because it is almost linear in those of its items."""
    return hash(f"{len(name)}:{name}{value}")


def _property_sums(column: pa.ChunkedArray) -> NDArray[np.uint64]:
    maps = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    offsets = np.asarray(maps.offsets)
    first, last = int(offsets[0]), int(offsets[-1])
    if first == last:
        return np.zeros(len(maps), np.uint64)
    # Most properties recur: each is hashed once.
    (name_codes, names), (value_codes, values) = (
        _coded(pa.chunked_array([entries[first:last]])) for entries in (maps.keys, maps.items)
    )
    if len(names) == len(values) == 1:
        return np.asarray(np.diff(offsets).astype(np.uint64) * np.uint64(_hash_of(names[0], values[0]) & _64_BITS))
    codes = np.zeros(last - first, np.int64) + name_codes.astype(np.int64) * len(values) + value_codes
    pairs = len(names) * len(values)
    distinct, which = (np.arange(pairs), codes) if pairs <= len(codes) else np.unique(codes, return_inverse=True)
    pair_names, pair_values = np.divmod(distinct, len(values))
    pairs_of = zip(pair_names.tolist(), pair_values.tolist(), strict=True)
    hashes = np.fromiter((_hash_of(names[n], values[v]) for n, v in pairs_of), np.int64, len(distinct))
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes.view(np.uint64)[which])])
    found: NDArray[np.uint64] = total[offsets[1:] - first] - total[offsets[:-1] - first]
    return found
