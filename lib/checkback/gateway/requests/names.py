"""Whether an object of a JSON body has a name twice: which of its values counts differs between parsers (RFC 8259, 4).

Decoders take the last one silently, and a hook for each object would take longer than all else. Hence the names that
they have found are compared with those that the body can have at most; only if it may have more it is read with a hook.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.gateway.problems import Problem
from checkback.messages.fields import object_once

if TYPE_CHECKING:
    from collections.abc import Mapping

    from msgspec import Raw

TWICE = Problem("malformed", "an object has a name twice")
#: bytes of a body that is decoded in one go, whatever it is
_SMALL = 256 << 10
#: values of a larger one that is
_VALUES_MAX = 50_000
#: what precedes a value in an object; and in an array or object
NAMES, VALUES = b":", b",[{"


def is_dense(body: bytes, marks: bytes) -> bool:
    """Has a body so many of the ``marks``, NAMES or VALUES, that decoding all of it would take too long?"""
    if len(body) <= _SMALL:
        return False
    content = np.frombuffer(body, np.uint8)
    return sum(int(np.count_nonzero(content == mark)) for mark in marks) > _VALUES_MAX


def names_in(fields: Mapping[str, Any]) -> int:
    """The names of an object and of the objects in it, without those in these."""
    return len(fields) + sum(len(value) for value in fields.values() if type(value) is dict)


def names_of(fields: Mapping[str, Any], items: str) -> int:
    """The same of an object and of those in its list ``items``."""
    return len(fields) + sum(names_in(item) for item in fields[items] if type(item) is dict)


def may_repeat(body: bytes | Raw, found: int) -> bool:
    """May JSON have more names than the ``found`` ones, because one is there twice or others were passed over?"""
    if type(body) is bytes and body.count(b":") == found:
        return False
    content = np.frombuffer(memoryview(body), np.uint8)
    # Before the colon after a name is its quotation mark or white space; in texts this may be, too.
    return int(np.count_nonzero((content[1:] == ord(":")) & (content[:-1] <= ord('"')))) != found


def repeated(body: bytes | Raw) -> Problem | None:
    """The problem of an object that has a name twice, also in an object in it."""
    found = _read(body)
    return found if isinstance(found, Problem) else None


def repeated_in(body: bytes, items: str) -> Problem | list[int]:
    """The same of an object with the list ``items``, whose objects are judged for themselves: which of them have."""
    found = _read(body)
    if isinstance(found, Problem):
        return found
    return [number for number, item in enumerate(found[items]) if item is TWICE]


def _read(body: bytes | Raw) -> Any:
    try:
        return _decode(bytes(body).decode())
    except RecursionError:
        return Problem("malformed", "not JSON: depth limit exceeded")


def _object(pairs: list[tuple[str, Any]]) -> object:
    fields = object_once(pairs)
    return TWICE if fields is None or TWICE in fields.values() else fields


# Numbers are not needed, and may have more digits than int() takes.
_decode = json.JSONDecoder(object_pairs_hook=_object, parse_int=len, parse_float=len).decode
