"""The JSON object on a line, and its fields as a message that a Struct states: what every message is parsed from.

A Struct states the fields, their types and limits once: messages are decoded by it, and `/openapi.json` describes it.
A refusal's reason is one line that names the field, the problem and the limit; long values are not quoted.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec
from msgspec import inspect

from checkback.errors import CheckbackError
from checkback.messages.limits import LINE_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

S = TypeVar("S", bound=msgspec.Struct)
_BOM = b"\xef\xbb\xbf"
#: of groups, topics and fields
NAME = re.compile(r"[a-zA-Z0-9_-]+")
_QUOTE_MAX = 40


class MessageRejectedError(CheckbackError):
    """A message is rejected. ``reason`` names the field, the problem and the limit, never the body."""

    @property
    def reason(self) -> str:
        """The reason, in one line."""
        return self.what


def is_blank(line: bytes) -> bool:
    """True if the line has only white space (or a byte order mark)."""
    return not line.removeprefix(_BOM).strip()


def _refuse_constant(name: str) -> NoReturn:
    raise MessageRejectedError(f"not JSON: {name} is no JSON number")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def fields_of(line: bytes) -> dict[str, Any]:
    """Parse the JSON object on a line of UTF-8. Raises MessageRejectedError."""
    if len(line) > LINE_MAX:
        raise MessageRejectedError(f"line: over {LINE_MAX // 1024**2} MiB")
    try:
        text = line.removeprefix(_BOM).decode("utf-8")
        value = _DECODER.decode(text)
    except UnicodeDecodeError as error:
        raise MessageRejectedError(f"not JSON: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise MessageRejectedError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise MessageRejectedError("not JSON: nested too deeply") from None
    except ValueError:  # int() of more digits than sys.get_int_max_str_digits
        raise MessageRejectedError("not JSON: a number has too many digits") from None
    if type(value) is not dict:
        raise MessageRejectedError(f"not a JSON object: {kind(value)}")
    if "\\ud" in text or "\\uD" in text:  # lone surrogates can only come from escapes
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if not _is_text((name, value)):
            raise MessageRejectedError(f"{quoted_name(name, 'a field')}: half of a surrogate pair is no text")


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    except RecursionError:
        raise MessageRejectedError("not JSON: nested too deeply") from None
    return True


def kind(value: object) -> str:
    """What a JSON value is, for a reason."""
    if value is None:
        return "null"
    kinds = {bool: "a boolean", int: "an integer", float: "a fraction", str: "a string", list: "an array"}
    return kinds.get(type(value), "an object")


def quoted(value: object) -> str:
    """The value as JSON if short, else its kind: reasons are one line, for people."""
    if isinstance(value, (list, dict)) or (isinstance(value, str) and len(value) > _QUOTE_MAX):
        return kind(value)
    text = json.dumps(value)
    return text if len(text) <= _QUOTE_MAX else kind(value)


def quoted_name(name: str, otherwise: str) -> str:
    """A field's name if it is short and plain, else ``otherwise``."""
    return name if len(name) <= _QUOTE_MAX and NAME.fullmatch(name) else otherwise


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant, in lower or upper case; None = there is none like it."""
    by_lower = {one.lower(): one for one in known}
    found = difflib.get_close_matches(name.lower(), by_lower, 1)
    return by_lower[found[0]] if found else None


def unknown(name: str, known: Iterable[str]) -> str:
    """Why a field that nobody knows is refused: what it says would be ignored, a delay for example."""
    shown = quoted_name(name, "a field")
    meant = nearest(name, known) if shown == name else None
    return f"{shown}: no such field" + (f", did you mean {meant}?" if meant else "")


def refuse_unknown(fields: Iterable[str], known: Collection[str]) -> None:
    """Raise MessageRejectedError for the first field that is none of the ``known`` ones."""
    for name in fields:
        if name not in known:
            raise MessageRejectedError(unknown(name, known))


def message_of(fields: Mapping[str, Any], message: type[S]) -> S:
    """A JSON object's fields as a message.

    Raises MessageRejectedError for the first field that is not as ``message`` states it.
    """
    try:
        return msgspec.convert(fields, message)
    except msgspec.ValidationError as error:
        raise MessageRejectedError(_refusal(fields, message) or f"not a message: {error}") from None


def _refusal(fields: Mapping[str, Any], message: type[msgspec.Struct]) -> str | None:
    stated = {field.name: field for field in inspect.type_info(message).fields}  # type: ignore[attr-defined]
    refuse_unknown(fields, stated)
    for name, field in stated.items():
        if name in fields:
            why = _why(name, fields[name], field.type)
            if why is not None:
                return f"{name}: {why}"
        elif field.required:
            return f"{name}: missing"
    return None


def _why(name: str, value: object, stated: inspect.Type) -> str | None:
    """Why a field's value is not of the type that is stated; None = it is."""
    types = [stated]
    if isinstance(stated, inspect.Metadata):
        return _why(name, value, stated.type)
    if isinstance(stated, inspect.UnionType):
        if value is None:
            return None
        types = [one.type if isinstance(one, inspect.Metadata) else one for one in stated.types]
        types = [one for one in types if not isinstance(one, inspect.NoneType)]
    # of a number or a text the one that it is
    kind_ = next((one for one in types if isinstance(one, inspect.StrType) == isinstance(value, str)), types[0])
    return _WHY[type(kind_)](name, value, kind_) if type(kind_) in _WHY else None


