"""Answers as an Arrow IPC stream: one row for each message, in the order of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.gateway.problems import Problem
from checkback.gateway.requests.half_blocks import Placed
from checkback.storage.arrow_streams import to_stream

if TYPE_CHECKING:
    from collections.abc import Sequence

    from checkback.gateway.problems import Answer

#: columns of the answer to half messages; ``code`` and ``detail`` are null unless it is a problem
STORED = pa.schema(
    {
        "status": pa.int32(),
        "transaction_id": pa.string(),
        "queue_id": pa.int32(),
        "queue_offset": pa.int64(),
        "code": pa.string(),
        "detail": pa.string(),
    }
)
#: columns of the answer to ops; ``state`` is also that of an op that contradicts (first_state)
ENDED = STORED.append(pa.field("state", pa.string())).append(pa.field("repeated", pa.bool_()))


def stored_answers(answers: Placed | Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    """The answers to half messages; ``transaction_ids`` as they were sent."""
    if isinstance(answers, Placed):
        return _placed(answers, transaction_ids)
    return _stream(STORED, answers, transaction_ids)


def ended_answers(answers: pa.Table | Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    """The answers to ops; ``transaction_ids`` as they were sent. A table: ops that are all committed as the first."""
    if not isinstance(answers, pa.Table):
        return _stream(ENDED, answers, transaction_ids)
    return _all_well(
        ENDED,
        transaction_ids,
        queue_id=answers["queue_id"],
        queue_offset=answers["half_offset"],
        state=answers["state"],
        repeated=pa.repeat(False, len(answers)),
    )


def _placed(placed: Placed, transaction_ids: pa.Array) -> bytes:
    count = len(transaction_ids)
    return _all_well(
        STORED,
        transaction_ids,
        queue_id=pa.repeat(pa.scalar(placed.queue_id, pa.int32()), count),
        queue_offset=pa.array(np.arange(placed.first, placed.first + count)),
    )


def _all_well(schema: pa.Schema, transaction_ids: pa.Array, **columns: pa.Array | pa.ChunkedArray) -> bytes:
    """Answers with status 200; what is not among the ``columns`` is null."""
    count = len(transaction_ids)
    nothing = pa.nulls(count, pa.string())
    columns |= {"status": pa.repeat(pa.scalar(200, pa.int32()), count), "transaction_id": transaction_ids}
    rows = pa.Table.from_arrays([columns.get(name, nothing) for name in schema.names], schema=schema)
    return bytes(to_stream(rows))


def _stream(schema: pa.Schema, answers: Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    rows = [_members(answer) for answer in answers]
    columns = {name: [row.get(name) for row in rows] for name in schema.names if name != "transaction_id"}
    arrays = [
        transaction_ids if field.name == "transaction_id" else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return bytes(to_stream(pa.Table.from_arrays(arrays, schema=schema)))


def _members(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Problem):
        return {"state": answer.more.get("first_state"), **answer.members()}
    return {"status": 200, **answer}
