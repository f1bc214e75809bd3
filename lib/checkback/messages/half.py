"""Half messages as producers send them: one JSON object a line, checked before anything keeps it."""

from __future__ import annotations

import re
import zlib
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, NamedTuple

from msgspec import Meta, Struct

from checkback.messages import delay
from checkback.messages.columns import Born, BornOrNow, Group, Offset, QueueId, Topic, TransactionId
from checkback.messages.durations import parse_duration
from checkback.messages.fields import MessageRejectedError, fields_of, message_of, quoted
from checkback.messages.limits import (
    BODY_MAX,
    INT_MAX,
    LONG_MAX,
    LONG_MIN,
    MS_MAX,
    ORDERING_KEY_MAX,
    PROPERTIES_MAX,
    QUEUES,
)
from checkback.messages.names import refuse_group, refuse_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

#: MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS
IMMUNITY_PROPERTY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Properties of a resumed message: queue and offset of the discarded one, and "ACTOR: REASON"; of one that was resumed
#: before, also queue and offset of the first.
RESUMED_FROM = "CHECKBACK_RESUMED_FROM"
RESUMED_BY = "CHECKBACK_RESUMED_BY"
FIRST_PLACE = "CHECKBACK_FIRST_PLACE"
#: of RocketMQ's client that has sent the message: it is asked first, and another's message under this id is another one
CLIENT_ID = "CHECKBACK_CLIENT_ID"
#: MessageConst.PROPERTY_SHARDING_KEY: the ordering key is kept there
SHARDING_KEY = "__SHARDINGKEY"
#: Properties for Checkback, or by it: columns have what they say, and they are not delivered. A consumer that forwards
#: a message with its properties would delay it again. (ScheduleMessageService.messageTimeUp clears them, too.)
CONSUMED = frozenset({IMMUNITY_PROPERTY, *delay.PROPERTIES, RESUMED_FROM, RESUMED_BY, FIRST_PLACE, CLIENT_ID})
_PLACE = re.compile(r"([0-9]{1,10})/([0-9]{1,19})")
#: No separate group for leading zeros: two groups that match the same digits would backtrack.
_JAVA_LONG = re.compile(r"([+-]?)([0-9]+)")
_LONG_DIGITS = len(str(LONG_MAX))
#: characters of tags, keys and properties that are within PROPERTIES_MAX in UTF-8, with separators
_SMALL = PROPERTIES_MAX // 5
_NOTHING: dict[str, str] = {}
_SECOND = timedelta(seconds=1)
Duration = Annotated[str, Meta(pattern="^[0-9]{1,18}(ms|s|m|h|d)$")]


# Each integer has bounds: without them msgspec takes one of any size, of which orjson makes a float.
class HalfMessage(Struct, gc=False, forbid_unknown_fields=True):
    """A half message: delivered once its transaction is committed."""

    transaction_id: TransactionId
    producer_group: Group
    real_topic: Topic
    body: Annotated[
        bytes,
        Meta(
            max_length=BODY_MAX,
            description="base64; at most 4 MiB decoded",
            extra_json_schema={
                "format": "base64",
                "pattern": "^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$",
            },
        ),
    ]
    real_queue_id: Annotated[
        Annotated[int, Meta(ge=0, le=INT_MAX)] | None,
        Meta(description="queue of the topic; null = CRC-32 of ordering_key, or else of transaction_id, modulo 64"),
    ] = None
    ordering_key: Annotated[
        Annotated[str, Meta(min_length=1, max_length=ORDERING_KEY_MAX)] | None,
        Meta(description="messages with the same one go to the same queue; not with real_queue_id"),
    ] = None
    tags: Annotated[str | None, Meta(description="RocketMQ's TAGS")] = None
    keys: Annotated[str | None, Meta(description="RocketMQ's KEYS")] = None
    properties: Annotated[dict[str, str] | None, Meta(description="at most 32 KiB with tags and keys")] = None
    born_timestamp: BornOrNow = None
    check_immunity: Annotated[
        Duration | None,
        Meta(description="time without checks, in whole seconds, such as 60s; null = transaction.timeout"),
    ] = None
    delay_level: Annotated[
        Annotated[int, Meta(ge=LONG_MIN, le=LONG_MAX)] | None,
        Meta(description="RocketMQ's level, 1 to 18 (more is 18); at most one of delay_level, delay, deliver_at"),
    ] = None
    delay: Annotated[
        Duration | None, Meta(description="from COMMIT to delivery, such as 30s or 500ms; at most delay.max")
    ] = None
    deliver_at: Annotated[
        Annotated[int, Meta(ge=0, le=MS_MAX)] | None,
        Meta(description="earliest delivery, ms since the epoch; at most delay.max from now"),
    ] = None


