"""Lines with a half message or an op, with some fields changed, and why a line is rejected."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkback.messages.fields import MessageRejectedError

HALF: dict[str, Any] = {
    "queue_id": 3,
    "queue_offset": 12,
    "transaction_id": "7F000001",
    "producer_group": "orders",
    "real_topic": "orders_created",
    "real_queue_id": 1,
    "tags": "new",
    "keys": "o-1",
    "properties": {"region": "eu"},
    "body": "aGk=",
    "born_timestamp": 1_700_000_000_000,
    "check_immunity": "30s",
}
OP: dict[str, Any] = {
    "queue_id": 3,
    "queue_offset": 12,
    "transaction_id": "7F000001",
    "producer_group": "orders",
    "state": "COMMIT",
    "born_timestamp": 1_700_000_000_000,
}
BATCHED = {name: value for name, value in OP.items() if name not in ("queue_offset", "transaction_id")}
ABSENT = object()


def line(message: dict[str, Any], **changes: Any) -> bytes:
    fields = {name: value for name, value in (message | changes).items() if value is not ABSENT}
    return json.dumps(fields).encode()


def reason_of(parse: Any, text: bytes) -> str:
    with pytest.raises(MessageRejectedError) as caught:
        parse(text)
    return caught.value.reason
