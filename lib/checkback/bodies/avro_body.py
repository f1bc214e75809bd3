"""Avro bodies: the Arrow type of a schema, and values that fastavro resolves from the writer's schema to it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from decimal import Context, Decimal
from io import BytesIO
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from checkback.bodies.avro_encoding import Check, check_encoding, checker
from checkback.bodies.decoder import BodyError
from checkback.bodies.registry import Registered, Registry, split_header
from checkback.errors import SettingsError, missing_module

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_UTC = pa.timestamp("us", "UTC")
#: days and us of the years 1 to 9999: Python and Spark show no others
_DAYS = range(-719_162, 2_932_897)
_MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_MAX_PRECISION = 38
_EXACT = Context(prec=_MAX_PRECISION)
#: of a schema, each time that a name refers to it counted
_MAX_PARTS = 10_000
_COMPLEX = frozenset({"record", "error", "enum", "fixed", "array", "map"})
_PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


@dataclass(frozen=True)
class _Schema:
    """A parsed schema without logical types, which fastavro rounds, and the check of its encoding."""

    plain: Any
    check: Check


@dataclass(frozen=True)
class _Part:
    """A part of the reader's schema: its Arrow type, and what makes its values, given no null."""

    type: pa.DataType
    of: Callable[[Any], Any]

    def convert(self, value: Any) -> Any:
        if isinstance(value, tuple):  # of a named type, where writer or reader has a union
            value = value[1]
        return None if value is None else self.of(value)


class AvroBody:
    """One value of an Avro schema, without a container's header; with a registry, after the id of its schema."""

    def __init__(self, schema: Registered, where: str, registry: Registry | None = None) -> None:
        """``schema``: the reader's. Raises SettingsError if it is not valid, or fastavro is missing."""
        try:
            import fastavro
        except ImportError as error:
            raise missing_module(error, "avro", where) from error
        self._read, self._registry = fastavro.schemaless_reader, registry
        self._unresolved = fastavro.read.SchemaResolutionError
        try:
            parsed, named = _parsed(schema)
            self._reader = _schema(parsed, named)
            self._part = _Compiler(named, where).part(parsed, ())
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - fastavro lets pass some that are not valid
            what = str(error) if isinstance(error, _InvalidError) else f"is not valid: {type(error).__name__}"
            raise SettingsError(f"the Avro schema {what}", where, "correct the schema") from None
        self.type = self._part.type
        self._text = schema
        self._writers: dict[int, _Schema | str] = {}

    def value(self, body: bytes) -> Any:
        """The value as the reader's schema has it. Raises BodyError, StorageError."""
        writer = self._reader
        if self._registry is not None:
            number, body = split_header(body)
            writer = self._writer(number)
        check_encoding(writer.check, body)
        reader = None if writer is self._reader else self._reader.plain
        try:
            value = self._read(BytesIO(body), writer.plain, reader, return_named_type=True)
        except UnicodeDecodeError:
            raise BodyError("has a string that is not UTF-8") from None
        except self._unresolved:
            raise BodyError("is of a schema that does not resolve to the reader's") from None
        return self._part.convert(value)

    def _writer(self, number: int) -> _Schema:
        if number not in self._writers and self._registry is not None:
            registered = self._registry.schema(number)
            if registered == self._text:
                self._writers[number] = self._reader
            else:
                try:
                    self._writers[number] = _schema(*_parsed(registered))
                except _InvalidError as error:
                    self._writers[number] = f"names schema {number}, which as an Avro schema {error}"
        found = self._writers[number]
        if isinstance(found, str):
            raise BodyError(found)
        return found


class _InvalidError(Exception):
    """What is wrong with a schema."""


def _parsed(schema: Registered) -> tuple[Any, dict[str, Any]]:
    """The schema with full names, and the types that they refer to. Raises _InvalidError."""
    import fastavro

    if schema.kind != "AVRO":
        raise _InvalidError(f"is of type {schema.kind}")
    named: dict[str, Any] = {}
    try:
        for _, text in schema.references:
            fastavro.parse_schema(_document(text), named_schemas=named)
        parsed = fastavro.parse_schema(_document(schema.text), named_schemas=named)
    except _InvalidError:
        raise
    except Exception as error:  # noqa: BLE001 - what it raises for an invalid schema is not part of its API
        raise _InvalidError(f"is not valid: {error}") from None
    return parsed, named


