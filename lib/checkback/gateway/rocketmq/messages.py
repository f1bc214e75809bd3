"""The messages of a SendMessage as the gateway's own API takes them, validated with a RocketMQ server's codes. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from checkback.gateway.rocketmq.codes import GZIP, Code, MessageType, Refusal, unfit_field
from checkback.messages.fields import NAME, MessageRejectedError, message_of
from checkback.messages.half import CLIENT_ID, CONSUMED, SHARDING_KEY, HalfMessage, half_of
from checkback.messages.limits import BATCH_MAX, BODY_MAX, TOPIC_MAX, TRANSACTION_ID_MAX
from checkback.messages.names import reserved
from checkback.messages.trace_context import TRACEPARENT, trace_of, traced

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from checkback.messages.half import Half

#: user properties of a message, and bytes of them with tag and keys (ProxyConfig)
PROPERTIES_MAX, PROPERTIES_SIZE_MAX = 128, 16 << 10
#: characters of a message id: `apart` adds some
MESSAGE_ID_MAX = TRANSACTION_ID_MAX - 17
#: bytes of a message group (ProxyConfig.maxMessageGroupSize)
GROUP_MAX = 64
#: seconds (ProxyConfig.maxTransactionRecoverySecond)
RECOVERY_MAX_S = 3600
_SYSTEM_NAMES = """
TRACE_ON MSG_REGION KEYS TAGS WAIT RETRY_TOPIC REAL_TOPIC REAL_QID TRAN_MSG PGROUP MIN_OFFSET MAX_OFFSET BUYER_ID
ORIGIN_MESSAGE_ID TRANSFER_FLAG CORRECTION_FLAG MQ2_FLAG RECONSUME_TIME UNIQ_KEY MAX_RECONSUME_TIMES CONSUME_START_TIME
POP_CK POP_CK_OFFSET 1ST_POP_TIME TRAN_PREPARED_QUEUE_OFFSET DUP_INFO EXTEND_UNIQ_INFO INSTANCE_ID CORRELATION_ID
REPLY_TO_CLIENT TTL ARRIVE_TIME PUSH_REPLY_TIME CLUSTER MSG_TYPE INNER_MULTI_QUEUE_OFFSET TIMER_ENQUEUE_MS
TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_OUT_MS TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __BORNHOST BORN_TIMESTAMP
"""
#: MessageConst.STRING_HASH_SET, and what Checkback itself goes by
#: without the sender's id: who sends on what he has consumed has the other's
_RESERVED = {*_SYSTEM_NAMES.split(), *CONSUMED, SHARDING_KEY} - {CLIENT_ID}
_TYPES = frozenset(MessageType)


class RefusedError(Exception):
    """A request is refused, with this status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.refusal = Refusal(code, message)


def halves_of(messages: Sequence[Any], client_id: str, group_of: Callable[[str], str], now: int) -> list[Half]:
    """The messages of one request. ``group_of``: a topic's producer group; ``now`` (ms): the default born_timestamp.

    The client's id is kept with each: a gateway that starts anew tells them from another client's under the same id.

    Raises RefusedError for the request as a whole if one of them is not fit, as a RocketMQ server does.
    """
    if not messages:
        raise RefusedError(Code.MESSAGE_CORRUPTED, "no message to send")
    if len(messages) > BATCH_MAX:
        raise RefusedError(Code.MESSAGE_CORRUPTED, f"{len(messages)} messages in one request, over {BATCH_MAX}")
    topic = messages[0].topic.name
    refuse_topic(topic)
    if any(message.topic.name != topic for message in messages):
        raise RefusedError(Code.MESSAGE_CORRUPTED, "topic in message is not same")
    if sum(len(message.system_properties.keys) for message in messages) > PROPERTIES_SIZE_MAX:
        raise RefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"over {PROPERTIES_SIZE_MAX} keys in one request")
    halves, size = [], 0
    for message in messages:
        halves.append(_half(message, group_of(topic), now))
        size += len(halves[-1].body)
        if size > BODY_MAX:  # compressed, they are more than the request
            raise RefusedError(Code.MESSAGE_BODY_TOO_LARGE, f"the bodies of a request cannot exceed the max {BODY_MAX}")
    contexts = [{TRACEPARENT: message.system_properties.trace_context} for message in messages]
    return [
        half._replace(properties={**traced(half.properties, trace_of(context)), CLIENT_ID: client_id})
        for half, context in zip(halves, contexts, strict=True)
    ]


def refuse_topic(name: str) -> None:
    """Raise RefusedError for a topic that a message cannot be sent to."""
    if not name.strip():
        raise RefusedError(Code.ILLEGAL_TOPIC, "The specified topic is blank")
    if len(name) > TOPIC_MAX:
        raise RefusedError(Code.ILLEGAL_TOPIC, f"The specified topic is longer than topic max length {TOPIC_MAX}.")
    why = reserved(name) if NAME.fullmatch(name) else "has characters other than a-z, A-Z, 0-9, _ and -"
    if why is not None:
        raise RefusedError(Code.ILLEGAL_TOPIC, f"the topic {why}")


