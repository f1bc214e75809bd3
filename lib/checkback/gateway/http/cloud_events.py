"""CloudEvents 1.0 as messages: requests in binary, structured and batched mode (docs/webhooks.md).

An attribute goes where `messages.cloud_events` says; the URL's query names what an event does not have: the topic, the
producer group, a delay.
"""

from __future__ import annotations

import base64
import re
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from checkback.gateway.http.decoder import TOO_MANY, is_utf8, too_many_values
from checkback.gateway.problems import Problem
from checkback.messages.cloud_events import (
    ATTRIBUTES,
    BATCH_JSON,
    CE_CONTENT_TYPE,
    CE_SCHEMA,
    CE_SOURCE,
    CE_SPECVERSION,
    CE_TIME,
    EVENT_JSON,
    EXTENSION,
    MEDIA_TYPE,
    PARTITION_KEY,
    SPECVERSION,
    is_json,
)
from checkback.messages.fields import MessageRejectedError, message_of, quoted, quoted_name
from checkback.messages.half import HalfMessage, half_of
from checkback.messages.limits import BATCH_MAX, BODY_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.messages.half import Half

#: what the query may give, each a field of a half message
PARAMETERS = ("real_topic", "producer_group", "check_immunity", "delay_level", "delay", "deliver_at")
#: field of a half message -> the attribute that it is
_FIELDS = {"transaction_id": "id", "tags": "type", "keys": "subject", "ordering_key": PARTITION_KEY}
_PROPERTIES = {"source": CE_SOURCE, "time": CE_TIME, "dataschema": CE_SCHEMA, "datacontenttype": CE_CONTENT_TYPE}
_REQUIRED = ("id", "source", "specversion", "type")
_CE, _TYPE = b"ce-", b"content-type"
_EVENTS = "application/cloudevents"
_MARKS = (b"ce-specversion", b"ce-id")
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
_DIGITS = re.compile("-?[0-9]{1,19}")
_TIME = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+")
_URI_REFERENCE = re.compile(r"[^\s\"<>\\^`{|}]+")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_EACH = msgspec.json.Decoder(list[msgspec.Raw])


class EventHead(NamedTuple):
    """What a request says besides its body. ``kind``: its media type, in lower case without parameters."""

    headers: Sequence[tuple[bytes, bytes]]
    query: bytes
    kind: str


def event_head(headers: Sequence[tuple[bytes, bytes]], query: bytes) -> EventHead | None:
    """The head of a request that is an event, or several; None: it is none."""
    stated, marked = b"", False
    for name, value in headers:
        if name == _TYPE:
            stated = value
        elif name in _MARKS:
            marked = True
    kind = stated.partition(b";")[0].strip().lower().decode("latin-1")
    return EventHead(headers, query, kind) if marked or kind.startswith(_EVENTS) else None


def halves_of_events(
    head: EventHead, body: bytes, groups: Groups, now: int, committed: bool | None
) -> Half | Problem | Sequence[Half | Problem]:
    """The half message of an event, or those of a batch, each taken or refused by itself.

    ``groups``: of the token; ``now`` (ms): the born_timestamp; ``committed``: as in `Half`.
    """
    try:
        given = _given(head.query, groups)
        if head.kind == BATCH_JSON:
            return [_half_of_members(bytes(one), given, now, committed) for one in _batch(body)]
        if head.kind == EVENT_JSON:
            return _half_of_members(body, given, now, committed)
        if head.kind.startswith(_EVENTS):
            return Problem("unsupported_media_type", f"events are taken as {EVENT_JSON} or {BATCH_JSON}")
        return _half_of(*_of_headers(head.headers), body, given, now, committed)
    except MessageRejectedError as error:
        return _malformed(error)


def _malformed(error: MessageRejectedError) -> Problem:
    """The problem of an event: 400, whatever does not fit."""
    return Problem("malformed", error.reason, {"field": error.reason.partition(":")[0]})


