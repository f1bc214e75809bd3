"""JSON bodies of very many values, each of which would be an object: only what a message consists of is decoded.

16 MiB of JSON can be millions of values, and their decoding would hold the event loop, and Python's lock, for seconds.
Of dense bodies only the message's own fields are decoded, with the same result as `json_decoder`, and batches in parts:
the first other field ends it. A property test keeps both consistent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np
import orjson
from msgspec import Raw

from checkback.gateway.problems import Problem
from checkback.gateway.requests.batch_decoder import BATCH_MAX, HALF_FIELDS, OP_FIELDS, is_utf8
from checkback.messages.fields import unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: bytes of a body that is decoded in one go, whatever it is
_SMALL = 256 << 10
#: values of a larger one that is
_VALUES_MAX = 50_000
#: Bytes of the properties as JSON. Those of a valid message have fewer, even if each character is an escape sequence,
#: unless names are repeated or there is white space.
_PROPERTIES_MAX = 256 << 10
#: bytes of messages that are decoded in one go
_PART = 128 << 10
#: what precedes a value in an object; and in an array or object
NAMES, VALUES = b":", b",[{"


class _Fields(Protocol):
    """Fields as JSON, by name; empty if they are missing."""

    __struct_fields__: tuple[str, ...]


def _fields_of(names: Sequence[str]) -> msgspec.json.Decoder[_Fields]:
    fields = [(name, Raw, Raw()) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct("Fields", fields, forbid_unknown_fields=True))


#: One more than fit. The elements beyond the fields of a struct are passed over, not decoded.
_Items: Any = msgspec.defstruct("Items", [(f"i{n}", Raw, Raw()) for n in range(BATCH_MAX + 1)], array_like=True)
_ITEMS = {
    name: msgspec.json.Decoder(msgspec.defstruct("Body", [(name, _Items | None, None)], forbid_unknown_fields=True))
    for name in ("messages", "ops")
}
_BODY = {name: _fields_of((name,)) for name in _ITEMS}
_HALF, _OP = _fields_of(HALF_FIELDS), _fields_of(OP_FIELDS)
_PROPERTIES = msgspec.json.Decoder(dict[str, Raw])
_TEXTS = msgspec.json.Decoder(dict[str, str])
_ANY = msgspec.json.Decoder(Raw)
#: msgspec's error for a field that a struct does not have
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def is_dense(body: bytes, marks: bytes) -> bool:
    """Has a body so many of the ``marks``, NAMES or VALUES, that decoding all of it would take too long?"""
    if len(body) <= _SMALL:
        return False
    content = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(content == mark)) for mark in marks) > _VALUES_MAX


def items_of(body: bytes, name: str) -> list[Raw] | Problem:
    """The list ``name`` of a body's JSON object, each of its elements as JSON."""
    if not is_utf8(body):
        return Problem("malformed", "not JSON: not UTF-8")
    try:
        items = getattr(_ITEMS[name].decode(body), name)
    except msgspec.ValidationError:
        return _no_items(body, name)
    except (msgspec.DecodeError, RecursionError) as error:
        return _malformed(error)
    if items is None:
        return Problem("malformed", f"{name}: missing")
    found = [item for field in items.__struct_fields__ if (item := getattr(items, field)) != _NOTHING]
    if len(found) > BATCH_MAX:
        detail = f"{name}: more than {BATCH_MAX} of them; 1 to {BATCH_MAX} fit in a request"
        return Problem("unfit", detail, {"field": name})
    return found or Problem("unfit", f"{name}: 0 of them; 1 to {BATCH_MAX} fit in a request", {"field": name})


def _no_items(body: bytes, name: str) -> Problem:
    other = _unknown(body, _BODY[name])
    if isinstance(other, str):
        reason = unknown(other, (name,))
        return Problem("unfit", reason, {"field": reason.partition(":")[0]})
    is_object = body.lstrip()[:1] == b"{"
    return other or Problem("malformed", f"{name}: not an array" if is_object else "not a JSON object")


def parts_of(items: Sequence[Raw]) -> Iterator[Sequence[Raw]]:
    """The items, in parts that are decoded in one go."""
    begin = size = 0
    for number, item in enumerate(items):
        more = memoryview(item).nbytes
        if size and size + more > _PART:
            yield items[begin:number]
            begin, size = number, 0
        size += more
    yield items[begin:]


def half_fields(message: bytes | Raw) -> object | Problem:
    """The fields of a half message, for `json_decoder.half`."""
    return _known_fields(message, _HALF)


def op_fields(message: bytes | Raw) -> object | Problem:
    """The fields of an op, for `json_decoder.op`."""
    return _known_fields(message, _OP)


def _known_fields(message: bytes | Raw, decoder: msgspec.json.Decoder[_Fields]) -> object | Problem:
    try:
        found = decoder.decode(message)
        fields: dict[str, Any] = {}
        for name in found.__struct_fields__:
            raw = getattr(found, name)
            if raw != _NOTHING:
                fields[name] = _properties(raw) if name == "properties" else _value(raw)
    except msgspec.ValidationError:
        other = _unknown(message, decoder)
        if other is None:  # not an object
            return []
        return other if isinstance(other, Problem) else {other: None}
    except _TooLarge as error:
        return Problem("unfit", str(error), {"field": "properties"})
    except (msgspec.DecodeError, orjson.JSONDecodeError, RecursionError) as error:
        return _malformed(error)
    return fields


def _unknown(content: bytes | Raw, decoder: msgspec.json.Decoder[_Fields]) -> str | Problem | None:
    """The first field that the decoder does not know, or what is malformed; None = neither, it is no object."""
    try:
        _ANY.decode(content)
        decoder.decode(content)
    except msgspec.ValidationError as error:
        found = _UNKNOWN.fullmatch(str(error))
        return found[1] if found else None
    except (msgspec.DecodeError, RecursionError) as error:
        return _malformed(error)
    return None


class _TooLarge(Exception):  # noqa: N818 - what the properties are
    pass


def _value(raw: Raw) -> object:
    """A value; of arrays and objects, which no field but the properties is, only that it is one."""
    content = memoryview(raw)
    if content[0] in b"[{":
        return [] if content[0] == ord("[") else {}
    return orjson.loads(content)


def _properties(raw: Raw) -> object:
    """The same of properties, with their texts."""
    content = memoryview(raw)
    if content[0] != ord("{"):
        return _value(raw)
    if content.nbytes > _PROPERTIES_MAX:
        raise _TooLarge(f"properties: {content.nbytes} bytes of JSON, over {_PROPERTIES_MAX >> 10} KiB")
    try:
        return _TEXTS.decode(raw)
    except msgspec.ValidationError:
        return {name: _value(value) for name, value in _PROPERTIES.decode(raw).items()}


def _malformed(error: Exception) -> Problem:
    nested = isinstance(error, RecursionError)
    reason = "depth limit exceeded" if nested else str(error).removeprefix("JSON is malformed: ")
    return Problem("malformed", f"not JSON: {reason}")


_NOTHING = Raw()
