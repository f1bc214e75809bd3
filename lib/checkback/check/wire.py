"""The wire format of a check: request and answer. No network, no Spark.

The rules: docs/checks.md.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, NoReturn

from checkback.messages.fields import kind
from checkback.messages.op import state_meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

COMMIT, ROLLBACK, UNKNOWN, NO_ANSWER = "COMMIT", "ROLLBACK", "UNKNOWN", "NO_ANSWER"
#: outcome of a check that was deliberately not sent: it was superseded, or its batch ran out of time
SKIPPED = "SKIPPED"
#: the states a producer may answer
STATES = frozenset({COMMIT, ROLLBACK, UNKNOWN})
#: Header of a response that is not 2xx: with ``false`` an intermediary says that the check has reached no producer. The
#: check then counts as undelivered; the error of the try is this.
DELIVERED, UNDELIVERED = "checkback-delivered", "no client of the group is connected there"
#: bytes of the longest answer
MAX_ANSWER = 4096
_GZIP = b"\x1f\x8b"
_GZIP_BITS = 31  # zlib's wbits of gzip
#: what an answer UNKNOWN may say of its cause: the type of an error, never its text
_CAUSE = re.compile(r"listener (?:raised|returned) [\w.]{1,80}")
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOO_MANY, _UNAVAILABLE = 429, 503
_MOST_DIGITS = 9  # of seconds: longer is as good as forever


def nobody_of(group: str) -> str:
    """Why a check of a group without endpoints is NO_ANSWER. Truncated: producers choose the group's name."""
    return f"producers.{group} has no endpoints"[:200]


@dataclass(frozen=True)
class Message:
    """The half message itself, sent additionally to a group with ``include_body``."""

    body: bytes | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None


@dataclass(frozen=True)
class CheckRequest:
    """One check of one transaction. ``born_timestamp``: ms since the epoch.

    ``message``: the half message, or what loads it when the check is sent (`worker.SpilledMessages`).
    ``first_place``: the place at which a resumed message was acknowledged to its producer, who is asked about that.
    """

    queue_id: int
    queue_offset: int
    transaction_id: str
    producer_group: str
    real_topic: str
    check_times: int
    born_timestamp: int | None
    message: Message | Callable[[], Message] | None = None
    first_place: tuple[int, int] | None = None

    @property
    def place(self) -> tuple[int, int]:
        """(queue_id, queue_offset): the half message that is asked about. Compare it with `producer.Message.place`."""
        return self.first_place or (self.queue_id, self.queue_offset)

    @property
    def webhook_id(self) -> str:
        """The id of this check, the same for every retry: an idempotency key."""
        return f"chk_{self.queue_id}_{self.queue_offset}_{self.check_times}"

    @property
    def whole_message(self) -> Message:
        """The half message, loaded if it has to be."""
        return self.message() if callable(self.message) else self.message or Message()

    def to_json(self, message: Message | None = None) -> str:
        """The body of the POST, in ASCII: exactly the signed text is sent."""
        queue_id, queue_offset = self.place
        fields: dict[str, Any] = {
            "transaction_id": self.transaction_id,
            "producer_group": self.producer_group,
            "real_topic": self.real_topic,
            "queue_id": queue_id,
            "queue_offset": queue_offset,
            "check_times": self.check_times,
            "born_timestamp": self.born_timestamp,
        }
        if message is not None:
            fields |= {
                "body": None if message.body is None else base64.b64encode(message.body).decode("ascii"),
                "tags": message.tags,
                "keys": message.keys,
                "properties": None if message.properties is None else dict(message.properties),
            }
        return _to_json(fields)


@dataclass(frozen=True)
class CheckAnswer:
    """The result of a check: a row of `check_answers` without the request's identity.

    ``endpoint``: the one that answered or was tried last; ``error``: why there is no answer, or it is UNKNOWN,
    never quoting the producer; ``latency_ms``: over all tries; ``failed_tries``: (endpoint, error) of those tried
    before; ``delivered``: the request was written to a connection of at least one endpoint.
    """

    outcome: str
    endpoint: str | None
    error: str | None
    latency_ms: int
    answered_at: datetime
    failed_tries: tuple[tuple[str, str], ...] = ()
    delivered: bool = True


TOO_LONG, _NO_JSON, _NO_OBJECT = "over 4 KiB", "not JSON", "not a JSON object"
_PLACE = ("queue_id", "queue_offset")
_OTHER, _ELSEWHERE, _NO_STATE = "another transaction_id", "another half message", "unknown state"
#: errors of an endpoint that is healthy, which may be followed by ": " and what came: it is about one transaction
REFUSALS = (TOO_LONG, _NO_JSON, _NO_OBJECT, _OTHER, _ELSEWHERE, _NO_STATE)