def _given(query: bytes, groups: Groups) -> dict[str, Any]:
    """The fields that the query gives. The producer group of a token that is one group's need not be named."""
    given: dict[str, Any] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        if name not in PARAMETERS:
            known = ", ".join(PARAMETERS)
            raise MessageRejectedError(f"{quoted_name(name, 'a parameter')}: the query takes only {known}")
        if name in given:
            raise MessageRejectedError(f"{name}: it is there twice")
        number = name in ("delay_level", "deliver_at") and _DIGITS.fullmatch(value)
        given[name] = int(value) if number else value
    if "producer_group" not in given and groups is not None and len(groups) == 1:
        given["producer_group"] = next(iter(groups))
    for name in ("real_topic", "producer_group"):
        if name not in given:
            raise MessageRejectedError(f"{name}: missing; the URL names it: ?real_topic=TOPIC&producer_group=GROUP")
    return given


def _of_headers(headers: Iterable[tuple[bytes, bytes]]) -> tuple[dict[str, str], str | None]:
    """The attributes of binary mode, and the data's media type."""
    attributes: dict[str, str] = {}
    content_type = None
    for name, value in headers:
        if name == _TYPE:
            content_type = value.decode("latin-1").strip() or None
        elif name.startswith(_CE):
            attribute = name[len(_CE) :].decode("latin-1")
            if attribute in attributes:
                raise MessageRejectedError(f"{quoted_name(attribute, 'an attribute')}: it is there twice")
            attributes[attribute] = _header_value(attribute, value)
    for member in ("datacontenttype", "data", "data_base64"):
        if member in attributes:
            raise MessageRejectedError(f"{member}: it is no header of binary mode; see Content-Type and the body")
    return attributes, content_type


def _header_value(attribute: str, value: bytes) -> str:
    """A header's value, unquoted and percent-decoded (HTTP binding, 3.1.3.2)."""
    value = value.strip()
    if len(value) > 1 and value[:1] == value[-1:] == b'"':
        value = _ESCAPED.sub(rb"\1", value[1:-1])
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise MessageRejectedError(f"{quoted_name(attribute, 'an attribute')}: not UTF-8, percent-encoded") from None


def _decoded(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if too_many_values(body):
        raise MessageRejectedError(f"body: {TOO_MANY.detail}")
    try:
        if is_utf8(body):
            return decoder.decode(body)
        why = "not UTF-8"
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)
    raise MessageRejectedError(f"body: no event in JSON: {why}")


def _batch(body: bytes) -> list[msgspec.Raw]:
    found: list[msgspec.Raw] = _decoded(body, _EACH)
    if len(found) > BATCH_MAX:
        raise MessageRejectedError(f"body: {len(found)} events, over {BATCH_MAX}")
    return found


def _half_of_members(body: bytes, given: dict[str, Any], now: int, committed: bool | None) -> Half | Problem:
    try:
        members: dict[str, msgspec.Raw] = _decoded(body, _MEMBERS)
        carried = {name: raw for name, raw in members.items() if name in ("data", "data_base64")}
        said = {name: _member(name, raw) for name, raw in members.items() if name not in carried}
        data, content_type = _data(carried, said.pop("datacontenttype", None))
        attributes = {name: text for name, text in said.items() if text is not None}
        return _half_of(attributes, content_type, data, given, now, committed)
    except MessageRejectedError as error:
        return _malformed(error)


def _member(name: str, raw: msgspec.Raw) -> str | None:
    """An attribute of the JSON format as text: numbers and booleans as CloudEvents writes them; null = it has none."""
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MessageRejectedError(f"{quoted_name(name, 'an attribute')}: {error}") from None
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int) and name not in ATTRIBUTES:
        return str(value).lower()  # True is an integer, too
    kinds = "a string" if name in ATTRIBUTES else "a string, an integer or a boolean"
    raise MessageRejectedError(f"{quoted_name(name, 'an attribute')}: {quoted(value)} is not {kinds}")