def _document(text: str) -> Any:
    if text in _PRIMITIVE:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise _InvalidError("is not JSON") from None


def _schema(parsed: Any, named: Mapping[str, Any]) -> _Schema:
    import fastavro

    try:
        return _Schema(fastavro.parse_schema(_Plain(named).of(parsed)), checker(parsed, named))
    except Exception as error:  # noqa: BLE001 - likewise
        raise _InvalidError(f"is not valid: {error}") from None


class _Plain:
    """Copies a schema without logical types; each named type is defined where it is named first."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._seen = named, set[str]()

    def of(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return [self.of(each) for each in schema]
        if isinstance(schema, str):
            return schema if schema in _PRIMITIVE or schema in self._seen else self.of(self._named[schema])
        kind, copy = schema["type"], _bare(schema)
        if "name" in schema:
            if schema["name"] in self._seen:
                return schema["name"]
            self._seen.add(schema["name"])
        if "fields" in schema:
            copy["fields"] = [{**field, "type": self.of(field["type"])} for field in schema["fields"]]
        for key in ("items", "values"):
            if kind == {"items": "array", "values": "map"}[key]:
                copy[key] = self.of(schema[key])
        return copy if kind in _COMPLEX else self.of(kind)


def _bare(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A type without what fastavro and logical types add."""
    return {
        key: value
        for key, value in schema.items()
        if not key.startswith("__") and key not in ("logicalType", "precision", "scale")
    }