class NoAnswerError(Exception):
    """A try yielded no answer. The message is for `check_answers`: short, and without the response's content."""


class StatusError(NoAnswerError):
    """The response's status is not 2xx.

    ``broken``: the status means that the endpoint is failing, not that it refused this request. ``retry_after``: the
    header, if it is defined for the status (RFC 9110, 10.2.3; RFC 6585, 4).
    """

    def __init__(self, status: int, retry_after: str | None = None) -> None:
        super().__init__(f"{'redirect' if status in _REDIRECTS else 'status'} {status}")
        self.broken = status >= 500 or status == _TOO_MANY
        self.retry_after = retry_after if status in (_TOO_MANY, _UNAVAILABLE) else None


def read_retry_after(value: str | None, now: float) -> float | None:
    """Seconds from ``now`` (since the epoch) in a Retry-After header, 1 at least; None = missing or malformed.

    The value is a number of seconds or an HTTP date (RFC 9110, 10.2.3). One that rounds down says 0, and a clock that
    is behind a time that is past; both say that the receiver is to be left alone for a moment.
    """
    text = "" if value is None else value.strip()
    if text.isascii() and text.isdecimal():
        return max(1.0, float(text.lstrip("0")[:_MOST_DIGITS] or 0))
    try:
        date = parsedate_to_datetime(text)
        return max(1.0, date.replace(tzinfo=date.tzinfo or timezone.utc).timestamp() - now)
    except (ValueError, OverflowError, TypeError, IndexError):  # out of range, or malformed in any way
        return None


def read_answer(body: bytes, transaction_id: str, place: tuple[int, int]) -> tuple[str, str | None]:
    """The state in a response's body, COMMIT, ROLLBACK or UNKNOWN; and of UNKNOWN the cause, if it says one.

    The body may be compressed (gzip), may begin with a byte order mark, and may name the state in lower case or as
    RocketMQ does. ``place``: of the half message, which an answer may name. Raises NoAnswerError for any other body.
    """
    if body.startswith(_GZIP):
        body = _decompress(body)
    if len(body) > MAX_ANSWER:
        raise NoAnswerError(TOO_LONG)
    try:
        answer = _from_json(body.decode(json.detect_encoding(body)))
    except (ValueError, RecursionError) as error:  # ValueError: also integers of too many digits
        raise NoAnswerError(f"{_NO_JSON}{_kind_of(body, error)}") from None
    if not isinstance(answer, dict):
        raise NoAnswerError(f"{_NO_OBJECT}: {kind(answer)}")
    named = answer.get("transaction_id")
    if named != transaction_id:
        raise NoAnswerError(_OTHER if isinstance(named, str) else f"{_OTHER}: {_said(answer, 'transaction_id')}")
    if any(answer.get(name) not in (None, mine) for name, mine in zip(_PLACE, place, strict=True)):
        raise NoAnswerError(_ELSEWHERE)
    state = state_meant(answer.get("state"))
    if not isinstance(state, str) or state not in STATES:
        raise NoAnswerError(f"{_NO_STATE}: {_said(answer, 'state')}")
    cause = answer.get("error")
    return state, cause if state == UNKNOWN and isinstance(cause, str) and _CAUSE.fullmatch(cause) else None


def _decompress(body: bytes) -> bytes:
    """The content of a gzip body, no more than a byte over the longest answer. Raises NoAnswerError."""
    gzip = zlib.decompressobj(_GZIP_BITS)
    try:
        content = gzip.decompress(body, MAX_ANSWER + 1)
    except zlib.error:
        raise NoAnswerError(f"{_NO_JSON}: damaged gzip") from None
    if (not gzip.eof and len(content) <= MAX_ANSWER) or gzip.unused_data:
        raise NoAnswerError(f"{_NO_JSON}: damaged gzip")
    return content


def _kind_of(body: bytes, error: Exception) -> str:
    """What a body that is not JSON is, to be appended; may be empty."""
    if not body.strip():
        return ": empty"
    if isinstance(error, UnicodeDecodeError):
        return ": not UTF-8"
    return ": HTML or XML" if body.lstrip().startswith(b"<") else ""


def _said(answer: dict[str, Any], name: str) -> str:
    """What kind of value an answer has for this field."""
    return kind(answer[name]) if name in answer else "missing"


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")  # Python would accept NaN and Infinity


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a duplicate name")  # {"state": "ROLLBACK", "state": "COMMIT"} is ambiguous
    return fields


# created once: json.dumps and json.loads create one for each call with options
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder(parse_constant=_refuse, object_pairs_hook=_object).decode
