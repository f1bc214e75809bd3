"""Half and op messages as producers send them: one JSON object a line, checked before anything keeps it.

The limits are RocketMQ's: TopicValidator and Validators (names), MessageDecoder and MessageStoreConfig (sizes),
TransactionalMessageServiceImpl and TransactionalMessageUtil (immunity, batched ops). No Spark, no clock: every way in
(gateway, files, Kafka) uses these rules.
"""

from __future__ import annotations

import base64
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from checkback.delay import delay_of
from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Mapping

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
MS_MAX = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z
TRANSACTION_ID_MAX = 1024
GROUP_MAX = 120  # TopicValidator.GROUP_MAX_LENGTH: %RETRY%<group>_<topic> must stay a topic
TOPIC_MAX = 127  # TopicValidator.TOPIC_MAX_LENGTH
BODY_MAX = 4 * 1024 * 1024  # MessageStoreConfig.maxMessageSize
PROPERTIES_MAX = 32 * 1024  # "msg properties length limit 32k", SendMessageProcessor
#: Four times the largest body: a longer line cannot be a message, and parsing it would only take memory.
LINE_MAX = 4 * BODY_MAX
#: One op row each; RocketMQ limits a batch of ops to 4 KiB (transactionOpMsgMaxSize), some 2,000 short offsets.
OFFSETS_MAX = 10_000