class _Compiler:
    """Makes the parts of the reader's schema."""

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named, self._where, self._parts = named, where, 0

    def part(self, schema: Any, within: tuple[str, ...]) -> _Part:
        """The part that a schema describes. ``within``: the named types around it. Raises SettingsError."""
        self._parts += 1
        if self._parts > _MAX_PARTS:
            raise SettingsError(f"the Avro schema has more than {_MAX_PARTS} parts", self._where, "set a smaller one")
        if isinstance(schema, list):
            return self._union(schema, within)
        if isinstance(schema, str):
            return self._of_name(schema, within)
        kind = schema["type"]
        made = {
            "record": self._record,
            "error": self._record,
            "array": self._array,
            "map": self._map,
            "enum": lambda *_: _Part(pa.string(), _same),
            "fixed": lambda *_: _Part(pa.binary(), _bytes),
        }
        logical = _logical(schema)
        if logical is not None:
            return logical
        return made[kind](schema, within) if isinstance(kind, str) and kind in made else self.part(kind, within)

    def _of_name(self, name: str, within: tuple[str, ...]) -> _Part:
        if name in _PRIMITIVE:
            return _Part(_PRIMITIVE[name], _bytes if name == "bytes" else _same)
        if name in within:
            what = f"the Avro schema has {name} within itself, which no column can hold"
            raise SettingsError(what, self._where, "set schema to one without it: its fields are then left out")
        return self.part(self._named[name], within)

    def _array(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> _Part:
        item = self.part(schema["items"], within)
        return _Part(pa.list_(item.type), lambda value: [item.convert(each) for each in value])

    def _map(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> _Part:
        item = self.part(schema["values"], within)

        def pairs(value: Any) -> list[tuple[str, Any]]:
            return [(key, item.convert(each)) for key, each in value.items()]

        return _Part(pa.map_(pa.string(), item.type), pairs)

    def _record(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> _Part:
        within = (*within, schema["name"])
        parts = {field["name"]: self.part(field["type"], within) for field in schema["fields"]}
        return _struct(parts, lambda value: {name: part.convert(value[name]) for name, part in parts.items()})

    def _union(self, branches: Sequence[Any], within: tuple[str, ...]) -> _Part:
        """A nullable type, or a struct with a field for each type, named as it is; at most one is not null."""
        some = [self._resolved(each) for each in branches if each != "null"]
        if not some:
            return _Part(pa.null(), _same)
        if len(some) == 1:
            return self.part(some[0], within)
        names = [_name(each) for each in some]
        members: dict[str, tuple[Any, _Part]] = {}
        for branch, name in zip(some, names, strict=True):
            wider = {"int": "long", "float": "double"}.get(name)  # of a union of both Python's value tells none
            if wider not in names:
                unique = name if names.count(name) == 1 else branch["name"].replace(".", "_")
                members[unique] = branch, self.part(branch, within)

        def of(value: Any) -> dict[str, Any]:
            name = _member(value, members)
            return {
                each: part.of(value[1] if isinstance(value, tuple) else value) if each == name else None
                for each, (_, part) in members.items()
            }

        union = _struct({name: part for name, (_, part) in members.items()}, of)
        return _Union(union.type, union.of)

    def _resolved(self, branch: Any) -> Any:
        if isinstance(branch, str):
            return branch if branch in _PRIMITIVE else self._named[branch]
        return branch


class _Union(_Part):
    def convert(self, value: Any) -> Any:
        """The struct; the name of the value's type, if it is there, tells the field."""
        return None if value is None else self.of(value)


def _struct(parts: Mapping[str, _Part], of: Callable[[Any], Any]) -> _Part:
    return _Part(pa.struct([pa.field(name, part.type) for name, part in parts.items()]), of)


def _name(branch: Any) -> str:
    """What a union's field is named after: the type, or a named type's name without its namespace."""
    if isinstance(branch, str):
        return branch
    return str(branch["name"]).rpartition(".")[2] if "name" in branch else str(branch["type"])


_KINDS: Mapping[type, tuple[str, ...]] = {
    bool: ("boolean",),
    int: ("long", "int", "double", "float"),
    float: ("double", "float"),
    str: ("string", "enum", "bytes", "fixed"),
    bytes: ("bytes", "fixed", "string"),
    list: ("array",),
    dict: ("record", "error", "map"),
}


def _member(value: Any, members: Mapping[str, tuple[Any, _Part]]) -> str:
    """The field of a union that a value belongs to. Raises BodyError."""
    if isinstance(value, tuple):
        name, value = value
        for field, (branch, _) in members.items():
            if isinstance(branch, dict) and branch.get("name") == name:
                return field
    for kind in _KINDS.get(type(value), ()):
        for field, (branch, _) in members.items():
            if (branch if isinstance(branch, str) else branch["type"]) == kind and _has_fields(branch, value):
                return field
    raise BodyError("has a union whose branch is not the reader's")


def _has_fields(branch: Any, value: Any) -> bool:
    """Whether a record has the fields of a value; anything else is as good as its type tells."""
    if not isinstance(branch, dict) or "fields" not in branch:
        return True
    return {field["name"] for field in branch["fields"]} == set(value)


def _same(value: Any) -> Any:
    return value


def _bytes(value: Any) -> bytes:
    """Bytes; a default of a schema is text of their code points."""
    return value.encode("iso-8859-1") if isinstance(value, str) else value


def _logical(schema: Mapping[str, Any]) -> _Part | None:
    """The part of a logical type; None: its underlying type, as Avro wants it for others and invalid ones."""
    name, kind = schema.get("logicalType"), schema["type"]
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision <= _MAX_PRECISION
        return _Part(pa.decimal128(precision, scale), _decimal(precision, scale)) if valid and precision else None
    if name == "uuid" and (kind == "string" or (kind == "fixed" and schema["size"] == 16)):
        return _Part(pa.string(), lambda value: value if kind == "string" else str(UUID(bytes=_bytes(value))))
    if name == "date" and kind == "int":
        return _Part(pa.date32(), _within(_DAYS, 1, "a date"))
    if kind == "long" and name in _TIMES:
        unit, zone = _TIMES[name]
        return _Part(zone, _within(_MICROS, unit, "a timestamp"))
    return None


_TIMES = {
    "timestamp-millis": (1000, _UTC),
    "timestamp-micros": (1, _UTC),
    "local-timestamp-millis": (1000, pa.timestamp("us")),
    "local-timestamp-micros": (1, pa.timestamp("us")),
}


def _within(values: range, unit: int, noun: str) -> Callable[[Any], int]:
    def of(value: int) -> int:
        if value * unit not in values:
            raise BodyError(f"has {noun} outside of the years 1 to 9999")
        return value * unit

    return of


def _decimal(precision: int, scale: int) -> Callable[[Any], Decimal]:
    limit = 10**precision

    def of(value: Any) -> Decimal:
        unscaled = int.from_bytes(_bytes(value), "big", signed=True)
        if not -limit < unscaled < limit:
            raise BodyError(f"has a decimal of more than {precision} digits")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return of
