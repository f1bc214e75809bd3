"""Op messages as producers send them: COMMIT or ROLLBACK of a half message, one or several on a line."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.messages.fields import Rejected, fields_of, integer, quoted, refuse_unknown, string
from checkback.messages.limits import GROUP_MAX, INT_MAX, LONG_MAX, MS_MAX, OFFSETS_MAX
from checkback.messages.names import name_of, transaction_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

STATES = ("COMMIT", "ROLLBACK")
#: RocketMQ's names (LocalTransactionState)
_ROCKETMQ = {"COMMIT_MESSAGE": "COMMIT", "ROLLBACK_MESSAGE": "ROLLBACK", "UNKNOW": "UNKNOWN"}
#: what a line may say
FIELDS = frozenset(
    {"queue_id", "half_offset", "half_offsets", "transaction_id", "producer_group", "state", "born_timestamp"}
)
_OFFSETS = re.compile(r"[0-9]{1,19}(?:,[0-9]{1,19})*,?")


class Op(NamedTuple):
    """An op message: the columns of schemas.OP except ``source``, ``remark``, ``store_timestamp``.

    ``born_timestamp`` is in ms since the epoch; ``transaction_id`` None = not stated (batched form).
    """

    queue_id: int
    half_offset: int
    transaction_id: str | None
    producer_group: str
    state: str
    born_timestamp: int


def parse_ops(line: bytes) -> list[Op]:
    """Parse the op messages from a line of UTF-8 JSON: one, or one for each distinct offset in ``half_offsets``.

    Raises Rejected, also for an unknown field: a list ("12,13,") with one bad offset is rejected as a whole. The
    batched form is the body of RocketMQ's op messages (TransactionalMessageUtil.buildOffsetKey), which have no
    transaction id: it is optional.
    """
    fields = fields_of(line)
    refuse_unknown(fields, FIELDS)
    return ops_of(fields)


def ops_of(fields: Mapping[str, Any]) -> list[Op]:
    """The op messages in a JSON object's fields, by ``parse_ops``'s rules. Raises Rejected."""
    if "half_offsets" in fields:
        offsets = _offsets(fields)
        stated = fields.get("transaction_id") is not None
        transaction_id = transaction_id_of(fields) if stated else None
    else:
        return [op_of(fields)]
    queue_id = integer(fields, "queue_id", INT_MAX)
    group = name_of(fields, "producer_group", GROUP_MAX)
    state = _state(fields)
    born = integer(fields, "born_timestamp", MS_MAX)
    return [Op(queue_id, offset, transaction_id, group, state, born) for offset in offsets]


def op_of(fields: Mapping[str, Any]) -> Op:
    """The op message in a JSON object's fields, for one half message, with its transaction id. Raises Rejected."""
    return Op(
        queue_id=integer(fields, "queue_id", INT_MAX),
        half_offset=integer(fields, "half_offset", LONG_MAX),
        transaction_id=transaction_id_of(fields),
        producer_group=name_of(fields, "producer_group", GROUP_MAX),
        state=_state(fields),
        born_timestamp=integer(fields, "born_timestamp", MS_MAX),
    )


def state_meant(value: object) -> object:
    """The state that this value names in lower case, or as RocketMQ does; any other value unchanged."""
    if not isinstance(value, str) or not value.isascii():
        return value
    name = value.upper()
    name = _ROCKETMQ.get(name, name)
    return name if name in (*STATES, "UNKNOWN") else value


def _offsets(fields: Mapping[str, Any]) -> list[int]:
    if "half_offset" in fields:
        raise Rejected("half_offsets: half_offset is there too, only one of them may be")
    value = string(fields, "half_offsets")
    if value.count(",") + (not value.endswith(",")) > OFFSETS_MAX:
        raise Rejected(f"half_offsets: more than {OFFSETS_MAX} offsets")
    if not _OFFSETS.fullmatch(value):
        raise Rejected(f"half_offsets: {quoted(value)} is no list of offsets like 12,13,")
    offsets = list(dict.fromkeys(int(part) for part in value.rstrip(",").split(",")))
    if max(offsets) > LONG_MAX:
        raise Rejected(f"half_offsets: {max(offsets)} is over {LONG_MAX}")
    return offsets


def _state(fields: Mapping[str, Any]) -> str:
    value = fields.get("state")
    if value not in STATES:
        what = f"unknown state {quoted(value)}, neither COMMIT nor ROLLBACK" if "state" in fields else "missing"
        meant = state_meant(value)
        raise Rejected(f"state: {what}{f': did you mean {meant}?' if meant in STATES else ''}")
    return str(value)