def _data(members: dict[str, msgspec.Raw], content_type: str | None) -> tuple[bytes, str | None]:
    """The data of the JSON format, and its media type: JSON, if nothing is said (JSON format, 3.1)."""
    found = {name: raw for name, raw in members.items() if bytes(raw) != b"null"}
    if not found:
        return b"", content_type
    if len(found) > 1:
        raise MessageRejectedError("data: data_base64 is there too, only one of them may be")
    ((name, raw),) = found.items()
    if name == "data" and (content_type is None or is_json(content_type)):
        return bytes(raw), content_type or "application/json"
    try:
        text = msgspec.json.decode(raw, type=str)
        return (base64.b64decode(text, validate=True) if name == "data_base64" else text.encode()), content_type
    except msgspec.MsgspecError:
        why = f"not a string, as data of {quoted(content_type)} must be" if name == "data" else "not a string"
    except ValueError:
        why = "not base64"
    raise MessageRejectedError(f"{name}: {why}")


def _half_of(
    attributes: dict[str, str],
    content_type: str | None,
    data: bytes,
    given: dict[str, Any],
    now: int,
    committed: bool | None,
) -> Half:
    """The half message of an event. Raises MessageRejectedError."""
    _refuse_unfit(attributes, content_type)
    if len(data) > BODY_MAX:
        raise MessageRejectedError(f"data: {len(data)} bytes, over {BODY_MAX // 1024**2} MiB")
    fields: dict[str, Any] = {**given, "body": ""}
    properties = {CE_SPECVERSION: SPECVERSION}
    if content_type is not None:
        properties[CE_CONTENT_TYPE] = content_type
    named = {attribute: field for field, attribute in _FIELDS.items()}
    for name, value in attributes.items():
        if name in named:
            fields[named[name]] = value
        elif name != "specversion":
            properties[_PROPERTIES.get(name, name)] = value
    try:
        sent = message_of({**fields, "properties": properties}, HalfMessage)
        sent.body = data
        return half_of(sent, now, committed)
    except MessageRejectedError as error:  # it names the field
        field, colon, why = error.reason.partition(":")
        raise MessageRejectedError(f"{_FIELDS.get(field, field)}{colon}{why}") from None


def _is_date(time: str) -> bool:
    """Is there such a day, hour and minute? The second may be a leap second."""
    try:
        datetime.fromisoformat(time[:16].upper())
    except ValueError:
        return False
    return time[17:19] <= "60"


def _refuse_unfit(attributes: dict[str, str], content_type: str | None) -> None:
    """Raise MessageRejectedError for the first attribute that is not as CloudEvents 1.0 says."""
    for name in _REQUIRED:
        if not attributes.get(name):
            raise MessageRejectedError(f"{name}: {'empty' if name in attributes else 'missing'}")
    if attributes["specversion"] != SPECVERSION:
        raise MessageRejectedError(f"specversion: {quoted(attributes['specversion'])} is not {SPECVERSION}")
    for name, value in attributes.items():
        if not EXTENSION.fullmatch(name):
            what = "an attribute's name has lower-case letters and digits only"
            raise MessageRejectedError(f"{quoted_name(name, 'an attribute')}: {what}")
        if _CONTROLS.search(value):
            raise MessageRejectedError(f"{name}: it has a control character")
    forms = (
        ("source", _URI_REFERENCE, "a URI reference"),
        ("time", _TIME, "a time of RFC 3339, such as 2026-11-20T15:00:00Z"),
        ("dataschema", _URI, "a URI"),
    )
    for name, form, what in forms:
        if name in attributes and not form.fullmatch(attributes[name]):
            raise MessageRejectedError(f"{name}: {quoted(attributes[name])} is not {what}")
    if "time" in attributes and not _is_date(attributes["time"]):
        raise MessageRejectedError(f"time: there is no {quoted(attributes['time'])}")
    if "subject" in attributes and not attributes["subject"]:
        raise MessageRejectedError("subject: empty")
    if content_type is not None and not MEDIA_TYPE.fullmatch(content_type):
        raise MessageRejectedError(f"datacontenttype: {quoted(content_type)} is not a media type")
