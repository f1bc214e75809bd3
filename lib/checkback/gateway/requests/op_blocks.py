"""Ops of one request, in flight together; those of columns have no Python object each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.gateway.deduplication.cached_half import CODE_OF
from checkback.gateway.deduplication.transaction_names import joined_names
from checkback.gateway.requests.half_blocks import landed
from checkback.gateway.tables import SOURCE
from checkback.messages.limits import LONG_MAX
from checkback.messages.op import STATES
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.problems import Problem
    from checkback.gateway.requests.batch_decoder import RemarkedOp

#: columns of `op` that the gateway assigns
ASSIGNED = ("source", "store_timestamp")
#: `op` without them: what is known of an op before it lands
SENT = pa.schema([field for field in arrow_schema("op") if field.name not in ASSIGNED])
#: approximate memory overhead of an op in bytes, besides its columns
_OVERHEAD = 64
_CODES = np.array([CODE_OF[state] for state in STATES], np.uint8)


@dataclass(eq=False)
class OpBlock:
    """In-flight ops of one request, each of another recent half message that had none.

    ``firsts``: by queue, the first offset of their half messages; ``size``: approximate memory in bytes; ``done``: when
    they are committed, or failed with ``problem``.
    """

    firsts: dict[int, int]
    size: int
    done: asyncio.Future[None] | None = field(default=None, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        raise NotImplementedError


@dataclass(eq=False)
class MessageBlock(OpBlock):
    """Ops that came as JSON; ``numbers``: of their half messages in the cache (`DeduplicationCache.pending`)."""

    ops: Sequence[RemarkedOp]
    places: Sequence[Place]
    numbers: Sequence[int]

    def __len__(self) -> int:
        return len(self.ops)


@dataclass(eq=False)
class ColumnBlock(OpBlock):
    """Ops that came as columns, of one queue.

    ``rows``: in the schema SENT; ``offsets`` of the half messages, ascending, and in that order their ``names``, as in
    `deduplication.cache.name_of`, and the ``states`` of the ops, as codes.
    """

    rows: pa.Table
    queue_id: int
    offsets: NDArray[np.int64]
    names: list[str]
    states: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.offsets)

    def state_at(self, place: Place) -> str | None:
        """The state of the op of the half message at a place; None = it has none here."""
        queue_id, offset = place
        if queue_id != self.queue_id or not self.offsets[0] <= offset <= self.offsets[-1]:
            return None
        at = int(np.searchsorted(self.offsets, offset))
        return STATES[_CODES.tolist().index(self.states[at])] if self.offsets[at] == offset else None

    def meets(self, other: ColumnBlock) -> bool:
        """Has another block an op of one of these half messages?"""
        if (
            self.queue_id != other.queue_id
            or self.offsets[-1] < other.offsets[0]
            or other.offsets[-1] < self.offsets[0]
        ):
            return False
        return bool(np.isin(self.offsets, other.offsets, assume_unique=True).any())


def column_block(rows: pa.Table, size: int) -> ColumnBlock | None:
    """A block of valid ops; None if they are of several queues, or two of one half message. ``size``: its bytes."""
    queue_ids, offsets = np.asarray(rows.column("queue_id")), np.asarray(rows.column("half_offset"))
    if queue_ids.min() != queue_ids.max():
        return None
    names = joined_names(rows.column("producer_group"), rows.column("transaction_id")).to_pylist()
    states = _CODES[np.asarray(pc.index_in(rows.column("state"), pa.array(STATES)))]
    steps = np.diff(offsets)
    if not (steps > 0).all():
        order = np.argsort(offsets)
        offsets, states, names = offsets[order], states[order], [names[row] for row in order.tolist()]
        if not np.diff(offsets).all():
            return None
    queue_id, memory = int(queue_ids[0]), size + _OVERHEAD * len(names)
    return ColumnBlock({queue_id: int(offsets[0])}, memory, rows, queue_id, offsets, names, states)


def firsts_of(places: Iterable[Place]) -> dict[int, int]:
    """By queue, the first offset of these places."""
    firsts: dict[int, int] = {}
    for queue_id, offset in places:
        if offset < firsts.get(queue_id, LONG_MAX):
            firsts[queue_id] = offset
    return firsts


def landed_ops(rows: pa.Table, stored: int) -> pa.Table:
    """Rows of `op`: those of SENT; ``stored`` in ms."""
    count = len(rows)
    return landed("op", rows, source=pa.repeat(SOURCE, count), store_timestamp=np.full(count, stored * 1000))
