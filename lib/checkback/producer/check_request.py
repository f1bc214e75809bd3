"""Parses a check request and encodes the answer. No network."""

from __future__ import annotations

import base64
import json
from typing import Any

from checkback.check.wire import CheckRequest, Message
from checkback.producer.signature_verifier import RefusedError


def read_check(body: bytes) -> CheckRequest:
    """Parse the check in a request's body. Raises RefusedError, 400, if invalid."""
    try:
        fields = dict(json.loads(body.decode("utf-8")).items())
        return CheckRequest(
            queue_id=_integer(fields, "queue_id"),
            queue_offset=_integer(fields, "queue_offset"),
            transaction_id=_text(fields, "transaction_id"),
            producer_group=_text(fields, "producer_group"),
            real_topic=_text(fields, "real_topic"),
            check_times=_integer(fields, "check_times"),
            born_timestamp=None if fields.get("born_timestamp") is None else _integer(fields, "born_timestamp"),
            message=_message(fields) if "body" in fields else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RefusedError(400, "not a check") from None


def answer_json(check: CheckRequest, state: str, error: str | None = None) -> bytes:
    """The body of a 200. It names the half message: a proxy may confuse answers, and a transaction may have several."""
    queue_id, queue_offset = check.place
    fields = {
        "transaction_id": check.transaction_id,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "state": state,
    }
    if error is not None:
        fields["error"] = error
    return json.dumps(fields).encode("ascii")


def problem_json(refused: RefusedError) -> bytes:
    """The body of any other status (RFC 9457)."""
    return json.dumps({"type": "about:blank", "title": refused.title, "status": refused.status}).encode("ascii")


def _message(fields: dict[str, Any]) -> Message:
    """The half message, sent to a group with ``include_body``."""
    properties = fields.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise TypeError
    return Message(
        body=None if fields["body"] is None else base64.b64decode(_text(fields, "body", least=0), validate=True),
        tags=None if fields.get("tags") is None else _text(fields, "tags", least=0),
        keys=None if fields.get("keys") is None else _text(fields, "keys", least=0),
        properties=properties,
    )


def _text(fields: dict[str, Any], name: str, least: int = 1) -> str:
    value = fields[name]
    if not isinstance(value, str) or len(value) < least:
        raise TypeError
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise TypeError
    return value
