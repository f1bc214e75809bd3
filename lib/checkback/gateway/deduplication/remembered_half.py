"""Half messages as the gateway remembers them: one, those of a start by column, and the names of transactions."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.messages.op import STATES
from checkback.messages.trace_context import PROPERTIES as TRACE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from checkback.messages.half import Half

    Integers = NDArray[np.int64]


_64_BITS = 2**64 - 1
#: what the hash is of besides the body, the keys and the properties
_OTHERS = ("real_topic", "real_queue_id", "tags", "check_immunity_s", "delay_ms", "deliver_at", "committed")


def fingerprint(half: Half) -> int:
    """A 64-bit hash of the content, without the time and the trace's context, which may differ in a retry.

    Python's own hash, keyed for each process: it is the cheapest, and never leaves the process.
    """
    # A sum, because their order is not content.
    properties = half.properties
    if not TRACE.isdisjoint(properties):
        properties = {name: text for name, text in properties.items() if name not in TRACE}
    total = sum(map(_hash_of, properties, properties.values())) & _64_BITS if properties else 0
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
                    total,
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
    hashes[np.asarray(pc.is_in(maps.keys[first:last], pa.array(sorted(TRACE))))] = 0
    total = np.concatenate([np.zeros(1, np.uint64), np.cumsum(hashes)])
    found: list[int] = (total[offsets[1:] - first] - total[offsets[:-1] - first]).tolist()
    return found


#: states by their code: of the first op, or of the decision
STATE_OF = (None, *STATES, "DISCARD", "CANCEL")
CODE_OF = {state: code for code, state in enumerate(STATE_OF)}
_PART = 10_000
#: longest transaction id, in characters, that is cached unhashed
_WHOLE = 64


class RememberedHalf(msgspec.Struct, gc=False):
    """The cache entry of a half message. ``state``: the decision's, else the first op's; None = none yet. Times in ms.

    ``fingerprint``: 0 = unknown, for one looked up by its offset, erased, or without its body. ``reason``,
    ``decided_at``: of the decision, if it was looked up; ``op_states``: of the ops in the table then.
    """

    queue_id: int
    queue_offset: int
    name: str
    fingerprint: int
    real_topic: str
    born_timestamp: int
    stored: int
    state: str | None = None
    reason: str | None = None
    decided_at: int | None = None
    op_states: frozenset[str] = frozenset()


@dataclass(frozen=True)
class RememberedColumns:
    """Half messages to be remembered, in the order of landing. ``states``: codes; otherwise as in `RememberedHalf`."""

    queue_ids: Integers
    offsets: Integers
    names: pa.StringArray
    fingerprints: Integers
    topics: list[str]
    born: Integers
    stored: Integers
    states: bytes

    def __iter__(self) -> Iterator[RememberedHalf]:
        """One by one; their Python objects are made in parts."""
        for first in range(0, len(self.topics), _PART):
            part = slice(first, first + _PART)
            yield from map(
                RememberedHalf,
                self.queue_ids[part].tolist(),
                self.offsets[part].tolist(),
                self.names[part].to_pylist(),
                self.fingerprints[part].tolist(),
                self.topics[part],
                self.born[part].tolist(),
                self.stored[part].tolist(),
                map(STATE_OF.__getitem__, self.states[part]),
            )


def name_of(producer_group: str, transaction_id: str) -> str:
    """The transaction's name across groups: a group's name contains no slash."""
    return f"{producer_group}/{transaction_id if len(transaction_id) <= _WHOLE else short(transaction_id)}"


def short(transaction_id: str | None) -> str | None:
    """The cached form of a transaction id: a hash of a long one, because millions are kept in memory.

    An id that looks like such a hash is long itself, so it is hashed, too: no collision. None = not stated.
    """
    if transaction_id is None or len(transaction_id) <= _WHOLE:
        return transaction_id
    return "#" + hashlib.sha256(transaction_id.encode("utf-8", "surrogatepass")).hexdigest()


def joined_names(groups: pa.ChunkedArray, transaction_ids: pa.ChunkedArray) -> pa.StringArray:
    """`name_of` of each row; null is empty text."""
    long = np.flatnonzero(np.asarray(pc.utf8_length(transaction_ids)) > _WHOLE).tolist()
    if long:
        ids = transaction_ids.to_pylist()
        for row in long:
            ids[row] = short(ids[row])
        transaction_ids = pa.chunked_array([ids], pa.string())
    texts = (column.fill_null("") if column.null_count else column for column in (groups, transaction_ids))
    names = pc.binary_join_element_wise(*texts, "/")
    return names.combine_chunks() if isinstance(names, pa.ChunkedArray) else names


def whose(known: RememberedHalf) -> tuple[str, str]:
    """The group and the transaction id, in the form of `short`, of a half message."""
    group, _, transaction_id = known.name.partition("/")
    return group, transaction_id
