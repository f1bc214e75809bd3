"""The fast path for batches: msgspec decodes half messages and ops at once, with the same result as `messages`.

Only clearly valid batches are decoded; for any other the result is None, and `json_decoder` decodes it message by
message, with the reasons for refusals. A test keeps both consistent. It takes a quarter of the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from checkback.messages.half import CONSUMED, SHARDING_KEY, Half, real_queue_of
from checkback.messages.limits import (
    BODY_MAX,
    INT_MAX,
    LONG_MAX,
    MS_MAX,
    ORDERING_KEY_MAX,
    PROPERTIES_MAX,
    TRANSACTION_ID_MAX,
)
from checkback.messages.names import is_group, is_topic
from checkback.messages.op import STATES, Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: messages or ops of one request
BATCH_MAX = 1000
#: characters of an op's remark
REMARK_MAX = 1024
#: an op and its remark
RemarkedOp = tuple[Op, str | None]

#: properties that `messages` parses
PARSED = CONSUMED | {SHARDING_KEY}
_NOTHING: dict[str, str] = {}
#: characters of tags, keys and properties: in UTF-8, with separators, they stay within PROPERTIES_MAX
_SMALL = PROPERTIES_MAX // 8


class _Half(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    transaction_id: str
    producer_group: str
    real_topic: str
    body: bytes
    real_queue_id: int | None = None
    tags: str | None = None
    keys: str | None = None
    ordering_key: str | None = None
    properties: dict[str, str] | None = None
    born_timestamp: int | None = None
    # Of those that are left to the rules anything but null is refused, however long it is.
    check_immunity_s: None = None
    delay_level: None = None
    delay: None = None
    deliver_at: None = None


class _Halves(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    messages: list[_Half]


class _Op(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    queue_id: int
    half_offset: int
    transaction_id: str
    producer_group: str
    state: str
    born_timestamp: int | None = None
    remark: str | None = None


class _Ops(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    ops: list[_Op]


#: the fields of a half message, and of an op
HALF_FIELDS, OP_FIELDS = _Half.__struct_fields__, _Op.__struct_fields__
_HALF = msgspec.json.Decoder(_Half)
_HALVES = msgspec.json.Decoder(_Halves)
_OPS = msgspec.json.Decoder(_Ops)


def halves(body: bytes, now: int, committed: bool | None = None) -> list[Half] | None:
    """The half messages of a body, without offsets, if all are valid and without a delay; else None.

    ``now`` and ``committed`` as in `json_decoder`.
    """
    if not is_utf8(body):
        return None
    try:
        messages = _HALVES.decode(body).messages
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return _taken(messages, now, committed) if 1 <= len(messages) <= BATCH_MAX else None


def half(body: bytes, now: int, committed: bool | None = None) -> Half | None:
    """The same for a body that is one half message."""
    if not is_utf8(body):
        return None
    try:
        message = _HALF.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    taken = _taken([message], now, committed)
    return taken[0] if taken else None


def _taken(messages: Sequence[_Half], now: int, committed: bool | None) -> list[Half] | None:
    groups: set[str] = set()
    topics: set[str] = set()
    taken = []
    for one in messages:
        key, properties, real_queue_id = one.ordering_key, one.properties or _NOTHING, one.real_queue_id
        if key is not None:
            if not 0 < len(key) <= ORDERING_KEY_MAX or real_queue_id is not None:
                return None
            properties = {**properties, SHARDING_KEY: key}
        if real_queue_id is None:
            real_queue_id = real_queue_of(key or one.transaction_id)
        born = now if one.born_timestamp is None else one.born_timestamp
        if not (
            0 < len(one.transaction_id) <= TRANSACTION_ID_MAX
            and (one.producer_group in groups or _new(one.producer_group, groups, is_group))
            and (one.real_topic in topics or _new(one.real_topic, topics, is_topic))
            and len(one.body) <= BODY_MAX
            and 0 <= real_queue_id <= INT_MAX
            and 0 <= born <= MS_MAX
            and _small(one)
        ):
            return None
        taken.append(
            Half(
                -1,
                -1,
                one.transaction_id,
                one.producer_group,
                one.real_topic,
                real_queue_id,
                one.tags,
                one.keys,
                properties,
                one.body,
                born,
                None,
                committed=committed,
            )
        )
    return taken


def ops(body: bytes, now: int) -> list[RemarkedOp] | None:
    """The ops of a body and their remarks, if all are valid; else None. ``now`` as in `json_decoder`."""
    if not is_utf8(body):
        return None
    try:
        messages = _OPS.decode(body).ops
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    if not 1 <= len(messages) <= BATCH_MAX:
        return None
    groups: set[str] = set()
    taken = []
    for one in messages:
        born = now if one.born_timestamp is None else one.born_timestamp
        if not (
            0 <= one.queue_id <= INT_MAX
            and 0 <= one.half_offset <= LONG_MAX
            and 0 < len(one.transaction_id) <= TRANSACTION_ID_MAX
            and (one.producer_group in groups or _new(one.producer_group, groups, is_group))
            and one.state in STATES
            and 0 <= born <= MS_MAX
            and (one.remark is None or len(one.remark) <= REMARK_MAX)
        ):
            return None
        op = Op(one.queue_id, one.half_offset, one.transaction_id, one.producer_group, one.state, born)
        taken.append((op, one.remark))
    return taken


def _new(name: str, known: set[str], fits: Callable[[str], bool]) -> bool:
    """Is a new name valid? If so, it is cached for this request only: clients' input is not kept longer."""
    if not fits(name):
        return False
    known.add(name)
    return True


def is_utf8(body: bytes) -> bool:
    """Is all of the body UTF-8? msgspec does not validate unknown fields, which it skips."""
    if body.isascii():
        return True
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _small(one: _Half) -> bool:
    """Are tags, keys and properties far below their limit, and without a property that is parsed?"""
    characters = len(one.tags or "") + len(one.keys or "") + len(one.ordering_key or "")
    if one.properties:
        if len(one.properties) > _SMALL // 8 or not PARSED.isdisjoint(one.properties):
            return False
        characters += sum(map(len, one.properties)) + sum(map(len, one.properties.values()))
    return characters <= _SMALL // 2
