"""A producer's messages, and their JSON for the gateway. No network."""

from __future__ import annotations

import json
import os
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import count
from typing import Any

from checkback.messages.delay import FIELDS, PROPERTIES
from checkback.messages.fields import MessageRejectedError
from checkback.messages.half import SHARDING_KEY, parse_half, real_queue_of
from checkback.messages.limits import BODY_MAX, INT_MAX, LONG_MAX, ORDERING_KEY_MAX, PROPERTIES_MAX, TRANSACTION_ID_MAX
from checkback.messages.names import is_group, is_topic

try:  # a fifth of the time of json
    from orjson import dumps as _dumps
except ImportError:

    def _dumps(fields: dict[str, Any], /) -> bytes:  # type: ignore[misc]  # as orjson's, without its options
        return _COMPACT.encode(fields).encode()


_NUMBERS = ("real_queue_id", "delay_level")
_DURATIONS = ("check_immunity", "delay")
_TEXTS = ("topic", "tags", "keys", "ordering_key", "transaction_id")
_US = timedelta(microseconds=1)
#: so many fit into the column's seconds
_IMMUNITY_DAYS = INT_MAX // 86_400
_EPOCH = datetime.fromtimestamp(0, timezone.utc)
_COMPACT = json.JSONEncoder(separators=(",", ":"))
_STRINGS = frozenset({str})
_DELAYS = frozenset(PROPERTIES)
_known_group, _known_topic = lru_cache(1024)(is_group), lru_cache(1024)(is_topic)


@dataclass(frozen=True)
class Message:
    """A message to publish to ``topic`` when the local transaction commits.

    ``check_immunity``: how long the local transaction may take before the first check, in whole seconds (None: the
    server's transaction.timeout). ``ordering_key``: messages with the same one go to the same queue of the topic, in
    which consumers with ``orderly`` keep the order (docs/producer.md). A transaction's op is sent behind: before a
    message of the same key that must come after it, call the producer's ``flush``. Or ``real_queue_id`` names the
    queue. With neither, messages are spread by their transaction id. ``transaction_id``: if empty, the producer
    generates a unique one (RocketMQ's UNIQ_KEY); or an idempotency key, unique in the producer group, with which a
    message sent again after a crash lands only once: within ``gateway.dedup_window`` (10 minutes), at one gateway. At
    most one of ``delay_level`` (RocketMQ's, 1 to 18), ``delay`` (from COMMIT) and ``deliver_at`` (with a time zone)
    says when it is delivered, see docs/protocol.md. The limits are RocketMQ's, see docs/landing.md. ``keys``: words
    separated by spaces.

    ``queue_id`` and ``queue_offset``: the place at which its half message was acknowledged, and ``producer_group`` that
    of its producer: set in the message that ``execute_local_transaction`` is given, else None. The place is the half
    message's identity (docs/protocol.md, rule 13): with several gateways one transaction id may have several half
    messages.
    """

    topic: str
    body: bytes = field(repr=False)
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    check_immunity: timedelta | None = None
    real_queue_id: int | None = None
    transaction_id: str = ""
    delay_level: int | None = None
    delay: timedelta | None = None
    deliver_at: datetime | None = None
    ordering_key: str | None = None
    queue_id: int | None = field(default=None, init=False, compare=False)
    queue_offset: int | None = field(default=None, init=False, compare=False)
    producer_group: str | None = field(default=None, init=False, compare=False)

    @property
    def place(self) -> tuple[int, int] | None:
        """(queue_id, queue_offset); None = not acknowledged. Compare it with `CheckRequest.place`."""
        return None if self.queue_id is None or self.queue_offset is None else (self.queue_id, self.queue_offset)

    def stored_at(
        self, queue_id: int, queue_offset: int, producer_group: str, transaction_id: str | None = None
    ) -> Message:
        """A copy with this place and group: the message for ``execute_local_transaction``, also in a unit test.

        ``transaction_id``: its own, None = the message has it.
        """
        stored = object.__new__(type(self))  # replace and copy take several times as long
        place = {"queue_id": queue_id, "queue_offset": queue_offset}
        stored.__dict__.update(self.__dict__, **place, producer_group=producer_group)
        if transaction_id is not None:
            stored.__dict__["transaction_id"] = transaction_id
        return stored


class _Ids:
    """Transaction ids: counted from a random number of the process, which no other one's reach.

    A random one each would take a system call, at which other threads take the GIL.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Count from another random number: after a fork."""
        self._numbers = count(int.from_bytes(os.urandom(16), "big"))

    def next(self) -> str:
        """32 hexadecimal digits."""
        return f"{next(self._numbers) % (1 << 128):032x}"


_ids = _Ids()
os.register_at_fork(after_in_child=_ids.begin)


def id_of(message: Message) -> str:
    """The message's transaction id: its own, or a generated, globally unique one."""
    return message.transaction_id or _ids.next()


def queue_of(message: Message) -> int | None:
    """The queue of its topic that a message asks for, by `real_queue_id` or its ordering key; None = any."""
    if message.real_queue_id is not None:
        return message.real_queue_id
    key = message.ordering_key or message.properties.get(SHARDING_KEY)
    return real_queue_of(key) if key else None


