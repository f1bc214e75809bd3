"""The gateway's deduplication cache of half messages, and its verdicts on half messages and ops. No I/O, no clock.

The rules are those of RocketMQ's EndTransactionProcessor, plus two: retries of a half message are idempotent, and the
first op stands.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace

from checkback.gateway.deduplication.landed_halves import CachedHalf, LandedHalves, rows_by_queue
from checkback.storage.first_op import misfit

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.deduplication.landed_halves import HalfEntries, HalfRun
    from checkback.messages.half import Half
    from checkback.messages.op import Op


#: longest transaction id, in characters, that is cached unhashed
_WHOLE = 64
_64_BITS = 2**64 - 1
#: columns whose values many messages share
_SHARED = ("real_topic", "real_queue_id", "tags", "check_immunity_s", "delay_ms", "deliver_at", "committed")
_ALL_ONE = np.zeros(1, np.int64)
_FEW = 4
#: Most half messages cached after a lookup. They do not evict those that landed recently.
RECALLED_MAX = 20_000


class Verdict(Enum):
    """The gateway's verdict on a message."""

    NEW = "new"
    REPEATED = "repeated"
    CONTRADICTION = "contradiction"
    UNKNOWN_OFFSET = "unknown_offset"
    WRONG_GROUP = "wrong_group"
    WRONG_TRANSACTION_ID = "wrong_transaction_id"


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


def whose(known: CachedHalf) -> tuple[str, str]:
    """The group and the transaction id, in the form of `short`, of a half message."""
    group, _, transaction_id = known.name.partition("/")
    return group, transaction_id


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


def judge_half(known: CachedHalf | None, content: int) -> Verdict:
    """NEW, REPEATED (same content), or CONTRADICTION (same name, other content)."""
    if known is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.fingerprint == content else Verdict.CONTRADICTION


def judge_op(known: CachedHalf | None, op: Op) -> Verdict:
    """The verdict on an op for the half message that it names; ``known`` None = there is no such half message."""
    if known is None:
        return Verdict.UNKNOWN_OFFSET
    # Fast path: most match.
    if op.transaction_id is None or known.name != name_of(op.producer_group, op.transaction_id):
        wrong = misfit(op.producer_group, short(op.transaction_id), *whose(known))
        if wrong is not None:
            return Verdict.WRONG_GROUP if wrong == "producer_group" else Verdict.WRONG_TRANSACTION_ID
    if known.state is None:
        return Verdict.NEW
    return Verdict.REPEATED if known.state == op.state else Verdict.CONTRADICTION


