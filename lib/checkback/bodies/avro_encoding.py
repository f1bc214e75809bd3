"""Whether bytes are an Avro value of a schema, to the last byte (Avro 1.12, Binary encoding).

fastavro reads quickly, and trusts what it reads: the branch -1 of a union, a symbol -1 of an enum, an integer of 11
bytes give a value, a skipped field may lie beyond the end, and an array of a billion nulls takes eight bytes. Bytes
that pass here are read by it as what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from checkback.bodies.decoder import MAX_DEPTH, TOO_DEEP, BodyError

#: takes the bytes, a position and a depth; returns the position after the value. Raises BodyError, IndexError.
Check = Callable[[bytes, int, int], int]

_FIXED = {"null": 0, "float": 4, "double": 8}
_SHORT = "ends within a value"
_INT = range(-(1 << 31), 1 << 31)


def check_encoding(check: Check, body: bytes) -> None:
    """Raise BodyError unless the body is one value that `checker` was made for."""
    try:
        end = check(body, 0, 0)
    except IndexError:
        raise BodyError(_SHORT) from None
    if end != len(body):
        raise BodyError("goes on after its value" if end < len(body) else _SHORT)


def checker(schema: Any, named: Mapping[str, Any]) -> Check:
    """The check of a schema as fastavro parses it; ``named``: the types that names refer to."""
    return _Checks(named).of(schema)


def _long(body: bytes, at: int) -> tuple[int, int]:
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
    return (value >> 1) ^ -(value & 1), at


def _check_long(body: bytes, at: int, _: int) -> int:
    return _long(body, at)[1]


def _check_int(body: bytes, at: int, _: int) -> int:
    value, at = _long(body, at)
    if value not in _INT:
        raise BodyError("has an int beyond 32 bits")
    return at


def _check_boolean(body: bytes, at: int, _: int) -> int:
    if body[at] > 1:
        raise BodyError("has a boolean that is neither 0 nor 1")
    return at + 1


def _check_bytes(body: bytes, at: int, _: int) -> int:
    length, at = _long(body, at)
    if not 0 <= length <= len(body) - at:
        raise BodyError(_SHORT)
    return at + length


def _skipped(size: int) -> Check:
    def check(body: bytes, at: int, _: int) -> int:
        if size > len(body) - at:
            raise BodyError(_SHORT)
        return at + size

    return check


_SIMPLE: Mapping[str, Check] = {
    "int": _check_int,
    "long": _check_long,
    "boolean": _check_boolean,
    "bytes": _check_bytes,
    "string": _check_bytes,
    **{name: _skipped(size) for name, size in _FIXED.items()},
}


class _Checks:
    def __init__(self, named: Mapping[str, Any]) -> None:
        self._named = named
        self._made: dict[str, Check] = {}

    def of(self, schema: Any) -> Check:
        """The check of a part."""
        if isinstance(schema, list):
            return self._union([self.of(each) for each in schema])
        if isinstance(schema, str):
            return _SIMPLE[schema] if schema in _SIMPLE else self._of_name(schema)
        made = {
            "fixed": lambda: _skipped(schema["size"]),
            "enum": lambda: self._enum(len(schema["symbols"])),
            "array": lambda: self._blocks(self.of(schema["items"])),
            "map": lambda: self._blocks(self._pair(self.of(schema["values"]))),
            "record": lambda: self._record(schema),
            "error": lambda: self._record(schema),
        }
        kind = schema["type"]
        return made[kind]() if isinstance(kind, str) and kind in made else self.of(kind)

    def _of_name(self, name: str) -> Check:
        if name not in self._made:
            self._made[name] = self._later(name)
            self._made[name] = self.of(self._named[name])
        return self._made[name]

    def _later(self, name: str) -> Check:
        """The check of a type that refers to itself: looked up when it is used."""

        def check(body: bytes, at: int, depth: int) -> int:
            return self._made[name](body, at, depth)

        return check

    @staticmethod
    def _pair(value: Check) -> Check:
        def check(body: bytes, at: int, depth: int) -> int:
            return value(body, _check_bytes(body, at, depth), depth)

        return check

    @staticmethod
    def _union(branches: list[Check]) -> Check:
        def check(body: bytes, at: int, depth: int) -> int:
            branch, at = _long(body, at)
            if not 0 <= branch < len(branches):
                raise BodyError("has a union without such a branch")
            return branches[branch](body, at, depth)

        return check

    @staticmethod
    def _enum(symbols: int) -> Check:
        def check(body: bytes, at: int, _: int) -> int:
            symbol, at = _long(body, at)
            if not 0 <= symbol < symbols:
                raise BodyError("has an enum without such a symbol")
            return at

        return check

    def _record(self, schema: Mapping[str, Any]) -> Check:
        name = schema["name"]
        self._made.setdefault(name, self._later(name))
        fields = [self.of(field["type"]) for field in schema["fields"]]

        def check(body: bytes, at: int, depth: int) -> int:
            if depth > MAX_DEPTH:
                raise BodyError(TOO_DEEP)
            for field in fields:
                at = field(body, at, depth + 1)
            return at

        self._made[name] = check
        return check

    @staticmethod
    def _blocks(item: Check) -> Check:
        def check(body: bytes, at: int, depth: int) -> int:
            if depth > MAX_DEPTH:
                raise BodyError(TOO_DEEP)
            while True:
                count, at = _long(body, at)
                if count == 0:
                    return at
                end = None
                if count < 0:
                    size, at = _long(body, at)
                    count, end = -count, at + size
                for _ in range(count):
                    before = at
                    at = item(body, at, depth + 1)
                    if at > len(body):
                        raise BodyError(_SHORT)
                    if at == before:  # eight bytes may say that there are 2^60 of them
                        raise BodyError("has an array of values without bytes")
                if end is not None and end != at:
                    raise BodyError("has a block that is not as long as it says")

        return check
