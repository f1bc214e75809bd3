"""A producer's messages, and their JSON for the gateway. No network."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from checkback.delay import FIELDS
from checkback.messages import Rejected, parse_half

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class Message:
    """A message to publish to ``topic`` when the local transaction commits.

    ``check_immunity_s``: how long the local transaction may take before the first check, in seconds (None: the server's
    transaction.timeout). ``real_queue_id``: the queue of the topic. ``transaction_id``: if empty, the producer
    generates a unique one (RocketMQ's UNIQ_KEY); or an idempotency key, unique in the producer group, with which a
    message sent again after a crash lands only once. At most one of ``delay_level`` (RocketMQ's, 1 to 18), ``delay``
    (from COMMIT) and ``deliver_at`` (with a time zone) says when it is delivered, see docs/delay.md. The limits are
    RocketMQ's, see docs/protocol.md.

    ``queue_id`` and ``queue_offset``: the place at which its half message was acknowledged, set in the message that
    ``execute_local_transaction`` is given, else None. The place is the half message's identity (docs/protocol.md, rule
    13): with several gateways one transaction id may have several half messages.
    """

    topic: str
    body: bytes = field(repr=False)
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    check_immunity_s: int | None = None
    real_queue_id: int = 0
    transaction_id: str = ""
    delay_level: int | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    queue_id: int | None = field(default=None, init=False, compare=False)
    queue_offset: int | None = field(default=None, init=False, compare=False)

    @property
    def place(self) -> tuple[int, int] | None:
        """(queue_id, queue_offset); None = not acknowledged. Compare it with `CheckRequest.place`."""
        return None if self.queue_id is None or self.queue_offset is None else (self.queue_id, self.queue_offset)

    def stored_at(self, queue_id: int, queue_offset: int) -> Message:
        """A copy with this place: the message for ``execute_local_transaction``, also in a listener's unit test."""
        stored = copy(self)
        object.__setattr__(stored, "queue_id", queue_id)
        object.__setattr__(stored, "queue_offset", queue_offset)
        return stored


def identified(message: Message) -> Message:
    """The message with a transaction id: its own, or a generated, globally unique one."""
    return message if message.transaction_id else replace(message, transaction_id=uuid.uuid4().hex)


def half_json(group: str, message: Message, born_ms: int) -> bytes:
    """The body of POST /v1/half. ``born_ms``: the transaction's begin, in ms since the epoch.

    Raises messages.Rejected, before anything is sent, if the gateway would (RocketMQ: Validators.checkMessage).
    """
    fields: dict[str, Any] = {
        "transaction_id": message.transaction_id,
        "producer_group": group,
        "real_topic": message.topic,
        "real_queue_id": message.real_queue_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "body": base64.b64encode(message.body).decode("ascii"),
        "born_timestamp": born_ms,
        "check_immunity_s": message.check_immunity_s,
        "delay_level": message.delay_level,
        "delay": None if message.delay is None else -(-message.delay // timedelta(milliseconds=1)),
        "deliver_at": None if message.deliver_at is None else _ms(message.deliver_at),
    }
    fields = {name: value for name, value in fields.items() if value is not None or name not in FIELDS}
    # The same validation as in `land`, with placeholders for the queue and offset that the gateway assigns.
    parse_half(json.dumps({**fields, "queue_id": 0, "queue_offset": 0}).encode())
    return json.dumps(fields, separators=(",", ":")).encode()


def _ms(at: datetime) -> int:
    """A time in ms since the epoch, rounded up: never before it. Raises messages.Rejected."""
    if at.tzinfo is None:
        raise Rejected("deliver_at: without a time zone")
    return -((_EPOCH - at) // timedelta(milliseconds=1))


def op_json(group: str, transaction_id: str, queue_id: int, queue_offset: int, state: str, born_ms: int) -> bytes:
    """The body of POST /v1/op: ``state`` is COMMIT or ROLLBACK."""
    fields = {
        "queue_id": queue_id,
        "half_offset": queue_offset,
        "transaction_id": transaction_id,
        "producer_group": group,
        "state": state,
        "born_timestamp": born_ms,
    }
    return json.dumps(fields, separators=(",", ":")).encode()