def _why_no_integer(_: str, value: object, stated: inspect.IntType) -> str | None:
    if type(value) is not int:  # neither true nor 1.0
        return f"{quoted(value)} is not an integer"
    if stated.ge is not None and value < stated.ge:
        return f"{quoted(value)} is negative" if stated.ge == 0 else f"{quoted(value)} is under {stated.ge}"
    return f"{quoted(value)} is over {stated.le}" if stated.le is not None and value > stated.le else None


def _why_no_text(_: str, value: object, stated: inspect.StrType) -> str | None:
    if stated.pattern is not None:
        known = type(value) is str and re.search(stated.pattern, value)
        return None if known else f"{quoted(value)} is not a duration such as 500ms, 30s, 10m, 2h or 1d"
    if type(value) is not str:
        return f"{kind(value)}, not a string"
    if len(value) < (stated.min_length or 0):
        return "empty"
    over = stated.max_length is not None and len(value) > stated.max_length
    return f"{len(value)} characters, over {stated.max_length}" if over else None


def _why_no_bytes(_: str, value: object, stated: inspect.BytesType) -> str | None:
    if type(value) is not str:
        return f"{kind(value)}, not a string"
    if len(value) % 4:
        return f"not base64: {len(value)} characters are no multiple of 4"
    # The size follows from the length: an oversized body is not decoded first.
    size = len(value) // 4 * 3 - value[-2:].count("=")
    if stated.max_length is not None and size > stated.max_length:
        return f"{size} bytes, over {stated.max_length // 1024**2} MiB"
    try:
        base64.b64decode(value, validate=True)
    except ValueError:
        return "not base64"
    return None


def _why_no_texts(_: str, value: object, __: inspect.DictType) -> str | None:
    if type(value) is not dict:
        return f"{kind(value)}, not an object"
    for name, text in value.items():
        if type(text) is not str:
            return f"{quoted_name(name, 'one value')} is {kind(text)}, not a string"
    return None


def _why_no_choice(name: str, value: object, stated: inspect.LiteralType) -> str | None:
    choices = [str(choice) for choice in stated.values]
    if value in choices:
        return None
    meant = nearest(value, choices) if isinstance(value, str) and len(value) <= _QUOTE_MAX else None
    which = f"unknown {name} {quoted(value)}, neither {' nor '.join(choices)}"
    return which + (f": did you mean {meant}?" if meant else "")


def _why_no_boolean(_: str, value: object, __: inspect.BoolType) -> str | None:
    return None if type(value) is bool else f"{quoted(value)} is not a boolean"


_WHY: dict[type, Callable[[str, Any, Any], str | None]] = {
    inspect.IntType: _why_no_integer,
    inspect.StrType: _why_no_text,
    inspect.BytesType: _why_no_bytes,
    inspect.DictType: _why_no_texts,
    inspect.LiteralType: _why_no_choice,
    inspect.BoolType: _why_no_boolean,
}
