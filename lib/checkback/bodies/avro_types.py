"""The parts of a reader's Avro schema: their Arrow types, logical types and defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa

from checkback.bodies.decoder import BodyError
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_UTC, _LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")
#: days and us of the years 1 to 9999: Python and Spark show no others
_DAYS = range(-719_162, 2_932_897)
_MICROS = range(-62_135_596_800_000_000, 253_402_300_800_000_000)
_MAX_PRECISION = 38
_EXACT = Context(prec=_MAX_PRECISION)
#: of a schema, each time that a name refers to it counted
MAX_PARTS = 10_000
RECORDS = frozenset({"record", "error"})
_COMPLEX = RECORDS | {"enum", "fixed", "array", "map"}
PRIMITIVE = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
}


class InvalidError(Exception):
    """What is wrong with a schema."""


@dataclass(frozen=True)
class Logical:
    """A logical type: ``name``; of times ``unit`` (us; 0: no column shows it), of decimals ``precision``, ``scale``."""

    name: str
    unit: int = 0
    precision: int = 0
    scale: int = 0


@dataclass(frozen=True)
class Part:
    """A part of the reader's schema.

    ``kind``: Avro's type; ``schema``: as fastavro parses it; ``below``: by name a record's fields and the members of a
    union (of several types beside null), by "" items and values; ``defaults``: the values of fields that a writer may
    lack.
    """

    kind: str
    type: pa.DataType
    schema: Any = None
    below: Mapping[str, Part] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    logical: Logical | None = None
    nullable: bool = False


def part_of(schema: Any, named: Mapping[str, Any], where: str) -> Part:
    """The part of a schema; ``named``: the types that names refer to. Raises SettingsError, InvalidError."""
    return _Compiler(named, where).part(schema, ())


def resolved(schema: Any, named: Mapping[str, Any]) -> tuple[str, Any]:
    """A type, which is no union, and its schema: names and types of types followed."""
    while True:
        if isinstance(schema, str):
            if schema in PRIMITIVE:
                return schema, schema
            schema = named[schema]
        elif isinstance(schema["type"], str) and (schema["type"] in PRIMITIVE or schema["type"] in _COMPLEX):
            return schema["type"], schema
        else:
            schema = schema["type"]


class _Compiler:
    """Makes the parts of the reader's schema."""

    def __init__(self, named: Mapping[str, Any], where: str) -> None:
        self._named, self._where, self._parts = named, where, 0

    def part(self, schema: Any, within: tuple[str, ...]) -> Part:
        """The part that a schema describes. ``within``: the named types around it."""
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise SettingsError(f"the Avro schema has more than {MAX_PARTS} parts", self._where, "set a smaller one")
        if isinstance(schema, list):
            return self._union(schema, within)
        kind, schema = resolved(schema, self._named)
        if kind in RECORDS:
            return self._record(schema, within)
        if kind == "array":
            item = self.part(schema["items"], within)
            return Part(kind, pa.list_(item.type), schema, {"": item})
        if kind == "map":
            item = self.part(schema["values"], within)
            return Part(kind, pa.map_(pa.string(), item.type), schema, {"": item})
        logical = logical_of(kind, schema)
        plain = PRIMITIVE.get(kind, pa.string() if kind == "enum" else pa.binary())
        shown = None if logical is None else _shown(logical)
        return Part(kind, plain if shown is None else shown, schema, logical=logical)

    def _record(self, schema: Mapping[str, Any], within: tuple[str, ...]) -> Part:
        name = schema["name"]
        if name in within:
            what = f"the Avro schema has {name} within itself, which no column can hold"
            raise SettingsError(what, self._where, "set schema to one without it: its fields are then left out")
        parts = {each["name"]: self.part(each["type"], (*within, name)) for each in schema["fields"]}
        given = {each["name"]: each["default"] for each in schema["fields"] if "default" in each}
        defaults = {each: _default(parts[each], value) for each, value in given.items()}
        return Part(schema["type"], _struct(parts), schema, parts, defaults)

    def _union(self, branches: Sequence[Any], within: tuple[str, ...]) -> Part:
        """A nullable type, or a struct with a field for each type, named as it is; at most one is not null."""
        parts = [self.part(each, within) for each in branches if each != "null"]
        nullable = len(parts) < len(branches)
        if not parts:
            return Part("null", pa.null())
        if len(parts) == 1:
            return replace(parts[0], nullable=nullable)
        plain = {each.kind for each in parts if each.logical is None}
        names = [_name(each) for each in parts]
        members: dict[str, Part] = {}
        for part, name in zip(parts, names, strict=True):
            wider = {"int": "long", "float": "double"}.get(part.kind)
            if part.kind in plain and wider in plain:
                continue  # its values are the wider one's
            field_name = name if names.count(name) == 1 else _full_name(part).replace(".", "_")
            while field_name in members:
                field_name += "_"
            members[field_name] = part
        return Part("union", _struct(members), below=members, nullable=nullable)


def _struct(parts: Mapping[str, Part]) -> pa.DataType:
    return pa.struct([pa.field(name, part.type) for name, part in parts.items()])


def _full_name(part: Part) -> str:
    return str(part.schema["name"]) if isinstance(part.schema, dict) and "name" in part.schema else part.kind


def _name(part: Part) -> str:
    """What a union's field is named after: the type, or a named type's name without its namespace."""
    return _full_name(part).rpartition(".")[2]


