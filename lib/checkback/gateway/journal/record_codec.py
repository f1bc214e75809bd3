"""The content of the journal's records: half messages and ops as MessagePack, and as rows of the tables again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa

from checkback.errors import StorageError
from checkback.gateway.journal.record import Kind, Record
from checkback.gateway.requests.half_blocks import landed_rows
from checkback.gateway.requests.op_blocks import landed_ops
from checkback.gateway.tables import half_rows_at, op_rows
from checkback.messages.half import Half
from checkback.messages.op import Op
from checkback.storage.arrow_streams import is_stream, of_stream, to_stream

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from checkback.gateway.deduplication.history import Place
    from checkback.gateway.requests.batch_decoder import RemarkedOp
    from checkback.gateway.requests.half_blocks import ColumnBlock
    from checkback.gateway.requests.op_blocks import ColumnBlock as OpColumns

_encode = msgspec.msgpack.Encoder().encode
_halves = msgspec.msgpack.Decoder(list[Half]).decode
_ops = msgspec.msgpack.Decoder(list[tuple[Op, str | None]]).decode


def half_record(halves: Sequence[Half], queue_id: int, first: int) -> Record:
    """Half messages of a queue at the offsets from ``first`` on."""
    return Record(Kind.HALF, len(halves), _encode(halves), queue_id, first)


def block_record(block: ColumnBlock) -> Record:
    """Half messages that came as columns, at their offsets."""
    return Record(Kind.HALF, len(block), memoryview(to_stream(block.rows)), block.queue_id, block.queue_offset)


def op_record(
    ops: Sequence[RemarkedOp], places: Sequence[Place] = (), firsts: Mapping[int, int] | None = None
) -> Record:
    """Ops, each with its remark; ``places`` and ``firsts`` as in `Record`."""
    return Record(Kind.OP, len(ops), _encode(ops), places=places, firsts=firsts or {})


def op_block_record(block: OpColumns) -> Record:
    """Ops that came as columns."""
    return Record(Kind.OP, len(block), memoryview(to_stream(block.rows)), firsts=block.firsts)


def rows_of(records: Sequence[Record], stored: int) -> tuple[list[pa.Table], list[pa.Table]]:
    """The rows of `half`, a table for each queue, and of `op`. ``stored``: when they land (ms).

    Raises StorageError if a record cannot be read.
    """
    try:
        halves: dict[int, list[Half]] = {}
        blocks: dict[int, list[pa.Table]] = {}
        offsets: dict[int, list[npt.NDArray[np.int64]]] = {}
        for record in records:
            if record.kind is Kind.HALF and is_stream(record.content):
                rows = landed_rows(of_stream(record.content), record.queue_id, record.first, stored)
                blocks.setdefault(record.queue_id, []).append(rows)
            elif record.kind is Kind.HALF:
                halves.setdefault(record.queue_id, []).extend(_halves(record.content))
                offsets.setdefault(record.queue_id, []).append(record.first + np.arange(record.rows))
        of_ops = [record.content for record in records if record.kind is Kind.OP]
        op_parts = [landed_ops(of_stream(content), stored) for content in of_ops if is_stream(content)]
        ops = [op for content in of_ops if not is_stream(content) for op in _ops(content)]
    except (msgspec.DecodeError, UnicodeDecodeError, pa.ArrowException) as error:
        raise StorageError("a record of the journal cannot be read", "gateway.journal", "report it") from error
    for queue, singles in halves.items():
        blocks.setdefault(queue, []).append(half_rows_at(singles, queue, np.concatenate(offsets[queue]), stored))
    of_queues = [pa.concat_tables(parts) for parts in blocks.values()]
    if ops:
        op_parts.append(op_rows([op for op, _ in ops], [remark for _, remark in ops], stored))
    return of_queues, [pa.concat_tables(op_parts)] if op_parts else []
