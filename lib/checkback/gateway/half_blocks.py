"""Half messages of one request as columns, from the request to the table: no Python object for each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from checkback.gateway.landed_halves import CODE_OF, HalfEntries, shared_texts
from checkback.storage.schemas import arrow_schema

if TYPE_CHECKING:
    import asyncio

    from numpy.typing import NDArray

    from checkback.gateway.problems import Problem

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

    ``rows``: in the schema SENT; ``names``, ``fingerprints``: of each; ``size``: approximate memory in bytes;
    ``reservation``: of the names in the cache.
    """

    rows: pa.Table
    names: list[str]
    fingerprints: NDArray[np.int64]
    size: int
    reservation: int
    done: asyncio.Future[None] | None = None
    queue_id: int = -1
    queue_offset: int = -1
    problem: Problem | None = None

    def __len__(self) -> int:
        return len(self.names)

    def entries(self, stored: int) -> HalfEntries:
        """As the cache has them; ``stored``: steady ms."""
        count = len(self)
        committed = self.rows.column("committed")
        state = CODE_OF["COMMIT"] if count and committed[0].as_py() else 0
        return HalfEntries(
            queue_ids=np.full(count, self.queue_id),
            offsets=self.queue_offset + np.arange(count),
            names=self.names,
            fingerprints=self.fingerprints,
            topics=shared_texts(self.rows.column("real_topic")),
            born=np.asarray(self.rows.column("born_timestamp").cast(pa.int64())) // 1000,
            stored=np.full(count, stored),
            states=bytes([state]) * count,
            reservation=self.reservation,
        )


@dataclass(frozen=True)
class BlockRow:
    """One message of a block."""

    block: HalfBlock
    row: int

    @property
    def transaction_id(self) -> str:
        """Its transaction id."""
        found: str = self.block.rows.column("transaction_id")[self.row].as_py()
        return found

    @property
    def fingerprint(self) -> int:
        """The hash of its content."""
        return int(self.block.fingerprints[self.row])

    @property
    def done(self) -> asyncio.Future[None] | None:
        """Done when the block is committed or has failed."""
        return self.block.done

    @property
    def problem(self) -> Problem | None:
        """Why it was not committed."""
        return self.block.problem

    @property
    def queue_id(self) -> int:
        """Its queue, once assigned."""
        return self.block.queue_id

    @property
    def queue_offset(self) -> int:
        """Its offset, once assigned."""
        return self.block.queue_offset + self.row


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


def to_stream(rows: pa.Table) -> memoryview:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return memoryview(sink.getvalue())


def is_stream(content: bytes | memoryview) -> bool:
    """Is it an Arrow IPC stream? MessagePack's arrays do not begin with its continuation marker."""
    return content[:1] == b"\xff"


def of_stream(content: bytes | memoryview) -> pa.Table:
    """The rows of `to_stream`. Raises pa.ArrowException."""
    with pa.ipc.open_stream(content) as stream:
        return stream.read_all()
