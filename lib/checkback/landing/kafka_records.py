"""Kafka records as half and op messages: a line's JSON, with queue and offset from the record's position.

``queue_id`` is the record's partition plus a base, ``queue_offset`` its offset. No Spark, no Kafka client.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from checkback.landing.parser import Kind, Reader
from checkback.messages import half as halves
from checkback.messages import op
from checkback.messages.fields import MessageRejectedError, fields_of, message_of, refuse_unknown
from checkback.messages.half import Half, HalfLine, half_of_line
from checkback.messages.limits import INT_MAX
from checkback.messages.op import Op, named, ops_of
from checkback.messages.trace_context import TRACEPARENT, TRACESTATE, trace_of, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

#: Bytes before a value by Confluent's serializers: 0, and the schema's id in 4 bytes. `kafka_query` takes it off where
#: JSON follows.
REGISTRY_HEADER = 5
_OP_FIELDS = op.FIELDS | {"partition", "offset"}
#: Columns of a record: its value, partition, offset, and timestamp in ms; and the headers of a half message's.
COLUMNS = ("line", "partition", "offset", "timestamp_ms")
HEADERS = (TRACEPARENT, TRACESTATE)


def readers(queue_base: int, groups: Collection[str] | None = None) -> Mapping[Kind, Reader]:
    """The readers of records if the half topic's partition 0 is the half queue ``queue_base``.

    ``groups``: those that may write to the topic; None = any.
    """
    return {
        "half": Reader((*COLUMNS, *HEADERS), partial(_of_groups, groups, partial(read_half, queue_base))),
        "op": Reader(COLUMNS, partial(_of_groups, groups, partial(read_ops, queue_base))),
    }


def _of_groups(
    groups: Collection[str] | None, read: Callable[..., Sequence[Half | Op]], *record: Any
) -> Sequence[Half | Op]:
    """The messages of a record by ``read``.

    Raises MessageRejectedError, also for a message of a group that may not write there.
    """
    messages = read(*record)
    for message in messages:
        if groups is not None and message.producer_group not in groups:
            raise MessageRejectedError(
                f"producer_group: {message.producer_group} may not write in this topic (kafka.groups)"
            )
    return messages


def read_half(
    queue_base: int,
    value: bytes | None,
    partition: int,
    offset: int,
    timestamp_ms: int,
    traceparent: str | None = None,
    tracestate: str | None = None,
) -> Sequence[Half]:
    """The half message of a record: a line's JSON, where queue_id and queue_offset may be left out.

    If stated, they must be the record's own. born_timestamp defaults to the record's timestamp, the trace context to
    that of its headers.
    Raises MessageRejectedError, also for a record without a value (a tombstone).
    """
    fields = _fields(value, timestamp_ms)
    refuse_unknown(fields, halves.FIELDS)
    queue_id = _queue_id(queue_base, partition)
    for name, own in (("queue_id", queue_id), ("queue_offset", offset)):
        _agree(fields, name, own, "the record's")
    half = half_of_line(message_of(fields | {"queue_id": queue_id, "queue_offset": offset}, HalfLine))
    if traceparent is None:
        return (half,)
    context = trace_of({TRACEPARENT: traceparent, TRACESTATE: tracestate or ""})
    return (half._replace(properties=traced(half.properties, context)),)


def read_ops(queue_base: int, value: bytes | None, _partition: int, _offset: int, timestamp_ms: int) -> Sequence[Op]:
    """The ops of a record: a line's JSON, which may name the half by its Kafka partition and offset.

    ``partition`` (of the half topic) stands for ``queue_id``, ``offset`` for ``queue_offset``; if both are stated
    they must agree. born_timestamp defaults to the record's timestamp. The op record's own position is irrelevant.
    Raises MessageRejectedError, also for a record without a value (a tombstone).
    """
    fields = named(_fields(value, timestamp_ms))
    refuse_unknown(fields, _OP_FIELDS)
    partition, offset = fields.pop("partition", None), fields.pop("offset", None)
    if partition is not None:
        queue_id = _queue_id(queue_base, _whole("partition", partition))
        _agree(fields, "queue_id", queue_id, "that of the partition")
        fields["queue_id"] = queue_id
    if offset is not None:
        _agree(fields, "queue_offset", _whole("offset", offset), "the offset")
        fields["queue_offset"] = offset
    return ops_of(fields)


def _fields(value: bytes | None, timestamp_ms: int) -> dict[str, Any]:
    if value is None:
        raise MessageRejectedError("record: no value (a tombstone)")
    if value[:1] == b"\0" and len(value) >= REGISTRY_HEADER:
        number = int.from_bytes(value[1:REGISTRY_HEADER], "big")
        what = f"a Schema Registry header (schema id {number}) and no JSON object behind it"
        raise MessageRejectedError(f"not JSON: {what}: Avro or Protobuf; send JSON")
    fields = fields_of(value)
    if fields.get("born_timestamp") is None:
        fields["born_timestamp"] = timestamp_ms
    return fields


def _queue_id(queue_base: int, partition: int) -> int:
    if queue_base + partition > INT_MAX:
        raise MessageRejectedError(f"queue_id: {queue_base} + partition {partition} is over {INT_MAX}")
    return queue_base + partition


def _whole(name: str, value: object) -> int:
    if type(value) is not int or value < 0:  # neither true nor 1.0
        raise MessageRejectedError(f"{name}: not an integer from 0 on")
    return value


def _agree(fields: Mapping[str, Any], name: str, own: int, whose: str) -> None:
    stated = fields.get(name)
    if stated is not None and (type(stated) is not int or stated != own):
        raise MessageRejectedError(f"{name}: is not {whose}, {own}")