_UNFIT = "has a default that does not fit its type"
_INTEGERS = {"int": range(-(1 << 31), 1 << 31), "long": range(-(1 << 63), 1 << 63)}


def _default(part: Part, value: Any) -> Any:
    """A schema's default, which is JSON, as `Part.type` takes it. Of a union's types it is of the first that it fits.

    Raises InvalidError.
    """
    match part.kind, value:
        case _, None if part.nullable or part.kind == "null":
            made = None
        case "union", _:
            made = _first_default(part, value)
        case "record" | "error", dict():
            given = {name: _default(part.below[name], each) for name, each in value.items() if name in part.below}
            made = dict(part.defaults) | given
            if made.keys() != part.below.keys():
                raise InvalidError("has a default that lacks a field")
        case "array", list():
            made = [_default(part.below[""], each) for each in value]
        case "map", dict():
            made = [(key, _default(part.below[""], each)) for key, each in value.items()]
        case _:
            made = _plain_default(part, value)
    return made


def _first_default(part: Part, value: Any) -> Any:
    for name, member in part.below.items():
        try:
            return {name: _default(member, value)}
        except InvalidError:  # noqa: PERF203
            continue
    raise InvalidError(_UNFIT)


def _plain_default(part: Part, value: Any) -> Any:
    match part.kind, value:
        case (("int" | "long"), int()) if value in _INTEGERS[part.kind] and not isinstance(value, bool):
            raw: Any = value
        case (("float" | "double"), int() | float()) if not isinstance(value, bool):
            raw = float(value)
        case ("boolean", bool()) | ("string", str()):
            raw = value
        case "enum", str() if value in part.schema["symbols"]:
            raw = value
        case (("bytes" | "fixed"), str()) if all(ord(each) < 256 for each in value):
            raw = value.encode("iso-8859-1")
            if part.kind == "fixed" and len(raw) != part.schema["size"]:
                raise InvalidError(_UNFIT)
        case _:
            raise InvalidError(_UNFIT)
    of = None if part.logical is None else interpretation(part.logical, part)
    try:
        return raw if of is None else of(raw)
    except BodyError as error:
        raise InvalidError(f"has a default that {error}") from None


_TIMES = {
    "time-millis": ("int", 0),
    "time-micros": ("long", 0),
    "timestamp-millis": ("long", 1000),
    "timestamp-micros": ("long", 1),
    "timestamp-nanos": ("long", 0),
    "local-timestamp-millis": ("long", 1000),
    "local-timestamp-micros": ("long", 1),
    "local-timestamp-nanos": ("long", 0),
}


def logical_of(kind: str, schema: Any) -> Logical | None:
    """The logical type; None: it has none, or one that is not Avro's or not valid, which Avro wants ignored."""
    name = schema.get("logicalType") if isinstance(schema, dict) else None
    if name == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = schema.get("precision"), schema.get("scale", 0)
        valid = isinstance(precision, int) and isinstance(scale, int) and 0 <= scale <= precision and precision > 0
        return Logical("decimal", 0, precision, scale) if valid else None
    if name == "uuid" and (kind == "string" or (kind == "fixed" and schema["size"] == 16)):
        return Logical("uuid")
    if name == "date" and kind == "int":
        return Logical("date")
    if name == "duration" and kind == "fixed" and schema["size"] == 12:
        return Logical("duration")
    if isinstance(name, str) and name in _TIMES and _TIMES[name][0] == kind:
        return Logical(name, _TIMES[name][1])
    return None


def _shown(logical: Logical) -> pa.DataType | None:
    """The Arrow type of a logical type; None: that of the underlying type."""
    if logical.name == "decimal":
        return pa.decimal128(logical.precision, logical.scale) if logical.precision <= _MAX_PRECISION else None
    if logical.unit:
        return _LOCAL if logical.name.startswith("local") else _UTC
    return {"date": pa.date32(), "uuid": pa.string()}.get(logical.name)


def interpretation(written: Logical, part: Part) -> Callable[[Any], Any] | None:
    """What makes values of a part of the underlying type's that were written as a logical type; None: they are it.

    Exact: a time of another unit, a decimal of fewer fractional digits. Raises InvalidError for another logical type.
    """
    own = part.logical
    if own is None:
        return None
    shown = _shown(own)
    same = written.name == own.name or (written.unit and own.unit and _shown(written) == shown)
    rescaled = own.scale - written.scale
    if not same or rescaled < 0 or (rescaled and shown is None):
        raise InvalidError("was written with another logical type")
    if own.name == "decimal" and shown is not None:
        return _decimal(own.precision, own.scale, 10**rescaled)
    if own.name == "uuid" and part.kind == "fixed":
        return lambda value: str(UUID(bytes=value))
    if own.name == "date":
        return _within(_DAYS, 1, "a date")
    return _within(_MICROS, written.unit, "a timestamp") if written.unit else None


def _within(values: range, unit: int, noun: str) -> Callable[[Any], int]:
    def of(value: int) -> int:
        if value * unit not in values:
            raise BodyError(f"has {noun} outside of the years 1 to 9999")
        return value * unit

    return of


def _decimal(precision: int, scale: int, factor: int) -> Callable[[Any], Decimal]:
    limit = 10**precision

    def of(value: bytes) -> Decimal:
        unscaled = int.from_bytes(value, "big", signed=True) * factor
        if not -limit < unscaled < limit:
            raise BodyError(f"has a decimal of more than {precision} digits")
        return Decimal(unscaled).scaleb(-scale, _EXACT)

    return of
