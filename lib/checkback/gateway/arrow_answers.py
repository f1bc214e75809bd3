"""Answers as an Arrow IPC stream: one row for each message, in the order of the request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.gateway.problems import Problem

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


def stored_answers(answers: Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    """The answers to half messages; ``transaction_ids`` as they were sent."""
    return _stream(STORED, answers, transaction_ids)


def ended_answers(answers: Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    """The answers to ops; ``transaction_ids`` as they were sent."""
    return _stream(ENDED, answers, transaction_ids)


def _stream(schema: pa.Schema, answers: Sequence[Answer], transaction_ids: pa.Array) -> bytes:
    rows = [_members(answer) for answer in answers]
    columns = {name: [row.get(name) for row in rows] for name in schema.names if name != "transaction_id"}
    arrays = [
        transaction_ids if field.name == "transaction_id" else pa.array(columns[field.name], field.type)
        for field in schema
    ]
    return stream_of(pa.record_batch(arrays, schema=schema))


def _members(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, Problem):
        return {"state": answer.more.get("first_state"), **answer.members()}
    return {"status": 200, **answer}


def stream_of(batch: pa.RecordBatch) -> bytes:
    """The IPC stream of a record batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found
