"""Op messages as producers send them: COMMIT or ROLLBACK of a half message, one or several on a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from checkback.messages.columns import Born, BornOrNow, Group, Offset, QueueId, TransactionId
from checkback.messages.fields import MessageRejectedError, fields_of, message_of, quoted, refuse_unknown
from checkback.messages.limits import LONG_MAX, OFFSETS_MAX
from checkback.messages.names import refuse_group

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES = ("COMMIT", "ROLLBACK")
#: RocketMQ's names (LocalTransactionState)
_ROCKETMQ = {"COMMIT_MESSAGE": "COMMIT", "ROLLBACK_MESSAGE": "ROLLBACK", "UNKNOW": "UNKNOWN"}
#: what ops recorded from RocketMQ call these fields
_RECORDED = {"half_offset": "queue_offset", "half_offsets": "queue_offsets"}
_OFFSETS = re.compile(r"[0-9]{1,19}(?:,[0-9]{1,19})*,?")


class OpMessage(Struct, gc=False, forbid_unknown_fields=True):
    """The end of a transaction."""

    queue_id: QueueId
    queue_offset: Annotated[Offset, Meta(description="queue_offset of the half message that it ends")]
    transaction_id: TransactionId
    producer_group: Group
    state: Literal["COMMIT", "ROLLBACK"]
    born_timestamp: BornOrNow = None


class OpLine(OpMessage, kw_only=True):
    """An op on a line, or in a record."""

    born_timestamp: Born


class OpsLine(Struct, gc=False, forbid_unknown_fields=True):
    """Ops of several half messages on a line."""

    queue_id: QueueId
    queue_offsets: str
    producer_group: Group
    state: Literal["COMMIT", "ROLLBACK"]
    born_timestamp: Born
    transaction_id: TransactionId | None = None


FIELDS = frozenset({*OpLine.__struct_fields__, *OpsLine.__struct_fields__})


class Op(NamedTuple):
    """An op message: the columns of schemas.OP except ``source``, ``remark``, ``store_timestamp``.

    ``born_timestamp`` is in ms since the epoch; ``transaction_id`` None = not stated (batched form).
    """

    queue_id: int
    queue_offset: int
    transaction_id: str | None
    producer_group: str
    state: str
    born_timestamp: int


#: an op and the sender's remark
RemarkedOp = tuple[Op, str | None]


def parse_ops(line: bytes) -> list[Op]:
    """Parse the op messages from a line of UTF-8 JSON: one, or one for each distinct offset in ``queue_offsets``.

    Raises MessageRejectedError, also for an unknown field: a list ("12,13,") with one bad offset is rejected as a
    whole. The batched form is the body of RocketMQ's op messages (TransactionalMessageUtil.buildOffsetKey), which have
    no transaction id: it is optional.
    """
    fields = named(fields_of(line))
    refuse_unknown(fields, FIELDS)
    return ops_of(fields)


def named(fields: dict[str, Any]) -> dict[str, Any]:
    """An op's fields with ``queue_offset`` for its other name, ``half_offset``.

    Raises MessageRejectedError if both are there.
    """
    for other, name in _RECORDED.items():
        if other in fields:
            if name in fields:
                raise MessageRejectedError(f"{name}: {other}, its other name, is there too, only one of them may be")
            fields = {name if key == other else key: value for key, value in fields.items()}
    return fields


def ops_of(fields: Mapping[str, Any]) -> list[Op]:
    """The op messages in a JSON object's fields, by ``parse_ops``'s rules. Raises MessageRejectedError."""
    if "queue_offsets" not in fields:
        line = message_of(fields, OpLine)
        return [op_of(line, line.born_timestamp)]
    if "queue_offset" in fields:
        raise MessageRejectedError("queue_offsets: queue_offset is there too, only one of them may be")
    sent = message_of(fields, OpsLine)
    refuse_group(sent.producer_group)
    return [
        Op(sent.queue_id, offset, sent.transaction_id, sent.producer_group, sent.state, sent.born_timestamp)
        for offset in _offsets(sent.queue_offsets)
    ]


def op_of(sent: OpMessage, born: int) -> Op:
    """The op message that was sent. ``born``: its born_timestamp.

    Raises MessageRejectedError for what the fields' types do not show.
    """
    refuse_group(sent.producer_group)
    return Op(sent.queue_id, sent.queue_offset, sent.transaction_id, sent.producer_group, sent.state, born)


def state_meant(value: object) -> object:
    """The state that this value names in lower case, or as RocketMQ does; any other value unchanged."""
    if not isinstance(value, str) or not value.isascii():
        return value
    name = value.upper()
    name = _ROCKETMQ.get(name, name)
    return name if name in (*STATES, "UNKNOWN") else value


def _offsets(value: str) -> list[int]:
    if value.count(",") + (not value.endswith(",")) > OFFSETS_MAX:
        raise MessageRejectedError(f"queue_offsets: more than {OFFSETS_MAX} offsets")
    if not _OFFSETS.fullmatch(value):
        raise MessageRejectedError(f"queue_offsets: {quoted(value)} is no list of offsets like 12,13,")
    offsets = list(dict.fromkeys(int(part) for part in value.rstrip(",").split(",")))
    if max(offsets) > LONG_MAX:
        raise MessageRejectedError(f"queue_offsets: {max(offsets)} is over {LONG_MAX}")
    return offsets
