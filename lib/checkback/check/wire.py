"""What goes over the wire in a check, and what comes back: no network, no Spark.

The rules: docs/checks.md.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn

from checkback.check.signature import webhook_id

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER = "COMMIT", "ROLLBACK", "UNKNOWN", "NO_ANSWER"
#: outcome of a check that was not sent to anybody, on purpose: it was overtaken, or its batch had no time for it
SKIPPED = "SKIPPED"
#: what a producer may say
STATES = frozenset({COMMIT, ROLLBACK, UNKNOWN})
#: bytes of the longest answer
MAX_ANSWER = 4096
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOO_MANY, _UNAVAILABLE = 429, 503
_MOST_DIGITS = 9  # of seconds: more is as good as for ever


def nobody_of(group: str) -> str:
    """Why a check of a group without endpoints is NO_ANSWER. A group's name is as long as its producer likes."""
    return f"producers.{group} has no endpoints"[:200]


@dataclass(frozen=True)
class Message:
    """What a group with ``include_body`` is told besides: the half message itself."""

    body: bytes | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True)
class CheckRequest:
    """One check of one transaction. ``born_timestamp``: ms since the epoch."""

    queue_id: int
    queue_offset: int
    transaction_id: str
    producer_group: str
    real_topic: str
    check_times: int
    born_timestamp: int | None
    message: Message | None = None

    @property
    def webhook_id(self) -> str:
        """The id that this check keeps however often it is sent."""
        return webhook_id(self.queue_id, self.queue_offset, self.check_times)

    def to_json(self, include_body: bool = False) -> str:
        """The body of the POST, in ASCII: what is signed is what is sent."""
        fields: dict[str, Any] = {
            "transaction_id": self.transaction_id,
            "producer_group": self.producer_group,
            "real_topic": self.real_topic,
            "queue_id": self.queue_id,
            "queue_offset": self.queue_offset,
            "check_times": self.check_times,
            "born_timestamp": self.born_timestamp,
        }
        if include_body:
            message = self.message or Message()
            fields |= {
                "body": None if message.body is None else base64.b64encode(message.body).decode("ascii"),
                "tags": message.tags,
                "keys": message.keys,
                "properties": None if message.properties is None else dict(message.properties),
            }
        return _to_json(fields)


@dataclass(frozen=True)
class CheckAnswer:
    """What came of a check: a row of `check_answers`, less the request's identity.

    ``endpoint``: the one that answered or the last one tried; ``error``: why there is no answer, never a word of the
    producer's; ``latency_ms``: over all tries; ``failed_tries``: (endpoint, error) of those tried before;
    ``delivered``: at least one endpoint got the request, that is, it was written to a connection.
    """

    outcome: str
    endpoint: str | None
    error: str | None
    latency_ms: int
    answered_at: datetime
    failed_tries: tuple[tuple[str, str], ...] = ()
    delivered: bool = True


class NoAnswerError(Exception):
    """A try brought no answer. Its text is for `check_answers`: short, and without the response's content."""


class StatusError(NoAnswerError):
    """The response's status is not 200.

    ``broken``: it says that the endpoint is out of order, not that this request was refused. ``retry_after``: the
    header, if the status is one that it belongs to (RFC 9110, 10.2.3; RFC 6585, 4).
    """

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"{'redirect' if status in _REDIRECTS else 'status'} {status}")
        self.broken = status >= 500 or status == _TOO_MANY
        self.retry_after = retry_after if status in (_TOO_MANY, _UNAVAILABLE) else None


def read_retry_after(value: str | None, now: float) -> float | None:
    """Seconds from ``now`` (since the epoch) that a Retry-After header asks for; None = it is not there, or no such.

    It is a number of seconds or an HTTP date (RFC 9110, 10.2.3).
    """
    text = "" if value is None else value.strip()
    if text.isascii() and text.isdecimal():
        return float(text.lstrip("0")[:_MOST_DIGITS] or 0)
    try:
        date = parsedate_to_datetime(text)
        return date.replace(tzinfo=date.tzinfo or timezone.utc).timestamp() - now
    except (ValueError, OverflowError, TypeError, IndexError):  # numbers beyond any date; what its parser stumbles over
        return None


def read_answer(body: bytes, transaction_id: str) -> str:
    """The state that a response's body says: COMMIT, ROLLBACK or UNKNOWN.

    Raises NoAnswerError for whatever else the body is.
    """
    if len(body) > MAX_ANSWER:
        raise NoAnswerError("over 4 KiB")
    try:
        answer = _from_json(body.decode("utf-8"))
    except (ValueError, RecursionError):  # ValueError: also UnicodeDecodeError, and integers of too many digits
        raise NoAnswerError("not JSON") from None
    if not isinstance(answer, dict):
        raise NoAnswerError("not a JSON object")
    if not isinstance(answer.get("transaction_id"), str) or answer["transaction_id"] != transaction_id:
        raise NoAnswerError("another transaction_id")
    state = answer.get("state")
    if not isinstance(state, str) or state not in STATES:
        raise NoAnswerError("unknown state")
    return state


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")  # Python would take NaN and Infinity


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a name comes twice")  # {"state": "ROLLBACK", "state": "COMMIT"} says nothing
    return fields


# made once: json.dumps and json.loads make one for each call with options
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_object).decode
