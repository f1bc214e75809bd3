"""Rows of a Delta table as half messages and ops: JSON objects like those on a line of a file. No Spark session.

A row becomes the JSON object of its message in Spark (`table_columns`); here it is read and checked.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from checkback.landing.parser import Kind, Reader
from checkback.messages import half, op
from checkback.messages.fields import MessageRejectedError, fields_of, message_of, refuse_unknown
from checkback.messages.half import Half, HalfLine, half_of_line
from checkback.messages.op import Op, named, ops_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Columns of a row: its JSON object, and why it is refused. Its properties may be a JSON object in a text.
COLUMNS = ("line", "fault")


def outbox_reader(queue_id: int) -> Reader:
    """The reader of an outbox table's rows, of which each is a message in the half queue, without an offset yet."""
    return Reader(COLUMNS, partial(read_outbox, queue_id))


def read_outbox(queue_id: int, line: bytes, fault: str | None) -> Sequence[Half]:
    """The message of a row of an outbox, committed as it is. Raises MessageRejectedError."""
    fields = _fields(line, fault)
    return (half_of_line(message_of({**fields, "queue_id": queue_id, "queue_offset": 0, "committed": True}, HalfLine)),)


def read_half(line: bytes, fault: str | None) -> Sequence[Half]:
    """The half message of a row. Raises MessageRejectedError."""
    fields = _fields(line, fault)
    refuse_unknown(fields, half.FIELDS)
    return (half_of_line(message_of(fields, HalfLine)),)


def read_ops(line: bytes, fault: str | None) -> Sequence[Op]:
    """The ops of a row. Raises MessageRejectedError."""
    fields = named(_fields(line, fault))
    refuse_unknown(fields, op.FIELDS)
    return ops_of(fields)


FIELDS: Mapping[Kind, frozenset[str]] = {"half": half.FIELDS, "op": op.FIELDS}
#: Rows of tables with the columns of docs/landing.md.
ROWS: Mapping[Kind, Reader] = {"half": Reader(COLUMNS, read_half), "op": Reader(COLUMNS, read_ops)}


def _fields(line: bytes, fault: str | None) -> dict[str, Any]:
    if fault is not None:
        raise MessageRejectedError(fault)
    fields = fields_of(line)
    if isinstance(headers := fields.get("properties"), str):
        fields["properties"] = _properties(headers)
    return fields


def _properties(text: str) -> dict[str, str]:
    """The properties in a JSON object: a value that is no text is its JSON, null is left out. Blank: none.

    Raises MessageRejectedError.
    """
    if not text.strip():
        return {}
    try:
        found = fields_of(text.encode())
    except MessageRejectedError as error:
        raise MessageRejectedError(f"properties: {error.reason}") from None
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in found.items()
        if value is not None
    }