def half_json(group: str, message: Message, transaction_id: str, born_ms: int) -> bytes:
    """A member of the body of POST /v1/halves. ``born_ms``: the transaction's begin, in ms since the epoch.

    Raises MessageRejectedError, before anything is sent, if the gateway would (RocketMQ: Validators.checkMessage).
    """
    plain = _known_group(group) and isinstance(message.properties, Mapping) and _is_plain(message, transaction_id)
    if not plain:
        _check_types(message)
    fields: dict[str, Any] = {
        "transaction_id": transaction_id,
        "producer_group": group,
        "real_topic": message.topic,
        "real_queue_id": message.real_queue_id,
        "tags": message.tags,
        "keys": message.keys,
        "properties": dict(message.properties),
        "body": b2a_base64(message.body, newline=False).decode("ascii"),
        "born_timestamp": born_ms,
        "check_immunity": None if message.check_immunity is None else _text(message.check_immunity),
    }
    if message.ordering_key is not None:
        fields["ordering_key"] = message.ordering_key
    if not plain:
        delays = {
            "delay_level": message.delay_level,
            "delay": None if message.delay is None else _text(message.delay),
            "deliver_at": None if message.deliver_at is None else _ms(message.deliver_at),
        }
        fields |= {name: delays[name] for name in FIELDS if delays[name] is not None}
        # The same validation as in `land`, with placeholders for the queue and offset that the gateway assigns.
        parse_half(json.dumps({**fields, "queue_id": 0, "queue_offset": 0}).encode())
        return _COMPACT.encode(fields).encode()
    return _dumps(fields)


def _is_plain(message: Message, transaction_id: str) -> bool:
    """Is the message clearly valid and without a delay? It then needs no validation by parsing, which takes longer."""
    properties = message.properties
    texts = [*properties, *properties.values()]
    if message.tags is not None:
        texts.append(message.tags)
    if message.keys is not None:
        texts.append(message.keys)
    key = message.ordering_key
    if key is not None:
        texts.append(key)
    return (
        type(transaction_id) is str
        and isinstance(message.transaction_id, (str, type(None)))  # 0 is not generated, either
        and 0 < len(transaction_id) <= TRANSACTION_ID_MAX
        and transaction_id.isascii()
        and type(message.topic) is str
        and _known_topic(message.topic)
        and type(message.body) is bytes
        and len(message.body) <= BODY_MAX
        and (message.real_queue_id is None or (key is None and _is_int(message.real_queue_id)))
        and message.delay_level is None
        and message.delay is None
        and message.deliver_at is None
        and (message.check_immunity is None or _is_immunity(message.check_immunity))
        and _DELAYS.isdisjoint(properties)
        and _STRINGS.issuperset(map(type, texts))
        and (whole := "".join(texts)).isascii()
        and len(whole) + len(texts) < PROPERTIES_MAX // 2
        and (key is None or 0 < len(key) <= ORDERING_KEY_MAX)
    )


def _check_types(message: Message) -> None:
    """Raise MessageRejectedError for values that JSON could not tell apart, or not hold."""
    body: object = message.body
    properties: object = message.properties
    if not isinstance(properties, Mapping):
        raise MessageRejectedError(f"properties: is {type(properties).__name__}, not dict")
    if isinstance(body, memoryview) and not body.c_contiguous:
        raise MessageRejectedError("body: is a memoryview of bytes that are not side by side")
    for name, value, wanted in (
        ("body", body, (bytes, bytearray, memoryview)),
        *((name, getattr(message, name), (timedelta, type(None))) for name in _DURATIONS),
        ("deliver_at", message.deliver_at, (datetime, type(None))),
        *((name, getattr(message, name), (int, type(None))) for name in _NUMBERS),
        *((name, getattr(message, name), (str, type(None))) for name in _TEXTS),
        *(("properties", text, (str,)) for pair in properties.items() for text in pair),
    ):
        if not isinstance(value, wanted):
            raise MessageRejectedError(f"{name}: is {type(value).__name__}, not {wanted[0].__name__}")
        if isinstance(value, int) and abs(value) > LONG_MAX:  # JSON may not have more digits
            raise MessageRejectedError(f"{name}: over {LONG_MAX}")
        if isinstance(value, timedelta) and value < timedelta(0):
            raise MessageRejectedError(f"{name}: negative")


def _is_int(value: object) -> bool:
    return type(value) is int and 0 <= value <= INT_MAX


def _is_immunity(value: object) -> bool:
    return type(value) is timedelta and not value.microseconds and 0 <= value.days < _IMMUNITY_DAYS


def _text(duration: timedelta) -> str:
    """A duration as JSON has it, rounded up to ms."""
    if not duration.microseconds:
        return f"{86_400 * duration.days + duration.seconds}s"
    return f"{-(-(duration // _US) // 1000)}ms"


def _ms(at: datetime) -> int:
    """A time in ms since the epoch, rounded up: never before it. Raises MessageRejectedError."""
    if at.utcoffset() is None:
        raise MessageRejectedError("deliver_at: without a time zone")
    return -((_EPOCH - at) // timedelta(milliseconds=1))


def op_json(group: str, transaction_id: str, queue_id: int, queue_offset: int, state: str, born_ms: int) -> bytes:
    """A member of the body of POST /v1/ops: ``state`` is COMMIT or ROLLBACK."""
    return _dumps(
        {
            "queue_id": queue_id,
            "queue_offset": queue_offset,
            "transaction_id": transaction_id,
            "producer_group": group,
            "state": state,
            "born_timestamp": born_ms,
        }
    )