#: TopicValidator.SYSTEM_TOPIC_SET; topics with one of SYSTEM_PREFIXES need no entry.
SYSTEM_TOPICS = frozenset(
    {
        "TBW102",
        "SCHEDULE_TOPIC_XXXX",
        "SCHEDULE_TOPIC_XXXX_V2",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "SELF_TEST_TOPIC",
        "OFFSET_MOVED_EVENT",
        "CHECKPOINT_TOPIC",
    }
)
SYSTEM_PREFIXES = ("rmq_sys_", "RMQ_SYS_")
#: Device names, reserved on Windows in upper and lower case (learn.microsoft.com, "Naming Files").
DEVICES = frozenset({"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))})
STATES = ("COMMIT", "ROLLBACK")
#: MessageConst.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS
IMMUNITY_PROPERTY = "CHECK_IMMUNITY_TIME_IN_SECONDS"
#: Properties of a resumed message: queue and offset of the discarded one, and "ACTOR: REASON"; of one that was resumed
#: before, also queue and offset of the first.
RESUMED_FROM = "CHECKBACK_RESUMED_FROM"
RESUMED_BY = "CHECKBACK_RESUMED_BY"
FIRST_PLACE = "CHECKBACK_FIRST_PLACE"

_BOM = b"\xef\xbb\xbf"
_NAME = re.compile(r"[a-zA-Z0-9_-]+")
#: No separate group for leading zeros: two groups that match the same digits would backtrack.
_JAVA_LONG = re.compile(r"([+-]?)([0-9]+)")
_LONG_DIGITS = len(str(LONG_MAX))
_OFFSETS = re.compile(r"[0-9]{1,19}(?:,[0-9]{1,19})*,?")
_QUOTE_MAX = 40


class Rejected(CheckbackError):  # noqa: N818 - a verdict on a message, the name of its table
    """A message is rejected. ``reason`` names the field, the problem and the limit, never the body."""

    @property
    def reason(self) -> str:
        """The reason, in one line."""
        return self.what


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


class Op(NamedTuple):
    """An op message: the columns of schemas.OP except ``source``, ``remark``, ``store_timestamp``.

    ``born_timestamp`` is in ms since the epoch; ``transaction_id`` None = not stated (batched form).
    """

    queue_id: int
    half_offset: int
    transaction_id: str | None
    producer_group: str
    state: str
    born_timestamp: int


def is_blank(line: bytes) -> bool:
    """True if the line has only white space (or a byte order mark)."""
    return not line.removeprefix(_BOM).strip()


def parse_half(line: bytes) -> Half:
    """Parse a half message from a line of UTF-8 JSON. Unknown fields are ignored.

    Raises Rejected. Topics follow TopicValidator (without ``%`` and ``|``, which RocketMQ reserves).
    """
    fields = fields_of(line)
    return half_of(fields, _integer(fields, "queue_id", INT_MAX), _integer(fields, "queue_offset", LONG_MAX))


def half_of(fields: Mapping[str, Any], queue_id: int, queue_offset: int) -> Half:
    """The half message in a JSON object's fields, by ``parse_half``'s rules; the caller assigns queue and offset.

    Raises Rejected.
    """
    tags, keys = _optional_text(fields, "tags"), _optional_text(fields, "keys")
    properties = _properties(fields, tags, keys)
    try:
        delay = delay_of(fields, properties)
    except ValueError as error:
        raise Rejected(str(error)) from None
    return Half(
        queue_id=queue_id,
        queue_offset=queue_offset,
        transaction_id=_transaction_id(fields),
        producer_group=_name(fields, "producer_group", GROUP_MAX),
        real_topic=_topic(fields),
        real_queue_id=_integer(fields, "real_queue_id", INT_MAX),
        tags=tags,
        keys=keys,
        properties=properties,
        body=_body(fields),
        born_timestamp=_integer(fields, "born_timestamp", MS_MAX),
        check_immunity_s=_immunity(fields, properties),
        delay_ms=delay.delay_ms,
        deliver_at=delay.deliver_at,
        committed=_committed(fields),
    )


def parse_ops(line: bytes) -> list[Op]:
    """Parse the op messages from a line of UTF-8 JSON: one, or one for each distinct offset in ``half_offsets``.

    Raises Rejected: a list ("12,13,") with one bad offset is rejected as a whole. The batched form is the body of
    RocketMQ's op messages (TransactionalMessageUtil.buildOffsetKey), which have no transaction id: it is optional.
    """
    return ops_of(fields_of(line))


def ops_of(fields: Mapping[str, Any]) -> list[Op]:
    """The op messages in a JSON object's fields, by ``parse_ops``'s rules. Raises Rejected."""
    if "half_offsets" in fields:
        offsets = _offsets(fields)
        stated = fields.get("transaction_id") is not None
        transaction_id = _transaction_id(fields) if stated else None
    else:
        return [op_of(fields)]
    queue_id = _integer(fields, "queue_id", INT_MAX)
    group = _name(fields, "producer_group", GROUP_MAX)
    state = _state(fields)
    born = _integer(fields, "born_timestamp", MS_MAX)
    return [Op(queue_id, offset, transaction_id, group, state, born) for offset in offsets]


def op_of(fields: Mapping[str, Any]) -> Op:
    """The op message in a JSON object's fields, for one half message, with its transaction id. Raises Rejected."""
    return Op(
        queue_id=_integer(fields, "queue_id", INT_MAX),
        half_offset=_integer(fields, "half_offset", LONG_MAX),
        transaction_id=_transaction_id(fields),
        producer_group=_name(fields, "producer_group", GROUP_MAX),
        state=_state(fields),
        born_timestamp=_integer(fields, "born_timestamp", MS_MAX),
    )


def _refuse_constant(name: str) -> NoReturn:
    raise Rejected(f"not JSON: {name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def fields_of(line: bytes) -> dict[str, Any]:
    """Parse the JSON object on a line of UTF-8. Raises Rejected."""
    if len(line) > LINE_MAX:
        raise Rejected(f"line: over {LINE_MAX // 1024**2} MiB")
    try:
        text = line.removeprefix(_BOM).decode("utf-8")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise Rejected(f"not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise Rejected(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise Rejected("not JSON: nested too deeply") from None
    except ValueError:  # int() of more digits than sys.get_int_max_str_digits
        raise Rejected("not JSON: a number has too many digits") from None
    if type(value) is not dict:
        raise Rejected(f"not a JSON object: {_kind(value)}")
    if "\\ud" in text or "\\uD" in text:  # lone surrogates can only come from escapes
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if not _is_text((name, value)):
            raise Rejected(f"{_quoted_name(name, 'a field')}: half of a surrogate pair is no text")


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    except RecursionError:
        raise Rejected("not JSON: nested too deeply") from None
    return True


def _kind(value: object) -> str:
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "an integer", float: "a fraction", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")


def _quoted(value: object) -> str:
    """The value as JSON if short, else its kind: reasons are one line, for people."""
    if isinstance(value, (list, dict)) or (isinstance(value, str) and len(value) > _QUOTE_MAX):
        return _kind(value)
    quoted = json.dumps(value)
    return quoted if len(quoted) <= _QUOTE_MAX else _kind(value)


def _quoted_name(name: str, otherwise: str) -> str:
    return name if len(name) <= _QUOTE_MAX and _NAME.fullmatch(name) else otherwise


def _integer(fields: Mapping[str, Any], name: str, limit: int) -> int:
    value = fields.get(name)
    if type(value) is not int:  # neither true nor 1.0
        raise Rejected(f"{name}: missing" if name not in fields else f"{name}: {_quoted(value)} is not an integer")
    if value < 0:
        raise Rejected(f"{name}: {_quoted(value)} is negative")
    if value > limit:
        raise Rejected(f"{name}: {_quoted(value)} is over {limit}")
    return value


def _string(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if type(value) is not str:
        raise Rejected(f"{name}: missing" if name not in fields else f"{name}: {_kind(value)}, not a string")
    return value


def _optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    return None if fields.get(name) is None else _string(fields, name)


def _transaction_id(fields: Mapping[str, Any]) -> str:
    value = _string(fields, "transaction_id")
    if not value:
        raise Rejected("transaction_id: empty")
    if len(value) > TRANSACTION_ID_MAX:
        raise Rejected(f"transaction_id: {len(value)} characters, over {TRANSACTION_ID_MAX}")
    return value


def _name(fields: Mapping[str, Any], name: str, limit: int) -> str:
    """A group or topic that meets Validators.checkGroup and checkTopic."""
    value = _string(fields, name)
    if not value:
        raise Rejected(f"{name}: empty")
    if len(value) > limit:
        raise Rejected(f"{name}: {len(value)} characters, over {limit}")
    if not _NAME.fullmatch(value):
        raise Rejected(f"{name}: {_quoted(value)} has characters other than a-z, A-Z, 0-9, _ and -")
    return value


def is_group(text: str) -> bool:
    """True for a valid producer group name."""
    return len(text) <= GROUP_MAX and _NAME.fullmatch(text) is not None


def is_topic(text: str) -> bool:
    """True for a valid, unreserved topic name."""
    return len(text) <= TOPIC_MAX and _NAME.fullmatch(text) is not None and reserved(text) is None


def reserved(topic: str) -> str | None:
    """Why a valid topic name is reserved and takes no messages; None if it is not.

    A topic becomes a folder. Delta and Spark ignore or reserve names that begin with an underscore or a dot
    (``_delta_log``, ``_change_data``, DeltaTableUtils.isHiddenDirectory, HadoopFSUtils.shouldFilterOutPath).
    """
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIXES):
        return "is a system topic"
    if topic.startswith(("_", ".")):
        return "begins with _ or a dot, as what Delta and Spark keep for themselves"
    if topic.casefold() in DEVICES:
        return "is a device's name on Windows"
    return None


def _topic(fields: Mapping[str, Any]) -> str:
    value = _name(fields, "real_topic", TOPIC_MAX)
    why = reserved(value)
    if why is not None:
        raise Rejected(f"real_topic: {_quoted(value)} {why}")
    return value


def _properties(fields: Mapping[str, Any], tags: str | None, keys: str | None) -> dict[str, str]:
    """The properties. Their size is that of MessageDecoder.messageProperties2String, including TAGS and KEYS."""
    value = fields.get("properties")
    if value is None:
        value = {}
    if type(value) is not dict:
        raise Rejected(f"properties: {_kind(value)}, not an object")
    for name, text in value.items():
        if type(text) is not str:
            raise Rejected(f"properties: {_quoted_name(name, 'one value')} is {_kind(text)}, not a string")
    texts = [*value, *value.values()]
    for name, own in (("TAGS", tags), ("KEYS", keys)):
        if own is not None and name not in value:
            texts += (name, own)
    # Name, \x01, value, \x02: one separator for each text.
    size = len("".join(texts).encode("utf-8")) + len(texts)
    if size > PROPERTIES_MAX:
        raise Rejected(f"properties: {size} bytes with tags and keys, over {PROPERTIES_MAX // 1024} KiB")
    return value


def _body(fields: Mapping[str, Any]) -> bytes:
    encoded = _string(fields, "body")
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
        raise Rejected(f"committed: {_quoted(value)} is not a boolean")
    return value or None


def _immunity(fields: Mapping[str, Any], properties: Mapping[str, str]) -> int | None:
    """The field, or else the property as parsed by TransactionalMessageServiceImpl.getImmunityTime."""
    value = fields.get("check_immunity_s")
    if value is None:
        return _immunity_property(properties.get(IMMUNITY_PROPERTY))
    if type(value) is int and value < 0:
        return None
    return _integer(fields, "check_immunity_s", INT_MAX)


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


def _offsets(fields: Mapping[str, Any]) -> list[int]:
    if "half_offset" in fields:
        raise Rejected("half_offsets: half_offset is there too, only one of them may be")
    value = _string(fields, "half_offsets")
    if value.count(",") + (not value.endswith(",")) > OFFSETS_MAX:
        raise Rejected(f"half_offsets: more than {OFFSETS_MAX} offsets")
    if not _OFFSETS.fullmatch(value):
        raise Rejected(f"half_offsets: {_quoted(value)} is no list of offsets like 12,13,")
    offsets = list(dict.fromkeys(int(part) for part in value.rstrip(",").split(",")))
    if max(offsets) > LONG_MAX:
        raise Rejected(f"half_offsets: {max(offsets)} is over {LONG_MAX}")
    return offsets


def _state(fields: Mapping[str, Any]) -> str:
    value = fields.get("state")
    if value not in STATES:
        what = f"unknown state {_quoted(value)}, neither COMMIT nor ROLLBACK" if "state" in fields else "missing"
        raise Rejected(f"state: {what}")
    return str(value)
