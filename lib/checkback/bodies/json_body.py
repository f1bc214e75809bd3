"""JSON bodies: without a schema JSON text, with a JSON Schema the Arrow type that its types tell.

The schema types a body, it does not validate it: ``required``, ``pattern``, ``minimum`` and the like are not applied.
What has no single type (``anyOf`` of two, no ``type``, a recursive ``$ref``) is JSON text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa

from checkback.bodies.decoder import MAX_DEPTH, TOO_DEEP, BodyError, take, text_of, width
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_INFINITY = float("inf")
#: characters of a number; Jackson, which is Spark's, reads no more either
MAX_NUMBER = 1000
#: in text with a number that may be beyond a double, or longer than MAX_NUMBER
_LARGE = re.compile(r"[0-9]{200}|[eE]\+?[0-9]{3}")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BEYOND = "has a number beyond a double"
_LONG = range(-(1 << 63), 1 << 63)
#: of a schema, each time that a $ref names it counted: within that it is read in milliseconds
_MAX_PARTS = 10_000
_JSON_TEXT: pa.DataType = pa.json_(pa.string()) if hasattr(pa, "json_") else pa.string()


class JsonText:
    """JSON without a schema: its text as it is, of Arrow's extension type arrow.json if this pyarrow has it."""

    type = _JSON_TEXT

    def value(self, body: bytes) -> str:
        """The text. Raises BodyError if it is not one JSON value (RFC 8259), or a reader could see another in it."""
        text = text_of(body)
        parse(text)
        return text


class JsonBody:
    """JSON with a JSON Schema."""

    def __init__(self, schema: Any, where: str) -> None:
        """``schema``: the parsed document; ``where``: its setting, for errors. Raises SettingsError."""
        try:
            self.part = _Compiler(schema, where).part(schema, "the body", ())
        except RecursionError:
            raise SettingsError("the JSON Schema is nested too deeply", where, "set a flatter one") from None
        self.type = self.part.type
        self._decoder = _SOURCES if _has_text(self.part) else _QUICK

    def value(self, body: bytes) -> Any:
        """The value by the schema's types; what the schema does not name is left out. Raises BodyError."""
        value = parse(text_of(body), self._decoder)
        if value is None and not self.part.nullable:
            raise BodyError("is null")
        return self.part.convert(value)


class _Source(float):
    """A number with its text, which a double need not have all digits of."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


def parse(text: str, decoder: json.JSONDecoder | None = None) -> Any:
    """The value of JSON text.

    Raises BodyError also for what parsers read differently: duplicate keys, NaN, numbers beyond a double, lone
    surrogates, and more than `MAX_DEPTH` levels.
    """
    try:
        value = (_CAREFUL if _LARGE.search(text) else decoder or _QUICK).decode(text)
    except RecursionError:
        raise BodyError(TOO_DEEP) from None
    except ValueError:  # JSONDecodeError, which quotes the body
        raise BodyError("is not JSON") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _is_deep(value):
        raise BodyError(TOO_DEEP)
    if _SURROGATE.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BodyError("has half of a surrogate pair") from None
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BodyError("has a duplicate key")
    return found


def _real(text: str) -> _Source:
    value = _Source(text)
    if value in (_INFINITY, -_INFINITY) or len(text) > MAX_NUMBER:
        raise BodyError(_BEYOND)
    return value


def _whole(text: str) -> int:
    _real(text)
    return int(text)


def _constant(_: str) -> NoReturn:
    raise BodyError("has NaN or Infinity, which are not JSON")


_QUICK = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
_SOURCES = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_float=_Source)
_CAREFUL = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant, parse_int=_whole, parse_float=_real)


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        parts = (each.values() if isinstance(each, dict) else each for each in level)
        level = [part for each in parts for part in each if isinstance(part, dict | list)]
    return bool(level)


@dataclass(frozen=True)
class Part:
    """A part of a schema.

    ``of``: makes its values, given no null; ``kind``: string, integer, number, boolean, array, object (with known
    properties), map, any; ``below``: the parts of an object by name, or that of all items or entries by "".
    """

    type: pa.DataType
    of: Callable[[Any], Any]
    kind: str = "any"
    below: Mapping[str, Part] = field(default_factory=dict)
    nullable: bool = False

    def convert(self, value: Any) -> Any:
        """A parsed value, or null, as `type` takes it. Raises BodyError."""
        return None if value is None else self.of(value)


def _json_text(value: Any) -> str:
    """A parsed part as JSON text, its numbers as they were written."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{_dumps(key)}:{_json_text(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_json_text, value)) + "]"
    return value.text if isinstance(value, _Source) else _dumps(value)