def _half(message: Any, group: str, now: int) -> Half:
    system = message.system_properties
    _refuse_type(system)
    fields: dict[str, Any] = {
        "transaction_id": system.message_id,
        "producer_group": group,
        "real_topic": message.topic.name,
        "body": "",  # below: it is no base64
        "properties": _properties(message),
        "born_timestamp": _ms(system.born_timestamp) if system.HasField("born_timestamp") else now,
    }
    if not system.message_id:
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, "message id cannot be empty")
    if len(system.message_id) > MESSAGE_ID_MAX:
        raise RefusedError(Code.ILLEGAL_MESSAGE_ID, f"a message id has at most {MESSAGE_ID_MAX} characters")
    if system.tag:
        fields["tags"] = _tag(system.tag)
    keys = [key for key in system.keys if key]
    if keys:
        fields["keys"] = _keys(keys)
    if system.message_group:
        fields["ordering_key"] = _group(system.message_group)
    if system.HasField("delivery_timestamp"):
        fields["deliver_at"] = max(0, _ms(system.delivery_timestamp))
    seconds = system.orphaned_transaction_recovery_duration.seconds
    if seconds:
        if not 0 < seconds <= RECOVERY_MAX_S:
            raise RefusedError(Code.BAD_REQUEST, f"the max transaction recovery time is {RECOVERY_MAX_S} s")
        fields["check_immunity"] = f"{seconds}s"
    committed = None if system.message_type == MessageType.TRANSACTION else True
    try:
        sent = message_of(fields, HalfMessage)
        sent.body = _body(message)
        return half_of(sent, fields["born_timestamp"], committed)
    except MessageRejectedError as error:
        raise RefusedError(*unfit_field(error.reason)) from None


def _refuse_type(system: Any) -> None:
    kind = system.message_type
    fits = kind in _TYPES
    fits = fits and (kind != MessageType.FIFO or bool(system.message_group))
    fits = fits and (kind != MessageType.DELAY or system.HasField("delivery_timestamp"))
    if not fits:
        what = f"message type {kind} with these properties"
        raise RefusedError(Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, f"{what} is not taken")


def _body(message: Any) -> bytes:
    body: bytes = message.body
    if not body:
        raise RefusedError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    if message.system_properties.body_encoding == GZIP and len(body) <= BODY_MAX:
        body = _decompressed(body)
    if len(body) > BODY_MAX:
        raise RefusedError(Code.MESSAGE_BODY_TOO_LARGE, f"message body cannot exceed the max {BODY_MAX}")
    return body


def _decompressed(body: bytes) -> bytes:
    """At most a byte over the largest body: consumers read tables, in which bodies are as they are."""
    content = b""
    while body and len(content) <= BODY_MAX:  # a file of gzip may have several members
        stream = zlib.decompressobj(wbits=47)  # gzip or zlib: clients of either call it GZIP
        try:
            content += stream.decompress(body, BODY_MAX + 1 - len(content))
        except zlib.error:
            raise RefusedError(Code.MESSAGE_CORRUPTED, "the body is not gzip") from None
        if not stream.eof and len(content) <= BODY_MAX:
            raise RefusedError(Code.MESSAGE_CORRUPTED, "the body is not gzip")
        body = stream.unused_data
    if not content:
        raise RefusedError(Code.MESSAGE_BODY_EMPTY, "message body cannot be empty")
    return content


def _properties(message: Any) -> dict[str, str]:
    pairs = message.user_properties
    if len(pairs) > PROPERTIES_MAX:
        raise RefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(pairs)} properties, over {PROPERTIES_MAX}")
    properties = {pair.key: pair.value for pair in pairs}
    system = message.system_properties
    texts = [*properties, *properties.values(), system.tag, *system.keys]
    if sum(len(text.encode()) for text in texts) > PROPERTIES_SIZE_MAX:
        most = f"over {PROPERTIES_SIZE_MAX} bytes of properties, tag and keys"
        raise RefusedError(Code.MESSAGE_PROPERTIES_TOO_LARGE, most)
    for name, value in properties.items():
        if name in _RESERVED:
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property is used by system: {name}")
        if _has_control(name) or _has_control(value):
            raise RefusedError(Code.ILLEGAL_MESSAGE_PROPERTY_KEY, "a property cannot contain control character")
    return properties


def _tag(tag: str) -> str:
    if not tag.strip() or "|" in tag or _has_control(tag):
        raise RefusedError(Code.ILLEGAL_MESSAGE_TAG, "a tag cannot be blank, or contain '|' or control character")
    return tag


def _keys(keys: Sequence[str]) -> str:
    if any(not key.strip() or _has_control(key) for key in keys):
        raise RefusedError(Code.ILLEGAL_MESSAGE_KEY, "a key cannot be blank or contain control character")
    return " ".join(keys)


def _group(group: str) -> str:
    if not group.strip() or len(group.encode()) >= GROUP_MAX or _has_control(group):
        raise RefusedError(
            Code.ILLEGAL_MESSAGE_GROUP, f"a message group cannot be blank, have {GROUP_MAX} bytes or control character"
        )
    return group


def _has_control(text: str) -> bool:
    """Character.isISOControl."""
    return any(char < " " or "\x7f" <= char <= "\x9f" for char in text)


def _ms(time: Any) -> int:
    seconds: int = time.seconds
    return seconds * 1000 + int(time.nanos) // 1_000_000


def topic_groups(groups: Mapping[str, str]) -> Callable[[str], str]:
    """A topic's producer group: that of the setting ``gateway.rocketmq.groups``, or the topic's name."""
    return lambda topic: groups.get(topic, topic)
