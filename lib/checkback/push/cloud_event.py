"""A message as a CloudEvent over HTTP, binary, structured or batched (CloudEvents 1.0, HTTP and JSON). Pure."""

from __future__ import annotations

import base64
import itertools
import re
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

import msgspec

from checkback.messages.cloud_events import (
    ATTRIBUTES,
    BATCH_JSON,
    CE_CONTENT_TYPE,
    CE_ID,
    CE_PREFIX,
    CE_SCHEMA,
    CE_SOURCE,
    CE_SPECVERSION,
    CE_SUBJECT,
    CE_TIME,
    CE_TYPE,
    EVENT_JSON,
    EXTENSION,
    PARTITION_KEY,
    SPECVERSION,
    is_json,
)
from checkback.messages.half import CONSUMED, SHARDING_KEY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from checkback.consumer.message import MessageExt

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
#: characters of a header's value that are not percent-encoded (HTTP binding, 3.1.3.2)
_SAFE = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) not in '"%')
_AS_IT_IS = re.compile(r"[!#$&-~]*")
#: of a content type, which is sent without encoding
_PRINTABLE = re.compile(r"[ -~]+")
_TEXT = re.compile(r"text/[^;]+(?:;\s*charset=\"?utf-8\"?\s*)?", re.IGNORECASE)


class CloudEvent(NamedTuple):
    """``attributes``: by name, without datacontenttype, which is ``content_type``: None = not stated."""

    attributes: Mapping[str, str]
    content_type: str | None
    data: bytes

    def lines(self) -> list[str]:
        """The headers of binary mode, whose body is ``data``."""
        # An empty value keeps libcurl from sending a form's type.
        kind = f"Content-Type: {self.content_type}" if self.content_type else "Content-Type:"
        return [kind, *(_line(f"ce-{name}", _encoded(value)) for name, value in self.attributes.items())]

    def members(self) -> dict[str, Any]:
        """The members of the JSON format's object."""
        found: dict[str, Any] = dict(self.attributes)
        if self.content_type:
            found["datacontenttype"] = self.content_type
        if not self.data:
            return found
        kind = self.content_type or "application/json"
        if is_json(kind) and _is_json(self.data):
            return found | {"data": msgspec.Raw(self.data)}
        text = _text(self.data) if _TEXT.fullmatch(kind) else None
        if text is not None:
            return found | {"data": text}
        return found | {"data_base64": base64.b64encode(self.data).decode("ascii")}


def event_of(message: MessageExt, content_type: str) -> CloudEvent:
    """The event that a message is. ``content_type``: of a message that does not state its own.

    One that came as an event has the attributes that it came with. Of others, the source is the producer group, the
    type the tags or else the topic, the subject the keys, the time that of birth; properties are extensions.
    """
    properties = message.properties
    came = CE_SPECVERSION in properties
    attributes = {
        "specversion": SPECVERSION,
        "id": properties.get(CE_ID) or message.transaction_id or f"{message.half_queue_id}/{message.half_queue_offset}",
        "source": properties.get(CE_SOURCE) or f"/producers/{message.producer_group or ''}",
        "type": properties.get(CE_TYPE) or message.tags or message.topic,
    }
    optional = {
        "subject": properties.get(CE_SUBJECT) or message.keys,
        "time": properties.get(CE_TIME) or (None if came else _time(message.born_timestamp)),
        "dataschema": properties.get(CE_SCHEMA),
        PARTITION_KEY: message.ordering_key,
    }
    attributes |= {name: value for name, value in optional.items() if value}
    if properties:
        _extend(attributes, properties)
    kind = properties.get(CE_CONTENT_TYPE)
    if kind is None or not _PRINTABLE.fullmatch(kind):  # a line break would begin another header
        kind = None if came or not message.body else content_type
    return CloudEvent(attributes, kind, message.body)


def structured(event: CloudEvent) -> tuple[list[str], bytes]:
    """Headers and body of structured mode."""
    return [f"Content-Type: {EVENT_JSON}"], msgspec.json.encode(event.members())


def batched(events: Sequence[CloudEvent]) -> tuple[list[str], bytes]:
    """Headers and body of the batched mode."""
    return [f"Content-Type: {BATCH_JSON}"], msgspec.json.encode([event.members() for event in events])


def _extend(attributes: dict[str, str], properties: Mapping[str, str]) -> None:
    """Add the properties as extensions: those whose name is an extension's first, then others, numbered if alike."""
    named = [(found, name, value) for name, value in properties.items() if (found := _extension(name)) is not None]
    names: dict[str, Iterator[str]] = {}
    added: set[tuple[str, str]] = set()
    for extension, _, value in sorted(named, key=lambda each: each[0] != each[1]):
        if (extension, value) in added:
            continue
        added.add((extension, value))
        # Each name is looked at once: a message may have thousands that are alike.
        left = names.setdefault(
            extension, itertools.chain([extension], map(f"{extension}{{}}".format, itertools.count(2)))
        )
        attributes[next(each for each in left if attributes.get(each) in (None, value))] = value


@lru_cache(4096)
def _extension(name: str) -> str | None:
    """The name of a property as an extension: lower-case letters and digits. None: it is none."""
    if name == SHARDING_KEY or name in CONSUMED or name.startswith(CE_PREFIX):
        return None
    found = "".join(EXTENSION.findall(name.lower()))
    return f"property{found}" if found in ATTRIBUTES else found or None


def _line(name: str, value: str) -> str:
    return f"{name}: {value}" if value else f"{name};"  # libcurl's form of an empty one


def _encoded(value: str) -> str:
    return value if _AS_IT_IS.fullmatch(value) else quote(value, safe=_SAFE)


def _time(ms: int) -> str:
    """As RFC 3339, with milliseconds."""
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _text(data: bytes) -> str | None:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None
