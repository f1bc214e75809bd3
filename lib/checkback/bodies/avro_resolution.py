"""Reads bytes of a writer's Avro schema as values of a reader's, to the last byte (Avro 1.12, Schema Resolution).

Stricter than libraries where those trust what they read: the branch -1 of a union, an integer of 11 bytes, an array of
a billion nulls in eight bytes are refused. A record or enum is told by its name alone, never by its fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any

import numpy as np

from checkback.bodies.avro_types import MAX_PARTS, RECORDS, InvalidError, Part, interpretation, logical_of, resolved
from checkback.bodies.decoder import MAX_DEPTH, TOO_DEEP, BodyError, take, width

_INT = range(-(1 << 31), 1 << 31)
_FLOAT, _DOUBLE = Struct("<f"), Struct("<d")
_UNRESOLVED = "is of a schema that does not resolve to the reader's"
#: by type of the writer the reader's that it widens to; of a union's the first of these
_WIDER = {
    "int": ("long", "double", "float"),
    "long": ("double", "float"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
#: bytes of types whose values may be skipped unseen
_SIZES = {"null": 0, "float": 4, "double": 8}


class Input:
    """The bytes of a body, and how far they are read. Its methods raise BodyError, IndexError beyond the end."""

    __slots__ = ("at", "body")

    def __init__(self, body: bytes) -> None:
        self.body, self.at = body, 0

    @staticmethod
    def short() -> BodyError:
        """The error of bytes that end too early."""
        return BodyError("ends within a value")

    def long(self) -> int:
        """An integer of 64 bits."""
        body, at = self.body, self.at
        value = shift = 0
        while True:
            byte = body[at]
            at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                break
            shift += 7
            if shift > 63:
                raise BodyError("has an integer beyond 64 bits")
        if value >> 64:
            raise BodyError("has an integer beyond 64 bits")
        self.at = at
        return (value >> 1) ^ -(value & 1)

    def short_long(self) -> int:
        """An integer of 32 bits."""
        value = self.long()
        if value not in _INT:
            raise BodyError("has an int beyond 32 bits")
        return value

    def boolean(self) -> bool:
        """A boolean."""
        byte = self.body[self.at]
        if byte > 1:
            raise BodyError("has a boolean that is neither 0 nor 1")
        self.at += 1
        return byte == 1

    def skip(self, size: int) -> int:
        """Where so many bytes begin, which are then read."""
        at = self.at
        if not 0 <= size <= len(self.body) - at:
            raise self.short()
        self.at = at + size
        return at

    def bytes(self) -> bytes:
        """Bytes with their length."""
        at = self.skip(self.long())
        return self.body[at : self.at]

    def branch(self, of: int, noun: str) -> int:
        """The place of a union's branch or an enum's symbol."""
        place = self.long()
        if not 0 <= place < of:
            raise BodyError(f"has {noun}")
        return place


#: reads a value at a depth
Read = Callable[[Input, int], Any]

_READS: Mapping[str, Read] = {
    "null": lambda *_: None,
    "int": lambda given, _: given.short_long(),
    "long": lambda given, _: given.long(),
    "boolean": lambda given, _: given.boolean(),
    "bytes": lambda given, _: given.bytes(),
    "string": lambda given, _: given.bytes().decode(),
    "float": lambda given, _: _FLOAT.unpack_from(given.body, given.skip(4))[0],
    "double": lambda given, _: _DOUBLE.unpack_from(given.body, given.skip(8))[0],
}
_NO_BRANCH, _NO_SYMBOL = "a union without such a branch", "an enum without such a symbol"


def resolution(writer: Any, named: Mapping[str, Any], part: Part) -> Read:
    """Reads values of the writer's schema as the part's; ``named``: the types that the writer's names refer to.

    What does not resolve is a BodyError when a value comes to it. Raises InvalidError if the schema is too large.
    """
    return _Resolution(named).of(writer, part)


class _Resolution:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named, self._parts = named, 0
        self._skips = _Skips(named)

    def of(self, writer: Any, part: Part) -> Read:
        """Reads a part of the writer's schema as one of the reader's."""
        self._parts += 1
        if self._parts > 10 * MAX_PARTS:
            raise InvalidError("is too large")
        if isinstance(writer, list):
            return _union([self.of(each, part) for each in writer])
        kind, schema = resolved(writer, self._named)
        if kind == "null" or part.kind == "null":
            return _READS["null"] if kind == "null" and (part.nullable or part.kind == kind) else _never(_UNRESOLVED)
        if part.kind == "union":
            name = _member(kind, schema, part.below)
            return _never(_UNRESOLVED) if name is None else _as_member(name, self.of(writer, part.below[name]))
        return self._one(kind, schema, part)

    def _one(self, kind: str, schema: Any, part: Part) -> Read:
        if kind in RECORDS and part.kind in RECORDS and _is_named(schema, part.schema):
            return self._record(schema, part)
        if kind == part.kind == "array":
            items = _blocks(self.of(schema["items"], part.below[""]), width(part.below[""].type))
            return lambda given, depth: list(items(given, depth))
        if kind == part.kind == "map":
            return self._map(self.of(schema["values"], part.below[""]), width(part.type.item_type))
        if kind == part.kind == "enum" and _is_named(schema, part.schema):
            return _enum(schema["symbols"], part.schema)
        read = self._plain(kind, schema, part)
        return _never(_UNRESOLVED) if read is None else _interpreted(read, kind, schema, part)

    def _plain(self, kind: str, schema: Any, part: Part) -> Read | None:
        if kind == part.kind == "fixed":
            size = schema["size"]
            fits = size == part.schema["size"] and _is_named(schema, part.schema)
            return (lambda given, _: given.body[given.skip(size) : given.at]) if fits else None
        if kind == part.kind:
            return _READS.get(kind)
        if part.kind not in _WIDER.get(kind, ()):
            return None
        if part.kind in ("float", "double"):
            read, of = _READS[kind], float if part.kind == "double" else _single
            return lambda given, depth: of(read(given, depth))
        return _READS["string" if part.kind == "string" else "bytes" if kind == "string" else kind]

    def _map(self, value: Read, columns: int) -> Read:
        def pair(given: Input, depth: int) -> tuple[str, Any]:
            return given.bytes().decode(), value(given, depth)

        pairs = _blocks(pair, 1 + columns)
        return lambda given, depth: list(dict(pairs(given, depth)).items())

    def _record(self, schema: Mapping[str, Any], part: Part) -> Read:
        written = {each["name"] for each in schema["fields"]}
        names = {name: name for name in part.below}
        for each in part.schema["fields"]:
            if each["name"] not in written:
                names |= {alias: each["name"] for alias in each.get("aliases", ()) if alias not in part.below}
        steps: list[tuple[str | None, Read]] = []
        lacking = dict.fromkeys(part.below)
        for each in schema["fields"]:
            name = names.get(each["name"])
            if name is None or name not in lacking:
                steps.append((None, self._skips.of(each["type"])))
            else:
                del lacking[name]
                steps.append((name, self.of(each["type"], part.below[name])))
        if not lacking.keys() <= part.defaults.keys():
            return _never(_UNRESOLVED)
        defaults = {name: part.defaults[name] for name in lacking}
        values = len(steps) + sum(map(_values, defaults.values()))

        def read(given: Input, depth: int) -> dict[str, Any]:
            if depth > MAX_DEPTH:
                raise BodyError(TOO_DEEP)
            take(values)
            found = dict(defaults)
            for name, step in steps:
                value = step(given, depth + 1)
                if name is not None:
                    found[name] = value
            return found

        return read


def _single(value: int) -> float:
    """The nearest one: by a double it would be rounded twice."""
    return float(np.int64(value).astype(np.float32))


def _values(default: Any) -> int:
    """How many values a default has below it."""
    parts = default.values() if isinstance(default, dict) else default if isinstance(default, list | tuple) else ()
    return len(parts) + sum(map(_values, parts))


def _never(why: str) -> Read:
    def read(_: Input, __: int) -> Any:
        raise BodyError(why)

    return read


def _union(branches: list[Read]) -> Read:
    return lambda given, depth: branches[given.branch(len(branches), _NO_BRANCH)](given, depth)


def _as_member(name: str, read: Read) -> Read:
    return lambda given, depth: {name: read(given, depth)}


def _interpreted(read: Read, kind: str, schema: Any, part: Part) -> Read:
    """Values by their logical type: the writer's, or else the reader's of the same type."""
    if part.logical is None:
        return read
    written = logical_of(kind, schema)
    if written is None and kind == part.kind:
        written = part.logical
    try:
        of = None if written is None else interpretation(written, part)
    except InvalidError as error:
        return _never(str(error))
    if written is None:
        return _never("was written without a logical type, as another type than the reader's")
    return read if of is None else lambda given, depth: of(read(given, depth))


def _enum(symbols: list[str], reader: Mapping[str, Any]) -> Read:
    known = [each if each in reader["symbols"] else reader.get("default") for each in symbols]

    def read(given: Input, _: int) -> str:
        symbol = known[given.branch(len(known), _NO_SYMBOL)]
        if symbol is None:
            raise BodyError(_UNRESOLVED)
        return symbol

    return read


def _blocks(item: Read, columns: int) -> Callable[[Input, int], Any]:
    """Reads the items of an array or map. ``columns``: for how many values an item has places."""

    def read(given: Input, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise BodyError(TOO_DEEP)
        while (count := given.long()) != 0:
            end = None
            if count < 0:
                size = given.long()
                count, end = -count, given.at + size
            take(min(count, len(given.body) - given.at) * columns)
            for _ in range(count):
                before = given.at
                value = item(given, depth + 1)
                if given.at == before:  # eight bytes may say that there are 2^60 of them
                    raise BodyError("has an array of values without bytes")
                yield value
            if end is not None and end != given.at:
                raise BodyError("has a block that is not as long as it says")

    return read


def _aliases(schema: Mapping[str, Any]) -> set[str]:
    space = schema["name"].rpartition(".")[0]
    return {each if "." in each or not space else f"{space}.{each}" for each in schema.get("aliases", ())}


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _is_named(writer: Mapping[str, Any], reader: Mapping[str, Any]) -> bool:
    """Whether a writer's named type has the reader's name, without the namespace, or one of its aliases."""
    return _last(writer["name"]) == _last(reader["name"]) or writer["name"] in _aliases(reader)


def _member(kind: str, schema: Any, members: Mapping[str, Part]) -> str | None:
    """The member of a reader's union that a writer's type belongs to."""
    if kind in RECORDS or kind in ("enum", "fixed"):
        same = RECORDS if kind in RECORDS else {kind}
        alike = {name: part.schema for name, part in members.items() if part.kind in same}
        full = schema["name"]
        for found in (
            [name for name, reader in alike.items() if reader["name"] == full],
            [name for name, reader in alike.items() if full in _aliases(reader)],
            [name for name, reader in alike.items() if _last(reader["name"]) == _last(full)],
        ):
            if len(found) == 1:
                return found[0]
        return None
    for each in (kind, *_WIDER.get(kind, ())):
        for name, part in members.items():
            if part.kind == each:
                return name
    return None


class _Skips:
    """Reads what the reader lacks, only to know where it ends."""

    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, int | Read] = {}

    def of(self, writer: Any) -> Read:
        """Reads a value of a part of the writer's schema."""
        made = self._made_of(writer)
        return _skip(made) if isinstance(made, int) else made

    def _made_of(self, writer: Any) -> int | Read:
        """The bytes of each value, if they may be skipped unseen: of k records in records there may be 2^k."""
        if isinstance(writer, list):
            return _union([self.of(each) for each in writer])
        kind, schema = resolved(writer, self._named)
        if kind in RECORDS:
            made = self._record(schema)
        elif kind == "fixed":
            made = int(schema["size"])
        elif kind == "enum":
            made = _enum(schema["symbols"], {"symbols": schema["symbols"]})
        elif kind in ("array", "map"):
            made = self._items(kind, schema)
        else:
            made = _SIZES.get(kind, _READS["bytes" if kind == "string" else kind])
        return made

    def _items(self, kind: str, schema: Any) -> Read:
        item = self.of(schema["items" if kind == "array" else "values"])
        items = _blocks(item if kind == "array" else lambda given, depth: (given.bytes(), item(given, depth)), 0)
        return lambda given, depth: _exhaust(items(given, depth))

    def _record(self, schema: Mapping[str, Any]) -> int | Read:
        name = schema["name"]
        if name in self._made:
            return self._made[name]
        self._made[name] = self._later(name)
        fields = [self._made_of(each["type"]) for each in schema["fields"]]
        sizes = [each for each in fields if isinstance(each, int)]
        if len(sizes) == len(fields):
            self._made[name] = sum(sizes)
            return self._made[name]
        steps = [_skip(each) if isinstance(each, int) else each for each in fields]

        def read(given: Input, depth: int) -> None:
            if depth > MAX_DEPTH:
                raise BodyError(TOO_DEEP)
            for step in steps:
                step(given, depth + 1)

        self._made[name] = read
        return read

    def _later(self, name: str) -> Read:
        """Of a type within itself: looked up when it is used."""

        def read(given: Input, depth: int) -> None:
            made = self._made[name]
            if not isinstance(made, int):
                made(given, depth)

        return read


def _skip(size: int) -> Read:
    return lambda given, _: given.skip(size)


def _exhaust(items: Any) -> None:
    for _ in items:
        pass