class DeduplicationCache:
    """The half messages that the gateway caches, and the next offset of each queue.

    LruCache ones are indexed by name and by (queue_id, queue_offset); older ones, looked up for an op, by the latter
    only: a name refers to the last half message sent under it. Those in queues that this gateway does not own (any
    more) are found by name only: their state in the cache may be stale.
    """

    def __init__(
        self,
        next_offsets: Mapping[int, int],
        groups: Collection[str] = (),
    ) -> None:
        """``next_offsets``: by queue, the first unassigned offset.

        ``groups``: each has its own share of the cache; all others together have one, because clients can invent many.
        """
        self._next = dict(next_offsets)
        self._landed = LandedHalves(groups)
        self._recalled: dict[tuple[int, int], CachedHalf] = {}
        #: half messages whose op is in the journal and not in the table yet
        self._ending: dict[tuple[int, int], CachedHalf] = {}

    def __len__(self) -> int:
        """The number of half messages cached."""
        return len(self._landed) + len(self._recalled)

    @property
    def queues(self) -> tuple[int, ...]:
        """The queues that the gateway owns."""
        return tuple(self._next)

    def next_offset(self, queue_id: int) -> int:
        """The first unassigned offset of the queue. Raises KeyError for a queue not owned."""
        return self._next[queue_id]

    def assigned(self, queue_id: int, queue_offset: int) -> bool:
        """Has a gateway assigned the offset? In queues not owned: another gateway may have."""
        return queue_id not in self._next or queue_offset < self._next[queue_id]

    def named(self, name: str) -> CachedHalf | None:
        """The half message of a transaction, if cached."""
        return self._landed.named(name)

    def reserve(self, names: list[str]) -> int | None:
        """Reserve the names of transactions whose half messages will land together, until they land or `release`.

        None, and nothing is reserved, if one of them is cached or reserved, or twice among them.
        """
        return self._landed.reserve(names)

    def release(self, reservation: int, names: list[str]) -> None:
        """The half messages of a reservation will not land."""
        self._landed.release(reservation, names)

    def under_way(self, name: str) -> tuple[int, int] | None:
        """The reservation that a name belongs to, and its number among those names; None = it has none."""
        return self._landed.under_way(name)

    def at(self, queue_id: int, queue_offset: int) -> CachedHalf | None:
        """The half message at an offset of an owned queue, if cached."""
        place = (queue_id, queue_offset)
        if queue_id not in self._next:
            return self._ending.get(place)
        half = self._landed.at(queue_id, queue_offset)
        return half or self._recalled.get(place) or self._ending.get(place)

    def unflushed_op(self, half: CachedHalf) -> None:
        """Keep a half message, with the state of its op, until the op is in the table (`flushed_ops`)."""
        self._ending[half.queue_id, half.queue_offset] = half

    def flushed_ops(self, places: Iterable[tuple[int, int]]) -> None:
        """The ops of these half messages are in the table: look-ups find them."""
        for place in places:
            self._ending.pop(place, None)

    def ended_with(self, queue_id: int, queue_offset: int) -> str | None:
        """The state of the op, if it is known here and may not be in the table yet."""
        half = self._ending.get((queue_id, queue_offset))
        return None if half is None else half.state

    def landed(self, run: HalfRun) -> None:
        """Cache half messages that have landed under reserved names, and advance the queue's next offset.

        A name refers to the entry added last, because that is evicted last.
        """
        self._assigned(run.queue_id, run.first + len(run.names) - 1)
        self._landed.land(run)

    def landed_before(self, halves: HalfEntries) -> None:
        """Cache half messages that are in the table, in any queue. Existing entries are kept."""
        for queue_id, rows in rows_by_queue(halves.queue_ids):
            self._assigned(queue_id, int(halves.offsets[rows].max()))
        self._landed.extend(halves)

    def _assigned(self, queue_id: int, queue_offset: int) -> None:
        if queue_id in self._next:
            self._next[queue_id] = max(self._next[queue_id], queue_offset + 1)

    def recalled(self, halves: Iterable[CachedHalf], now: int) -> None:
        """Cache half messages that were looked up, as of ``now`` (ms). Existing entries are kept."""
        for half in halves:
            place = (half.queue_id, half.queue_offset)
            if half.queue_id in self._next and self.at(*place) is None:
                self._recalled[place] = replace(half, stored=now)

    def ended(self, queue_id: int, queue_offset: int, state: str) -> bool:
        """Record the op of a cached half message. The first stands; False: it is not cached."""
        known = self._landed.ended(queue_id, queue_offset, state)
        half = self._recalled.get((queue_id, queue_offset))
        if half is not None and half.state is None:
            self._recalled[queue_id, queue_offset] = replace(half, state=state)
        return known or half is not None

    def pending(self, places: Sequence[tuple[int, int]], names: Sequence[str]) -> list[int] | None:
        """For `ended_numbers`; None unless a recent half message of this name, without an op, is at each place."""
        owned = self._next
        return None if any(queue_id not in owned for queue_id, _ in places) else self._landed.pending(places, names)

    def ended_numbers(self, numbers: Sequence[int], states: Sequence[str]) -> None:
        """`ended` for the half messages of `pending`."""
        self._landed.ended_numbers(numbers, states)

    def unended(self, queue_id: int, offsets: NDArray[np.int64], names: list[str]) -> bool:
        """Is a half message with this name, and without an op, cached at each of the ascending offsets?"""
        return queue_id in self._next and self._landed.unended(queue_id, offsets, names)

    def ended_together(self, queue_id: int, offsets: NDArray[np.int64], states: NDArray[np.uint8]) -> None:
        """`ended` for many half messages at once, that landed recently; ``states``: codes of `landed_halves`."""
        self._landed.ended_together(queue_id, offsets, states)

    def forget(self, before: int, most: int, unflushed: Mapping[int, int] | None = None) -> int:
        """Evict what was stored or looked up before a time (ms), and what exceeds ``most``. Returns how many.

        Above ``most``, the largest share loses its oldest first: a busy group does not evict the others' entries.
        ``unflushed``: by queue, the first offset that is not in the table yet, or whose op is not, so that no look-up
        would find it.
        """
        gone = self._landed.forget(before, most, unflushed or {})
        # Those that were looked up can be looked up again: the oldest go first, regardless of their group.
        return gone + len(_taken(self._recalled, before, min(most, RECALLED_MAX)))


def _taken(known: dict[tuple[int, int], CachedHalf], before: int, most: int) -> list[CachedHalf]:
    """Remove and return those from before a time, and the oldest beyond ``most``."""
    # Collected in one pass, then deleted: popping from the front of a dict scans its deleted slots each time.
    old: list[CachedHalf] = []
    for half in known.values():
        if half.stored >= before and len(known) - len(old) <= most:
            break
        old.append(half)
    for half in old:
        del known[half.queue_id, half.queue_offset]
    return old
