"""Half messages as producers send them: one JSON object a line, checked before anything keeps it."""

from __future__ import annotations

import base64
import re
import zlib
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.messages import delay
from checkback.messages.fields import (
    Rejected,
    fields_of,
    integer,
    kind,
    optional_text,
    quoted,
    quoted_name,
    refuse_unknown,
    string,
)
from checkback.messages.limits import (
    BODY_MAX,
    GROUP_MAX,
    INT_MAX,
    LONG_MAX,
    MS_MAX,
    ORDERING_KEY_MAX,
    PROPERTIES_MAX,
    QUEUES,
)
from checkback.messages.names import name_of, topic_of, transaction_id_of

if TYPE_CHECKING:
    from collections.abc import Mapping

#: MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS
IMMUNITY_PROPERTY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Properties of a resumed message: queue and offset of the discarded one, and "ACTOR: REASON"; of one that was resumed
#: before, also queue and offset of the first.
RESUMED_FROM = "CHECKBACK_RESUMED_FROM"
RESUMED_BY = "CHECKBACK_RESUMED_BY"
FIRST_PLACE = "CHECKBACK_FIRST_PLACE"
#: MessageConst.PROPERTY_SHARDING_KEY: the ordering key is kept there
SHARDING_KEY = "__SHARDINGKEY"
#: Properties for Checkback, or by it: columns have what they say, and they are not delivered. A consumer that forwards
#: a message with its properties would delay it again. (ScheduleMessageService.messageTimeUp clears them, too.)
CONSUMED = frozenset({IMMUNITY_PROPERTY, *delay.PROPERTIES, RESUMED_FROM, RESUMED_BY, FIRST_PLACE})
#: what a line or record may say
FIELDS = frozenset(
    {
        *("queue_id", "queue_offset", "transaction_id", "producer_group", "real_topic", "real_queue_id"),
        *("ordering_key", "tags", "keys", "properties", "body", "born_timestamp", "check_immunity_s"),
        *(*delay.FIELDS, "committed"),
    }
)
_PLACE = re.compile(r"([0-9]{1,10})/([0-9]{1,19})")
#: No separate group for leading zeros: two groups that match the same digits would backtrack.
_JAVA_LONG = re.compile(r"([+-]?)([0-9]+)")
_LONG_DIGITS = len(str(LONG_MAX))


class Half(NamedTuple):
    """A half message: the columns of schemas.HALF except ``store_timestamp``.

    ``born_timestamp`` is in ms since the epoch, ``check_immunity_s`` in seconds (None = transaction.timeout); delay_ms
    and deliver_at as in `delay.Delay`; ``committed``: True = without a transaction, else None.
    """

    queue_id: int
    queue_offset: int
    transaction_id: str
    producer_group: str
    real_topic: str
    real_queue_id: int
    tags: str | None
    keys: str | None
    properties: dict[str, str]
    body: bytes
    born_timestamp: int
    check_immunity_s: int | None
    delay_ms: int | None = None
    deliver_at: int | None = None
    committed: bool | None = None


def parse_place(text: str) -> tuple[int, int] | None:
    """Queue id and offset of a half message as properties and people write it, ``0/12``; None = it is none."""
    match = _PLACE.fullmatch(text)
    place = None if match is None else (int(match[1]), int(match[2]))
    return place if place is not None and place[0] <= INT_MAX and place[1] <= LONG_MAX else None


def real_queue_of(key: str) -> int:
    """The real queue of a message that names none, by its ordering key, or else by its transaction id.

    The CRC-32 of zlib, gzip and PNG of the text in UTF-8, modulo 64: producers know it in any language.
    """
    return zlib.crc32(key.encode()) % QUEUES


def parse_half(line: bytes) -> Half:
    """Parse a half message from a line of UTF-8 JSON.

    Raises Rejected, also for an unknown field. Topics follow TopicValidator (without ``%`` and ``|``, which RocketMQ
    reserves).
    """
    fields = fields_of(line)
    refuse_unknown(fields, FIELDS)
    return half_of(fields, integer(fields, "queue_id", INT_MAX), integer(fields, "queue_offset", LONG_MAX))


