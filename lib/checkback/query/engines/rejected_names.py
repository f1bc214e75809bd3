"""What a rejected input names: its transaction and its place, as a function of SQL for both engines.

Most of these inputs are no JSON, and the engines' own functions differ in which they read all the same.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from checkback.messages.limits import INT_MAX, LONG_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: its name
REJECTED_NAMES = "rejected_names"
#: Numbers as they are written. Control characters in strings, NaN and halves of surrogate pairs are faults, but of the
#: member alone.
_DECODER = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str, strict=False)
_OBJECT = re.compile(r"\ufeff?[ \t\r\n]*(?=\{)")
_OPENING = re.compile(r'\{[ \t\r\n]*(?=")')
_COLON = re.compile(r"[ \t\r\n]*:[ \t\r\n]*")
_COMMA = re.compile(r'[ \t\r\n]*,[ \t\r\n]*(?=")')
#: after a whole value; a number that the text ends with may be the beginning of another
_WHOLE = re.compile(r"[ \t\r\n]*[,}]")
_INTEGER = re.compile(r"-?[0-9]{1,19}")
#: characters with escapes of their own, of two characters
_ESCAPED = re.compile(r'["\\/\x00-\x1f]')
_FAULTS = (ValueError, RecursionError)


class Names(NamedTuple):
    """Fields of an input; null: it does not have them, or not as a text or a number; integers also as a text."""

    transaction_id: str | None = None
    producer_group: str | None = None
    queue_id: int | None = None
    queue_offset: int | None = None


#: the fields in SQL
NAMES = "transaction_id STRING, producer_group STRING, queue_id INT, queue_offset BIGINT"
_NAMES = pa.struct(list(zip(Names._fields, (pa.string(), pa.string(), pa.int32(), pa.int64()), strict=True)))


def rejected_names(raws: pa.Array) -> pa.Array:
    """By column `raw` of `rejected` a struct of `NAMES`. One by one: a text may have 8 MiB."""
    return pa.array([names_in(raw.as_py())._asdict() for raw in raws], _NAMES)


def names_in(raw: str | None) -> Names:
    """What an input names in members of its JSON object up to the first fault; the last of equal members counts.

    ``queue_offset``: else half_offset (`op.named`). Fields of objects in it do not count: another transaction may be in
    them.
    """
    found = _fields(raw or "")
    offset = _integer(found.get("queue_offset"), LONG_MAX)
    return Names(
        _text(found.get("transaction_id")),
        _text(found.get("producer_group")),
        _integer(found.get("queue_id"), INT_MAX),
        _integer(found.get("half_offset"), LONG_MAX) if offset is None else offset,
    )


def escape_in(transaction_id: str) -> str:
    """What an input contains that names the transaction, unless it contains the id as it is."""
    return "\\" if _ESCAPED.search(transaction_id) else "\\u"


def _fields(raw: str) -> Mapping[str, object]:
    begin = _OBJECT.match(raw)
    if begin is None:
        return {}
    try:
        fields: dict[str, object] = _DECODER.raw_decode(raw, begin.end())[0]
    except _FAULTS:
        return dict(_members(raw, begin.end()))
    return fields


def _members(raw: str, begin: int) -> Iterator[tuple[str, object]]:
    """The members before the fault."""
    before = _OPENING.match(raw, begin)
    while before is not None:
        try:
            name, end = _DECODER.raw_decode(raw, before.end())
            colon = _COLON.match(raw, end)
            if colon is None:
                return
            value, end = _DECODER.raw_decode(raw, colon.end())
        except _FAULTS:
            return
        if raw[end - 1] != '"' and _WHOLE.match(raw, end) is None:
            return
        yield name, value
        before = _COMMA.match(raw, end)


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return value


def _integer(value: object, limit: int) -> int | None:
    if not isinstance(value, str) or _INTEGER.fullmatch(value) is None:
        return None
    number = int(value)
    return number if abs(number) <= limit else None