class HalfLine(HalfMessage, kw_only=True):
    """A half message on a line, or in a record: with its place."""

    queue_id: QueueId
    queue_offset: Offset
    born_timestamp: Born
    committed: bool | None = None


FIELDS = frozenset(HalfLine.__struct_fields__)


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

    Raises MessageRejectedError, also for an unknown field. Topics follow TopicValidator (without ``%`` and ``|``, which
    RocketMQ reserves).
    """
    return half_of_line(message_of(fields_of(line), HalfLine))


def half_of_line(sent: HalfLine) -> Half:
    """The half message of a line or record. Raises MessageRejectedError."""
    return half_of(sent, sent.born_timestamp, sent.committed or None, sent.queue_id, sent.queue_offset)


def half_of(
    sent: HalfMessage, born: int, committed: bool | None = None, queue_id: int = -1, queue_offset: int = -1
) -> Half:
    """The half message that was sent. ``born``: its born_timestamp; ``committed``: as in `Half`.

    Queue and offset -1: not assigned yet. Raises MessageRejectedError for what the fields' types do not show.
    """
    refuse_group(sent.producer_group)
    refuse_topic(sent.real_topic)
    tags, keys, real_queue_id = sent.tags, sent.keys, sent.real_queue_id
    immunity = None if sent.check_immunity is None else _immunity(sent.check_immunity)
    properties = sent.properties or _NOTHING
    if sent.ordering_key is not None:
        if real_queue_id is not None:
            raise MessageRejectedError("ordering_key: real_queue_id is there too, only one of them may be")
        properties = {**properties, SHARDING_KEY: sent.ordering_key}
    if properties or tags or keys:
        _refuse_large(properties, tags, keys)
    if real_queue_id is None:
        real_queue_id = real_queue_of(properties.get(SHARDING_KEY) or sent.transaction_id)
    when, instructed = delay.NONE, not CONSUMED.isdisjoint(properties)
    if instructed or sent.delay is not None or sent.delay_level is not None or sent.deliver_at is not None:
        when = _delay(sent, properties)
    if instructed:
        if immunity is None:
            immunity = _immunity_property(properties.get(IMMUNITY_PROPERTY))
        properties = {name: text for name, text in properties.items() if name not in CONSUMED}
    return Half(
        queue_id,
        queue_offset,
        sent.transaction_id,
        sent.producer_group,
        sent.real_topic,
        real_queue_id,
        tags,
        keys,
        properties,
        sent.body,
        born,
        immunity,
        when.delay_ms,
        when.deliver_at,
        committed,
    )


def _refuse_large(properties: Mapping[str, str], tags: str | None, keys: str | None) -> None:
    """Raise MessageRejectedError for properties over the limit.

    Their size is that of MessageDecoder.messageProperties2String, including TAGS and KEYS.
    """
    texts = [*properties, *properties.values()]
    for name, own in (("TAGS", tags), ("KEYS", keys)):
        if own is not None and name not in properties:
            texts += (name, own)
    whole = "".join(texts)
    if len(whole) + len(texts) <= _SMALL:
        return
    # Name, \x01, value, \x02: one separator for each text.
    size = len(whole.encode("utf-8")) + len(texts)
    if size > PROPERTIES_MAX:
        raise MessageRejectedError(f"properties: {size} bytes with tags and keys, over {PROPERTIES_MAX // 1024} KiB")


def _delay(sent: HalfMessage, properties: Mapping[str, str]) -> delay.Delay:
    try:
        return delay.delay_of({name: getattr(sent, name) for name in delay.FIELDS}, properties)
    except ValueError as error:
        raise MessageRejectedError(str(error)) from None


def _immunity(text: str) -> int:
    """Whole seconds, as RocketMQ has them."""
    try:
        seconds, rest = divmod(parse_duration(text), _SECOND)
    except ValueError as error:  # the text has few characters, by its pattern
        raise MessageRejectedError(f"check_immunity: {error}") from None
    if rest:
        raise MessageRejectedError(f"check_immunity: {quoted(text)} is not a whole number of seconds")
    if seconds > INT_MAX:
        raise MessageRejectedError(f"check_immunity: {quoted(text)} is over {INT_MAX}s")
    return seconds


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