_dumps = json.JSONEncoder(ensure_ascii=False).encode


def _has_text(part: Part) -> bool:
    """Whether a part, or one below it, is JSON text."""
    return any(map(_has_text, part.below.values())) if part.below else part.kind in ("any", "map")


_ANY = Part(pa.string(), _json_text, nullable=True)


def _checked(kind: type, place: str, noun: str) -> Callable[[Any], Any]:
    def of(value: Any) -> Any:
        if type(value) is not kind:
            raise BodyError(f"{place} is not {noun}")
        return value

    return of


def _integer(place: str) -> Callable[[Any], int]:
    def of(value: Any) -> int:
        if type(value) is not int:
            raise BodyError(f"{place} is not an integer")
        if value not in _LONG:
            raise BodyError(f"{place} is beyond 64 bits")
        return value

    return of


def _number(place: str) -> Callable[[Any], float]:
    def of(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BodyError(f"{place} is not a number")
        return float(value)

    return of


_SCALARS: Mapping[str, tuple[pa.DataType, Callable[[str], Callable[[Any], Any]]]] = {
    "string": (pa.string(), lambda place: _checked(str, place, "a string")),
    "boolean": (pa.bool_(), lambda place: _checked(bool, place, "a boolean")),
    "integer": (pa.int64(), _integer),
    "number": (pa.float64(), _number),
}


class _Compiler:
    """Makes the parts of a JSON Schema."""

    def __init__(self, root: Any, where: str) -> None:
        self._root, self._where, self._parts = root, where, 0

    def part(self, schema: Any, place: str, refs: tuple[str, ...]) -> Part:
        """The part that a schema describes. ``place``: its name in errors; ``refs``: what it is within."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise self._error(f"has more than {_MAX_PARTS} parts", "type only what queries need")
        if not isinstance(schema, dict):
            if isinstance(schema, bool):
                return _ANY
            raise self._error("is not a JSON Schema", "write a mapping with a type, such as {type: object, ...}")
        composed = self._composed(schema, refs) if isinstance(schema.get("properties", {}), dict) else {}
        if composed and ("properties" in schema or "type" in schema):
            schema = {key: each for key, each in schema.items() if key not in ("$ref", "allOf")}
            schema["properties"] = composed
        if "$ref" in schema:
            ref = schema["$ref"]
            return _ANY if ref in refs else self.part(self._resolved(ref), place, (*refs, ref))
        only = self._only(schema)
        if only is not None:
            found = self.part(only, place, refs)
            return found if "allOf" in schema else replace(found, nullable=True)
        kinds = schema.get("type", _told(schema))
        kinds = list(kinds) if isinstance(kinds, list) else [kinds]
        some = [kind for kind in kinds if kind != "null"]
        if len(some) != 1 or some[0] is None:
            return _ANY
        return replace(self._typed(some[0], schema, place, refs), nullable=len(some) < len(kinds))

    def _typed(self, kind: Any, schema: Mapping[str, Any], place: str, refs: tuple[str, ...]) -> Part:
        if isinstance(kind, str) and kind in _SCALARS:
            scalar, of = _SCALARS[kind]
            return Part(scalar, of(place), kind)
        if kind == "array":
            return self._array(schema, place, refs)
        if kind == "object":
            return self._object(schema, place, refs)
        raise self._error("has a type that is not of JSON Schema", "string, integer, number, boolean, array or object")

    def _array(self, schema: Mapping[str, Any], place: str, refs: tuple[str, ...]) -> Part:
        items = schema.get("items", True)
        item = _ANY if isinstance(items, list) or "prefixItems" in schema else self.part(items, f"{place}[]", refs)
        is_list, columns = _checked(list, place, "an array"), width(item.type)

        def of(value: Any) -> list[Any]:
            take(len(is_list(value)) * columns)
            return [item.convert(each) for each in value]

        return Part(pa.list_(item.type), of, "array", {"": item})

    def _object(self, schema: Mapping[str, Any], place: str, refs: tuple[str, ...]) -> Part:
        is_object = _checked(dict, place, "an object")
        properties, more = schema.get("properties"), schema.get("additionalProperties")
        if properties:
            if not isinstance(properties, dict):
                raise self._error("has properties that are not a mapping", "write properties: {NAME: {type: ...}}")
            inside = "" if place == "the body" else f"{place}."
            parts = {name: self.part(each, f"{inside}{name}", refs) for name, each in properties.items()}

            def struct(value: Any) -> dict[str, Any]:
                found = is_object(value)
                # Without those that are missing: of an array of many {} the dicts would take far more than the body.
                return {name: part.convert(found[name]) for name, part in parts.items() if name in found}

            kind = pa.struct([pa.field(name, part.type) for name, part in parts.items()])
            return Part(kind, struct, "object", parts)
        if isinstance(more, dict):
            each = self.part(more, f"{place}{{}}", refs)
            columns = 1 + width(each.type)

            def pairs(value: Any) -> list[tuple[str, Any]]:
                take(len(is_object(value)) * columns)
                return [(key, each.convert(one)) for key, one in value.items()]

            return Part(pa.map_(pa.string(), each.type), pairs, "map", {"": each})
        return Part(pa.string(), lambda value: _json_text(is_object(value)), "map")

    def _composed(self, schema: Any, refs: tuple[str, ...]) -> dict[str, Any]:
        """The properties of an object, and of those that it is composed of by allOf or a $ref beside its own."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise self._error(f"has more than {_MAX_PARTS} parts", "type only what queries need")
        found: dict[str, Any] = {}
        if not isinstance(schema, dict):
            return found
        if "$ref" in schema and schema["$ref"] not in refs:
            found |= self._composed(self._resolved(schema["$ref"]), (*refs, schema["$ref"]))
        for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            found |= self._composed(each, refs)
        own = schema.get("properties")
        if isinstance(own, dict):  # one that only narrows what the others have tells no type
            found |= {name: each for name, each in own.items() if name not in found or _tells(each)}
        return found

    def _only(self, schema: Mapping[str, Any]) -> Any:
        """The one schema of an anyOf, oneOf or allOf, null left out; None: there is none, or several."""
        for key in ("anyOf", "oneOf", "allOf"):
            if key in schema and "type" not in schema:
                several = schema[key] if isinstance(schema[key], list) else []
                some = [each for each in several if not (isinstance(each, dict) and each.get("type") == "null")]
                return some[0] if len(some) == 1 else True
        return None

    def _resolved(self, ref: Any) -> Any:
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise self._error("has a $ref to another document", "put what it refers to under $defs, in this one")
        found, (anchor, *parts) = self._root, unquote(ref[1:]).split("/")
        if anchor:
            raise self._error("has a $ref to an anchor", "write it as #/$defs/NAME")
        for part in parts:
            name = part.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or name not in found:
                raise self._error("has a $ref to what it does not have", "write it as #/$defs/NAME")
            found = found[name]
        return found

    def _error(self, what: str, fix: str) -> SettingsError:
        return SettingsError(f"the JSON Schema {what}", self._where, fix)


#: keywords that tell a type
_TELLING = frozenset({"type", "$ref", "properties", "allOf", "anyOf", "oneOf", "enum", "const"})


def _tells(schema: Any) -> bool:
    return isinstance(schema, dict) and not _TELLING.isdisjoint(schema)


def _told(schema: Mapping[str, Any]) -> str | None:
    """The type of a schema that does not state it."""
    if "properties" in schema:
        return "object"
    values = schema.get("enum", [schema["const"]] if "const" in schema else [])
    texts = isinstance(values, list) and bool(values) and all(isinstance(value, str) for value in values)
    return "string" if texts else None
