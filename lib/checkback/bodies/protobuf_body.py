"""Protobuf bodies: the Arrow type of a message's descriptor, and values that protobuf's own runtime parses."""

from __future__ import annotations

import importlib
import json
import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from checkback.bodies.decoder import MAX_VALUES, TOO_MANY, BodyError, take, width
from checkback.bodies.registry import Registered, Registry, split_header
from checkback.errors import SettingsError, StorageError, missing_module

if TYPE_CHECKING:
    from collections.abc import Iterator

#: of the registry's API: a base64 FileDescriptorProto in place of the text of a .proto, which only protoc reads
SERIALIZED = "serialized"
_UTC = pa.timestamp("us", "UTC")
_SECONDS = range(-62_135_596_800, 253_402_300_800)
_NANOS = range(1_000_000_000)
_MAX_PARTS = 10_000
_WELL_KNOWN = "google.protobuf."
_WRAPPERS = frozenset(
    _WELL_KNOWN + f"{kind}Value"
    for kind in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_AS_JSON = frozenset(_WELL_KNOWN + name for name in ("Struct", "Value", "ListValue"))
#: modules of protobuf's own files, which descriptors need not contain
_OWN_FILES = (
    "any",
    "api",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
_MAX_INDEXES = 64
_WRITE = "write it by `protoc --include_imports --descriptor_set_out=FILE`"

Indexes = tuple[int, ...]


#: by number of a field that is a message: for how many values each item of a list or map has places, and those below
_Weights = Mapping[int, tuple[int, Any]]


@dataclass(frozen=True)
class _Part:
    type: pa.DataType
    of: Callable[[Any], Any]
    weights: _Weights = field(default_factory=dict)


class ProtobufBody:
    """A protobuf message; with a registry, after the id of its schema and the message's indexes."""

    def __init__(
        self, files: bytes, message: str | None, where: str, registry: Registry | None = None, *, latest: bool = False
    ) -> None:
        """``files``: a FileDescriptorSet; ``message``: a full name, None: the first message of its last file.

        ``latest``: the files are the registry's, which gives descriptors; another one's schemas are read as text.
        Raises SettingsError.
        """
        try:
            from google.protobuf import message_factory
            from google.protobuf.message import DecodeError
        except ImportError as error:
            raise missing_module(error, "protobuf", where) from error
        try:
            descriptor = _message(files, message, where)
            self._class = message_factory.GetMessageClass(descriptor)
            self._part = _Compiler(where).message(descriptor, ())
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - of descriptors that protoc does not write
            raise SettingsError(f"is not valid: {type(error).__name__}", where, _WRITE) from None
        self._no_message = DecodeError
        self.type = self._part.type
        self._name, self._registry, self._latest = descriptor.full_name, registry, latest
        self._descriptor = descriptor
        self._others: dict[tuple[int, Indexes], bool] = {}

    def value(self, body: bytes) -> Any:
        """The message's fields. Raises BodyError, StorageError."""
        if self._registry is not None:
            number, rest = split_header(body)
            indexes, body = _split_indexes(rest)
            if self._is_other(self._registry, number, indexes):
                raise BodyError(f"is another message than {self._name}")
        if len(body) * _densest(self._part.weights) > 2 * MAX_VALUES:
            _check_weight(body, self._part.weights)
        found = self._class()
        try:
            found.ParseFromString(body)
        except self._no_message:
            raise BodyError(f"is not a {self._name}") from None
        if not found.IsInitialized():
            raise BodyError(f"is a {self._name} without a required field")
        return self._part.of(found)

    def _is_other(self, registry: Registry, number: int, indexes: Indexes) -> bool:
        """Whether the indexes are those of another message in an id's schema. Raises BodyError, StorageError."""
        key = number, indexes
        if key not in self._others:
            if len(self._others) >= _MAX_PARTS:
                self._others.clear()
            if self._latest:
                self._others[key] = _name_at(registry, number, indexes) != self._name
            else:
                top, below = _place_of(self._descriptor)
                self._others[key] = (_top_at(registry, number, indexes[0]), indexes[1:]) != (top, below)
        return self._others[key]


def files_of(schema: Registered, url: str) -> bytes:
    """A registry's schema and those that it refers to as a FileDescriptorSet. Raises StorageError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    found = FileDescriptorSet()
    for name, text in schema.references:
        found.file.append(_file(text, url, name))
    found.file.append(_file(schema.text, url, None))
    content: bytes = found.SerializeToString()
    return content


def _file(text: str, url: str, name: str | None) -> Any:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorProto.FromString(b64decode(text, validate=True))
    except (Base64Error, ValueError, DecodeError):
        what = "the schema registry gives protobuf as text only, not as descriptors (format=serialized)"
        fix = "set schema_file, as `protoc --descriptor_set_out` writes it, and message"
        raise StorageError(what, url, fix) from None
    found.name = name or found.name or "the registry's.proto"
    return found


def _message(content: bytes, name: str | None, where: str) -> Any:
    """The descriptor of a message. Raises SettingsError."""
    from google.protobuf import descriptor_pb2, descriptor_pool
    from google.protobuf.message import DecodeError

    fix = _WRITE
    try:
        files = {each.name: each for each in descriptor_pb2.FileDescriptorSet.FromString(content).file}
    except DecodeError:
        raise SettingsError("is not a FileDescriptorSet", where, fix) from None
    if not files:
        raise SettingsError("is a FileDescriptorSet without files", where, fix)
    pool = descriptor_pool.DescriptorPool()
    for each in list(files.values()):
        for missing in {*each.dependency} - files.keys():
            files[missing] = _own_file(missing, where, fix)
    added: set[str] = set()
    last = list(files.values())[-1] if name is None else None
    try:
        for each in _in_order(files):
            if each.name not in added:
                pool.AddSerializedFile(each.SerializeToString())
                added.add(each.name)
        if last is not None:
            first = descriptor_pb2.FileDescriptorSet.FromString(content).file[-1]
            name = next(iter(pool.FindFileByName(first.name).message_types_by_name.values())).full_name
        return pool.FindMessageTypeByName(name)
    except (KeyError, StopIteration):
        names = [each.full_name for file in added for each in pool.FindFileByName(file).message_types_by_name.values()]
        there = ", ".join(sorted(one for one in names if not one.startswith(_WELL_KNOWN))[:10])
        raise SettingsError(f"has no message {name}", where, f"it has {there or 'none'}") from None
    except (TypeError, ValueError) as error:
        raise SettingsError(f"has descriptors that do not fit together: {error}", where, fix) from None


def _own_file(name: str, where: str, fix: str) -> Any:
    """A file that protobuf itself has. Raises SettingsError."""
    from google.protobuf import descriptor_pb2

    stem = name.removeprefix("google/protobuf/").removesuffix(".proto")
    if stem not in _OWN_FILES:
        raise SettingsError(f"lacks {name}, which it imports", where, fix)
    found = descriptor_pb2.FileDescriptorProto()
    importlib.import_module(f"google.protobuf.{stem}_pb2").DESCRIPTOR.CopyToProto(found)
    return found


def _in_order(files: Mapping[str, Any]) -> Iterator[Any]:
    """The files, each after those that it imports; a circle is left to the pool, which refuses it."""
    done: set[str] = set()

    def visit(name: str) -> Iterator[Any]:
        if name in files and name not in done:
            done.add(name)
            for imported in files[name].dependency:
                yield from visit(imported)
            yield files[name]

    for name in files:
        yield from visit(name)


def _place_of(descriptor: Any) -> tuple[str, Indexes]:
    """The full name of the message of the file that a message is or is in, and the indexes below it."""
    found: list[int] = []
    while (around := descriptor.containing_type) is not None:
        found.append([each.full_name for each in around.nested_types].index(descriptor.full_name))
        descriptor = around
    return descriptor.full_name, tuple(reversed(found))


def _name_at(registry: Registry, number: int, indexes: Indexes) -> str | None:
    """The full name of a message of an id's schema; None: it has none there. Raises BodyError, StorageError."""
    file = _file(_schema(registry, number, SERIALIZED).text, registry.url, None)
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        if index >= len(messages):
            return None
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def _schema(registry: Registry, number: int, form: str = "") -> Registered:
    schema = registry.schema(number, form)
    if schema.kind != "PROTOBUF":
        raise BodyError(f"names schema {number}, which is of type {schema.kind}")
    return schema


def _top_at(registry: Registry, number: int, index: int) -> str | None:
    """The full name of a message that an id's schema, a .proto's text, has in no other. Raises as `_name_at`."""
    package, depth, names = "", 0, []
    for found in _PROTO.finditer(_schema(registry, number).text):
        if found["package"]:
            package = found["package"] + "."
        elif found["message"] and depth == 0:
            names.append(found["message"])
        depth += {"{": 1, "}": -1}.get(found[0][-1], 0) if found[0][0] not in "/\"'" else 0
    return package + names[index] if index < len(names) else None


#: what tells a .proto's messages; comments and strings may hold anything
_PROTO = re.compile(
    r"""//[^\n]*|/\*.*?\*/|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
    r"""|\bpackage\s+(?P<package>[\w.]+)\s*;|\bmessage\s+(?P<message>\w+)\s*\{|[{}]""",
    re.DOTALL,
)


def _split_indexes(body: bytes) -> tuple[Indexes, bytes]:
    """Confluent's message indexes: a count and as many zigzag integers; a count of 0 is the index 0."""
    from google.protobuf.internal.decoder import _DecodeVarint
    from google.protobuf.message import DecodeError

    found: list[int] = []
    try:
        coded, at = _DecodeVarint(body, 0)
        count = coded >> 1
        if coded & 1 or count > _MAX_INDEXES:
            raise BodyError("does not begin with a message's indexes")
        for _ in range(count):
            coded, at = _DecodeVarint(body, at)
            if coded & 1:
                raise BodyError("does not begin with a message's indexes")
            found.append(coded >> 1)
    except (IndexError, DecodeError):
        raise BodyError("does not begin with a message's indexes") from None
    return tuple(found) or (0,), body[at:]


class _Compiler:
    """Makes the parts of a descriptor."""

    def __init__(self, where: str) -> None:
        self._where, self._parts = where, 0

    def message(self, descriptor: Any, within: tuple[str, ...]) -> _Part:
        """The part of a message. Raises SettingsError if it may contain itself."""
        from google.protobuf.unknown_fields import UnknownFieldSet

        name = descriptor.full_name
        if name in within:
            what = f"the message {within[0]} has {name} within itself, which no column can hold"
            raise SettingsError(what, self._where, "set message to one without it, or leave that field out of the file")
        self._parts += len(descriptor.fields)
        if self._parts > _MAX_PARTS:
            raise SettingsError(f"has more than {_MAX_PARTS} fields", self._where, "set a message with fewer")
        fields = [(each, self._field(each, (*within, name))) for each in descriptor.fields]
        closed = {each.number for each in descriptor.fields if _has_closed_enum(each)}

        def of(message: Any) -> dict[str, Any]:
            if closed and any(each.field_number in closed for each in UnknownFieldSet(message)):
                raise BodyError("has a number that a closed enum lacks")
            return {
                field.name: None
                if field.has_presence and not message.HasField(field.name)
                else part.of(getattr(message, field.name))
                for field, part in fields
            }

        weights = {each.number: (_columns(part.type), part.weights) for each, part in fields if each.message_type}
        return _Part(pa.struct([pa.field(each.name, part.type) for each, part in fields]), of, weights)

    def _field(self, field: Any, within: tuple[str, ...]) -> _Part:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, item = (self._one(field.message_type.fields_by_name[name], within) for name in ("key", "value"))
            entry = 1 + width(item.type)

            def of_map(pairs: Any) -> list[tuple[Any, Any]]:
                take(len(pairs) * entry)
                return [(key.of(each), item.of(pairs[each])) for each in sorted(pairs)]

            return _Part(pa.map_(key.type, item.type), of_map, {2: (0, item.weights)})
        one = self._one(field, within)
        if field.is_repeated:
            columns = width(one.type)

            def of_list(values: Any) -> list[Any]:
                take(len(values) * columns)
                return [one.of(each) for each in values]

            return _Part(pa.list_(one.type), of_list, one.weights)
        return one

    def _one(self, field: Any, within: tuple[str, ...]) -> _Part:
        message = field.message_type
        if message is None:
            return _scalar(field)
        if message.full_name == _WELL_KNOWN + "Timestamp":
            return _Part(_UTC, _timestamp)
        if message.full_name in _WRAPPERS:
            wrapped = _scalar(message.fields_by_name["value"])
            return _Part(wrapped.type, lambda value: wrapped.of(value.value))
        if message.full_name in _AS_JSON:
            return _Part(pa.string(), _as_json)
        return self.message(message, within)


def _columns(kind: pa.DataType) -> int:
    """For how many values each item of a list or map has places; 0: it is none."""
    if pa.types.is_map(kind):
        return 1 + width(kind.item_type)
    return width(kind.value_type) if pa.types.is_list(kind) else 0


def _densest(weights: _Weights) -> int:
    return max((max(columns, _densest(below)) for columns, below in weights.values()), default=0)


def _check_weight(body: bytes, weights: _Weights) -> None:
    """Raise BodyError if there are too many items: of two bytes each, protobuf itself makes a kilobyte.

    Bytes that are no message are left to protobuf.
    """
    from google.protobuf.internal.decoder import _DecodeVarint
    from google.protobuf.message import DecodeError

    total, at = 0, 0
    within = [(len(body), weights)]
    try:
        while within:
            end, fields = within[-1]
            if at >= end:
                within.pop()
                continue
            tag, at = _DecodeVarint(body, at)
            columns, below = fields.get(tag >> 3, (0, None))
            kind = tag & 7
            if kind == _GROUP_ENDS:
                within.pop()
            elif kind == _GROUP:
                within.append((end, below or {}))
            elif kind == _SIZED:
                size, at = _DecodeVarint(body, at)
                if below is None:
                    at += size
                else:
                    within.append((at + size, below))
            else:
                at = _DecodeVarint(body, at)[1] if kind == 0 else at + _SIZES[kind]
            total += columns if kind in (_GROUP, _SIZED) else 0
            if total > MAX_VALUES:
                raise BodyError(TOO_MANY)
    except (IndexError, KeyError, DecodeError):
        return


#: of the wire: kinds of fields, and the bytes of those of a size
_SIZED, _GROUP, _GROUP_ENDS, _SIZES = 2, 3, 4, {1: 8, 5: 4}


def _has_closed_enum(field: Any) -> bool:
    """Whether a field, or a map's value, is of an enum whose unknown numbers protobuf takes for unknown fields."""
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        field = field.message_type.fields_by_name["value"]
    return field.enum_type is not None and bool(field.enum_type.is_closed)


def _scalar(field: Any) -> _Part:
    if field.enum_type is not None:
        names = {value.number: value.name for value in reversed(field.enum_type.values)}
        return _Part(pa.string(), lambda number: names.get(number, str(number)))
    return _SCALARS[field.cpp_type] if field.cpp_type != _STRING else (_BYTES if field.type == _TYPE_BYTES else _TEXT)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise BodyError("has a string that is not UTF-8")
    return value


#: FieldDescriptor.CPPTYPE_STRING, and TYPE_BYTES, which has it, too
_STRING, _TYPE_BYTES = 9, 12
_TEXT, _BYTES = _Part(pa.string(), _text), _Part(pa.binary(), bytes)
#: by FieldDescriptor.CPPTYPE_*; Spark has no unsigned integers
_SCALARS = {
    1: _Part(pa.int32(), int),
    2: _Part(pa.int64(), int),
    3: _Part(pa.int64(), int),
    4: _Part(pa.decimal128(20, 0), int),
    5: _Part(pa.float64(), float),
    6: _Part(pa.float32(), float),
    7: _Part(pa.bool_(), bool),
}


def _timestamp(value: Any) -> int:
    if value.seconds not in _SECONDS or value.nanos not in _NANOS:
        raise BodyError("has a timestamp outside of the years 1 to 9999")
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def _as_json(value: Any) -> str:
    from google.protobuf.json_format import MessageToDict

    try:
        return json.dumps(MessageToDict(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise BodyError("has NaN or Infinity, which are not JSON") from None
