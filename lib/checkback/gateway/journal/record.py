"""Records of the journal: what one group commit had for one table, as MessagePack, and as rows of the tables again."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from checkback.errors import StorageError
from checkback.gateway.appender import half_rows_at, op_rows
from checkback.messages.half import Half
from checkback.messages.op import RemarkedOp

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from checkback.gateway.deduplication.history import Place

_encode = msgspec.msgpack.Encoder().encode
_halves = msgspec.msgpack.Decoder(list[Half]).decode
_ops = msgspec.msgpack.Decoder(list[RemarkedOp]).decode


class Kind(IntEnum):
    """What a record has: messages of one queue at consecutive offsets, or ops."""

    HALF = 0
    OP = 1


@dataclass(frozen=True)
class Record:
    """One group commit's messages for one table.

    ``rows``: their number; ``content``: the messages; ``queue_id``, ``first``: of half messages,
    the queue and the first offset. ``position``: in the journal, from 1 on.

    Of ops, kept in memory only: ``firsts``: by queue, the first offset that must stay in the cache until they are in
    the tables; ``places`` of half messages that need not be in it.
    """

    kind: Kind
    rows: int
    content: bytes
    queue_id: int = -1
    first: int = -1
    position: int = 0
    places: Collection[Place] = ()
    firsts: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Unflushed:
    """A record that is not in the tables yet: without its content. ``at``: when it was acknowledged (steady ms)."""

    position: int
    kind: Kind
    rows: int
    size: int
    queue_id: int
    first: int
    at: int
    places: Collection[Place] = ()
    firsts: Mapping[int, int] = field(default_factory=dict)


def half_record(halves: Sequence[Half], queue_id: int, first: int) -> Record:
    """Half messages of a queue at the offsets from ``first`` on."""
    return Record(Kind.HALF, len(halves), _encode(halves), queue_id, first)


def op_record(
    ops: Sequence[RemarkedOp], places: Sequence[Place] = (), firsts: Mapping[int, int] | None = None
) -> Record:
    """Ops, each with its remark; ``places`` and ``firsts`` as in `Record`."""
    return Record(Kind.OP, len(ops), _encode(ops), places=places, firsts=firsts or {})


def rows_of(records: Sequence[Record], stored: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """The rows of `half`, a table for each queue, and of `op`. ``stored``: when they land (ms).

    Raises StorageError if a record cannot be read.
    """
    halves: dict[int, list[Half]] = {}
    offsets: dict[int, list[npt.NDArray[np.int64]]] = {}
    ops: list[RemarkedOp] = []
    try:
        for record in records:
            if record.kind is Kind.OP:
                ops += _ops(record.content)
            else:
                halves.setdefault(record.queue_id, []).extend(_halves(record.content))
                offsets.setdefault(record.queue_id, []).append(record.first + np.arange(record.rows))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StorageError("a record of the journal cannot be read", "gateway.journal", "report it") from error
    of_queues = [half_rows_at(halves[queue], queue, np.concatenate(offsets[queue]), stored) for queue in halves]
    return of_queues, [op_rows([op for op, _ in ops], [remark for _, remark in ops], stored)] if ops else []
