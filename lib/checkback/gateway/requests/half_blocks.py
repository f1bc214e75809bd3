"""Half messages of one request, in flight together; those of columns have no Python object each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.gateway.deduplication.cached_half import CODE_OF, HalfRun
from checkback.gateway.deduplication.landed_halves import shared_texts
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from checkback.gateway.problems import Problem
    from checkback.messages.half import Half

#: columns of `half` that the gateway assigns
ASSIGNED = ("queue_id", "queue_offset", "store_timestamp")
#: `half` without them: what is known of a message before it lands
SENT = pa.schema([field for field in arrow_schema("half") if field.name not in ASSIGNED])
#: approximate memory overhead of a message in bytes, besides its columns
_OVERHEAD = 256


class Placed(NamedTuple):
    """Where all half messages of a request are: at the offsets from ``first`` on."""

    queue_id: int
    first: int


@dataclass(eq=False)
class HalfBlock:
    """In-flight half messages of one request; their offsets are assigned, consecutively, when their commit begins.

    ``names``, ``fingerprints``: of each; ``reservation``: of the names in the cache; ``size``: approximate memory in
    bytes; ``done``: when they are committed, or failed with ``problem``.
    """

    names: list[str]
    fingerprints: list[int]
    reservation: int
    size: int
    done: asyncio.Future[None] | None = field(default=None, init=False)
    queue_id: int = field(default=-1, init=False)
    queue_offset: int = field(default=-1, init=False)
    problem: Problem | None = field(default=None, init=False)

    def __len__(self) -> int:
        return len(self.names)

    def transaction_id(self, row: int) -> str:
        """That of one of them."""
        raise NotImplementedError


@dataclass(eq=False)
class MessageBlock(HalfBlock):
    """Half messages that came as JSON."""

    halves: list[Half]

    def transaction_id(self, row: int) -> str:
        """See HalfBlock."""
        return self.halves[row].transaction_id


@dataclass(eq=False)
class ColumnBlock(HalfBlock):
    """Half messages that came as columns: ``rows`` in the schema SENT, from the request to the table."""

    rows: pa.Table

    def transaction_id(self, row: int) -> str:
        """See HalfBlock."""
        found: str = self.rows.column("transaction_id")[row].as_py()
        return found


def run_of_messages(blocks: Sequence[MessageBlock], halves: Sequence[Half], stored: int) -> HalfRun:
    """The half messages of blocks that follow one another, as the cache has them; ``stored``: steady ms."""
    code = CODE_OF["COMMIT"]
    return HalfRun(
        queue_id=blocks[0].queue_id,
        first=blocks[0].queue_offset,
        names=[name for block in blocks for name in block.names],
        fingerprints=[content for block in blocks for content in block.fingerprints],
        topics=[half.real_topic for half in halves],
        born=[half.born_timestamp for half in halves],
        stored=stored,
        states=bytes([code if half.committed else 0 for half in halves]),
        reservations=[(block.reservation, len(block)) for block in blocks],
    )


def run_of_columns(block: ColumnBlock, stored: int) -> HalfRun:
    """The same of a block of columns."""
    count = len(block)
    state = CODE_OF["COMMIT"] if count and block.rows.column("committed")[0].as_py() else 0
    return HalfRun(
        queue_id=block.queue_id,
        first=block.queue_offset,
        names=block.names,
        fingerprints=block.fingerprints,
        topics=shared_texts(block.rows.column("real_topic")),
        born=(np.asarray(block.rows.column("born_timestamp").cast(pa.int64())) // 1000).tolist(),
        stored=stored,
        states=bytes([state]) * count,
        reservations=[(block.reservation, count)],
    )


def block_size(rows: int, size: int) -> int:
    """Approximate memory of a block in bytes; ``size``: that of its columns."""
    return size + _OVERHEAD * rows


def landed_rows(rows: pa.Table, queue_id: int, first: int, stored: int) -> pa.Table:
    """Rows of `half`: those of SENT at the queue's offsets from ``first`` on; ``stored`` in ms."""
    count = len(rows)
    return landed(
        "half",
        rows,
        queue_id=np.full(count, queue_id),
        queue_offset=first + np.arange(count),
        store_timestamp=np.full(count, stored * 1000),
    )


def landed(name: str, rows: pa.Table, **assigned: Any) -> pa.Table:
    """Rows of a table: those that were sent, and what the gateway assigned; columns of neither are null."""
    count, there = len(rows), set(rows.schema.names)
    schema = arrow_schema(name)
    columns = [
        pa.array(assigned[field.name], field.type)
        if field.name in assigned
        else rows.column(field.name)
        if field.name in there
        else pa.nulls(count, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)
