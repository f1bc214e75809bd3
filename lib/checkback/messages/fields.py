"""The JSON object on a line, and its fields by type: what every message is parsed from.

A refusal's reason is one line that names the field, the problem and the limit; long values are not quoted.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import TYPE_CHECKING, Any, NoReturn

from checkback.errors import CheckbackError
from checkback.messages.limits import LINE_MAX

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

_BOM = b"\xef\xbb\xbf"
#: of groups, topics and fields
NAME = re.compile(r"[a-zA-Z0-9_-]+")
_QUOTE_MAX = 40


class Rejected(CheckbackError):  # noqa: N818 - a verdict on a message, the name of its table
    """A message is rejected. ``reason`` names the field, the problem and the limit, never the body."""

    @property
    def reason(self) -> str:
        """The reason, in one line."""
        return self.what


def is_blank(line: bytes) -> bool:
    """True if the line has only white space (or a byte order mark)."""
    return not line.removeprefix(_BOM).strip()


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
        raise Rejected(f"not a JSON object: {kind(value)}")
    if "\\ud" in text or "\\uD" in text:  # lone surrogates can only come from escapes
        _refuse_lone_surrogates(value)
    return value


def _refuse_lone_surrogates(fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if not _is_text((name, value)):
            raise Rejected(f"{quoted_name(name, 'a field')}: half of a surrogate pair is no text")


def _is_text(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return False
    except RecursionError:
        raise Rejected("not JSON: nested too deeply") from None
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
    """The known name that was probably meant; None = there is none like it."""
    found = difflib.get_close_matches(name.lower(), known, 1)
    return found[0] if found else None


def unknown(name: str, known: Iterable[str]) -> str:
    """Why a field that nobody knows is refused: what it says would be ignored, a delay for example."""
    shown = quoted_name(name, "a field")
    meant = nearest(name, known) if shown == name else None
    return f"{shown}: no such field" + (f", did you mean {meant}?" if meant else "")


def refuse_unknown(fields: Iterable[str], known: Collection[str]) -> None:
    """Raise Rejected for the first field that is none of the ``known`` ones."""
    for name in fields:
        if name not in known:
            raise Rejected(unknown(name, known))


def integer(fields: Mapping[str, Any], name: str, limit: int) -> int:
    """The field, from 0 to ``limit``. Raises Rejected."""
    value = fields.get(name)
    if type(value) is not int:  # neither true nor 1.0
        raise Rejected(f"{name}: missing" if name not in fields else f"{name}: {quoted(value)} is not an integer")
    if value < 0:
        raise Rejected(f"{name}: {quoted(value)} is negative")
    if value > limit:
        raise Rejected(f"{name}: {quoted(value)} is over {limit}")
    return value


def string(fields: Mapping[str, Any], name: str) -> str:
    """The field. Raises Rejected."""
    value = fields.get(name)
    if type(value) is not str:
        raise Rejected(f"{name}: missing" if name not in fields else f"{name}: {kind(value)}, not a string")
    return value


def optional_text(fields: Mapping[str, Any], name: str) -> str | None:
    """The field; None = missing or null. Raises Rejected."""
    return None if fields.get(name) is None else string(fields, name)