def half_of(fields: Mapping[str, Any], queue_id: int, queue_offset: int) -> Half:
    """The half message in a JSON object's fields, by ``parse_half``'s rules; the caller assigns queue and offset.

    Raises Rejected.
    """
    tags, keys = optional_text(fields, "tags"), optional_text(fields, "keys")
    properties = _properties(fields, tags, keys)
    try:
        when = delay.delay_of(fields, properties)
    except ValueError as error:
        raise Rejected(str(error)) from None
    transaction_id = transaction_id_of(fields)
    return Half(
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=transaction_id,
        producer_group=name_of(fields, "producer_group", GROUP_MAX),
        real_topic=topic_of(fields),
        real_queue_id=(
            real_queue_of(properties.get(SHARDING_KEY) or transaction_id)
            if fields.get("real_queue_id") is None
            else integer(fields, "real_queue_id", INT_MAX)
        ),
        tags=tags,
        keys=keys,
        properties={name: text for name, text in properties.items() if name not in CONSUMED},
        body=_body(fields),
        born_timestamp=integer(fields, "born_timestamp", MS_MAX),
        check_immunity_s=_immunity(fields, properties),
        delay_ms=when.delay_ms,
        deliver_at=when.deliver_at,
        committed=_committed(fields),
    )


def _properties(fields: Mapping[str, Any], tags: str | None, keys: str | None) -> dict[str, str]:
    """The properties, with the ordering key.

    Their size is that of MessageDecoder.messageProperties2String, including TAGS and KEYS.
    """
    value = fields.get("properties")
    if value is None:
        value = {}
    if type(value) is not dict:
        raise Rejected(f"properties: {kind(value)}, not an object")
    for name, text in value.items():
        if type(text) is not str:
            raise Rejected(f"properties: {quoted_name(name, 'one value')} is {kind(text)}, not a string")
    key = _ordering_key(fields)
    if key is not None:
        value = {**value, SHARDING_KEY: key}
    texts = [*value, *value.values()]
    for name, own in (("TAGS", tags), ("KEYS", keys)):
        if own is not None and name not in value:
            texts += (name, own)
    # Name, \x01, value, \x02: one separator for each text.
    size = len("".join(texts).encode("utf-8")) + len(texts)
    if size > PROPERTIES_MAX:
        raise Rejected(f"properties: {size} bytes with tags and keys, over {PROPERTIES_MAX // 1024} KiB")
    return value


def _ordering_key(fields: Mapping[str, Any]) -> str | None:
    key = optional_text(fields, "ordering_key")
    if key is None:
        return None
    if not key:
        raise Rejected("ordering_key: empty")
    if len(key) > ORDERING_KEY_MAX:
        raise Rejected(f"ordering_key: {len(key)} characters, over {ORDERING_KEY_MAX}")
    if fields.get("real_queue_id") is not None:
        raise Rejected("ordering_key: real_queue_id is there too, only one of them may be")
    return key


def _body(fields: Mapping[str, Any]) -> bytes:
    encoded = string(fields, "body")
    if len(encoded) % 4:
        raise Rejected(f"body: not base64: {len(encoded)} characters are no multiple of 4")
    # The size follows from the length: an oversized body is not decoded first.
    size = len(encoded) // 4 * 3 - encoded[-2:].count("=")
    if size > BODY_MAX:
        raise Rejected(f"body: {size} bytes, over {BODY_MAX // 1024**2} MiB")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError:
        raise Rejected("body: not base64") from None


def _committed(fields: Mapping[str, Any]) -> bool | None:
    value = fields.get("committed")
    if value is not None and type(value) is not bool:
        raise Rejected(f"committed: {quoted(value)} is not a boolean")
    return value or None


def _immunity(fields: Mapping[str, Any], properties: Mapping[str, str]) -> int | None:
    """The field, or else the property as parsed by TransactionalMessageServiceImpl.getImmunityTime."""
    value = fields.get("check_immunity_s")
    if value is None:
        return _immunity_property(properties.get(IMMUNITY_PROPERTY))
    if type(value) is int and value < 0:
        return None
    return integer(fields, "check_immunity_s", INT_MAX)


def _immunity_property(text: str | None) -> int | None:
    number = _JAVA_LONG.fullmatch(text) if text else None
    if number is None:
        return None
    sign, digits = number[1], number[2].lstrip("0")
    # Long.parseLong fails on overflow, and a failure means "not set".
    seconds = int(digits or 0) if len(digits) <= _LONG_DIGITS else LONG_MAX + 1
    if seconds > LONG_MAX or (sign == "-" and seconds > 0):
        return None
    return min(seconds, INT_MAX)
