"""Rows as Arrow IPC streams: between processes."""

from __future__ import annotations

import pyarrow as pa


def to_stream(rows: pa.Table) -> pa.Buffer:
    """Rows as an Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return sink.getvalue()


def of_stream(content: bytes | memoryview) -> pa.Table:
    """The rows of `to_stream`. Raises pa.ArrowException."""
    with pa.ipc.open_stream(content) as stream:
        return stream.read_all()
