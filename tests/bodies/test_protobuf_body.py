"""Protobuf bodies: what protobuf's own runtime writes is read as it is, by descriptors that protoc wrote."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, json_format
from hypothesis import given
from hypothesis import strategies as st

from checkback.bodies.body_format import BodyFormat, format_of
from checkback.bodies.decoder import decode
from checkback.bodies.protobuf_body import ProtobufBody
from checkback.bodies.registry import Registry
from checkback.errors import SettingsError, StorageError
from checkback.settings import Settings
from support.protobuf_files import MONEY, SHOP, made, write_descriptors
from support.schema_registry import SchemaRegistry, headed

EMPTY: dict[str, Any] = {
    "i": 0, "l": 0, "u": 0, "big": 0, "raw": b"", "name": "", "maybe": None, "state": "OPEN", "lines": [],
    "by_name": {}, "states": {}, "at": None, "wrapped": None, "cash": None, "card": None, "more": None, "many": [],
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """See `write_descriptors`."""
    folder = tmp_path_factory.mktemp("proto")
    write_descriptors(folder)
    return folder


def read(decoder: Any, *bodies: bytes) -> tuple[list[Any], list[str | None]]:
    values, errors = decode(decoder, pa.array(bodies, pa.binary()))
    assert values.type == decoder.type
    return values.to_pylist(maps_as_pydicts="strict"), errors.to_pylist()


def test_fields_have_their_arrow_types(files: Path) -> None:
    content = (files / "shop.bin").read_bytes()
    decoder = ProtobufBody(content, "shop.Order", "x")
    order = made(content, "shop.Order")(
        i=-1, l=-(2**63), u=2**32 - 1, big=2**64 - 1, raw=b"\0\xff", name="Zoë", maybe=0, state=1, many=[1, 2],
        lines=[{"price": 1.5, "weight": 0.5, "deep": {"there": True}}, {}], by_name={"b": {}, "a": {"price": 2}},
        states={7: 1, -7: 5}, at={"seconds": 1, "nanos": 5999}, wrapped={"value": 0}, card={"cents": 5},
    )  # fmt: skip
    order.more["a"] = [None, 1.5]
    line = {"price": 0.0, "weight": 0.0, "deep": None}
    ((value, empty), errors) = read(decoder, order.SerializeToString(), b"")
    assert errors == [None, None]
    assert empty == EMPTY
    at = value.pop("at")
    assert (at.timestamp(), at.utcoffset().total_seconds()) == (1.000005, 0)
    assert value == {
        "i": -1, "l": -(2**63), "u": 2**32 - 1, "big": 2**64 - 1, "raw": b"\0\xff", "name": "Zoë", "maybe": 0,
        "state": "DONE", "lines": [{"price": 1.5, "weight": 0.5, "deep": {"there": True}}, line],
        "by_name": {"a": line | {"price": 2.0}, "b": line}, "states": {-7: "5", 7: "DONE"}, "wrapped": 0,
        "cash": None, "card": {"cents": 5}, "more": '{"a":[null,1.5]}', "many": [1, 2],
    }  # fmt: skip
    assert decoder.type.field("big").type == pa.decimal128(20, 0)
    assert decoder.type.field("by_name").type.key_type == pa.string()


@given(value=st.data())
def test_what_protobuf_writes_is_what_its_json_says(files: Path, value: st.DataObject) -> None:
    content = (files / "shop.bin").read_bytes()
    order = made(content, "shop.Order")(
        i=value.draw(st.integers(-(2**31), 2**31 - 1)),
        l=value.draw(st.integers(-(2**63), 2**63 - 1)),
        big=value.draw(st.integers(0, 2**64 - 1)),
        name=value.draw(st.text(max_size=5)),
        lines=[{"price": each} for each in value.draw(st.lists(st.floats(allow_nan=False, allow_infinity=False)))],
        states=value.draw(st.dictionaries(st.integers(-9, 9), st.integers(0, 1), max_size=3)),
    )
    ((found,), errors) = read(ProtobufBody(content, "shop.Order", "x"), order.SerializeToString())
    says = json_format.MessageToDict(order, always_print_fields_with_no_presence=True, preserving_proto_field_name=True)
    assert errors == [None]
    assert {key: found[key] for key in ("i", "name")} == {key: says[key] for key in ("i", "name")}
    assert {key: str(found[key]) for key in ("l", "big")} == {key: says[key] for key in ("l", "big")}
    assert [each["price"] for each in found["lines"]] == [each["price"] for each in says["lines"]]
    assert {str(key): state for key, state in found["states"].items()} == says["states"]


@given(body=st.binary(max_size=60))
def test_bytes_of_anybody_are_a_value_or_none(files: Path, body: bytes) -> None:
    content = (files / "shop.bin").read_bytes()
    ((value,), (error,)) = read(ProtobufBody(content, "shop.Order", "x"), body)
    assert (value is None) == (error is not None)
    assert error in (None, "is not a shop.Order", "has a timestamp outside of the years 1 to 9999") or "JSON" in error


def test_hostile_bytes_have_no_value(files: Path) -> None:
    content = (files / "shop.bin").read_bytes()
    decoder = ProtobufBody(content, "shop.Order", "x")
    time = made(content, "shop.Order")(at={"seconds": 2**62}).SerializeToString()
    bodies = [b"\x32\x02\xff\xfe", b"\x32\x05a", b"\x08" + b"\xff" * 11, b"\x32" + b"\xff" * 9 + b"\x01", time]
    values, errors = read(decoder, *bodies)
    assert values == [None] * 5
    assert errors == ["is not a shop.Order"] * 4 + ["has a timestamp outside of the years 1 to 9999"]
    # A list in a list, 200 deep, in google.protobuf.Struct: protobuf's own limit is 100 messages.
    deep = b"\x32" + b"\x00"
    for _ in range(200):
        deep = b"\x32" + _length(b"\x0a" + _length(deep) + deep) + b"\x0a" + _length(deep) + deep
    entry = b"\x0a\x01a\x12" + _length(deep) + deep
    struct = b"\x0a" + _length(entry) + entry
    values, errors = read(decoder, b"\x82\x01" + _length(struct) + struct)
    assert values == [None]


def test_a_body_of_too_many_values_has_none() -> None:
    """Two bytes may be an item of a hundred columns."""
    file = descriptor_pb2.FileDescriptorProto(name="wide.proto", syntax="proto3")
    wide, many = file.message_type.add(name="Wide"), file.message_type.add(name="Many")
    for number in range(1, 101):
        wide.field.add(name=f"f{number}", number=number, type=9, label=1)
    many.field.add(name="all", number=1, type=11, type_name=".Wide", label=3)
    entry = many.nested_type.add(name="ByNoEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=5, label=1)
    entry.field.add(name="value", number=2, type=11, type_name=".Wide", label=1)
    many.field.add(name="by_no", number=2, type=11, type_name=".Many.ByNoEntry", label=3)
    content = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    decoder = ProtobufBody(content, "Many", "x")
    by_no = made(content, "Many")()
    for number in range(50_000):
        by_no.by_no[number].f1 = ""
    for body in (b"\x0a\0" * 50_000, by_no.SerializeToString()):
        assert read(decoder, body) == ([None], ["has more than 5000000 values"])
    assert read(decoder, b"\x0a\0" * 10)[1] == [None]
    # Counted before protobuf makes a kilobyte of each, which would first find that the last one is cut short.
    assert read(decoder, b"\x0a\0" * 200_000 + b"\x0a") == ([None], ["has more than 5000000 values"])
    assert read(decoder, b"\x0a\2\x0a\0" * 1000 + b"\x7b\x0a\0\x7c" * 60_000)[1] == [None]  # an unknown group


def _length(content: bytes) -> bytes:
    number, out = len(content), bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def test_required_fields_and_text_of_proto2(files: Path) -> None:
    content = (files / "old.bin").read_bytes()
    decoder = ProtobufBody(content, "old.Pay", "x")
    assert read(decoder, b"", b"\x08\x05", b"\x08\x05\x12\x01\xff") == (
        [None, {"no": 5, "text": None}, None],
        ["is a old.Pay without a required field", None, "has a string that is not UTF-8"],
    )


def test_numbers_that_a_closed_enum_lacks_are_an_error() -> None:
    """Protobuf's runtime takes them for unknown fields: they would be missing, also from lists and maps."""
    file = descriptor_pb2.FileDescriptorProto(name="o.proto", syntax="proto2")
    kind = file.enum_type.add(name="E")
    kind.value.add(name="A", number=0)
    message = file.message_type.add(name="M")
    message.field.add(name="one", number=1, type=14, type_name=".E", label=1)
    message.field.add(name="many", number=2, type=14, type_name=".E", label=3)
    entry = message.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=14, type_name=".E", label=1)
    message.field.add(name="map", number=3, type=11, type_name=".M.MapEntry", label=3)
    message.oneof_decl.add(name="o")
    message.field.add(name="x", number=4, type=5, label=1, oneof_index=0)
    message.field.add(name="y", number=5, type=14, type_name=".E", label=1, oneof_index=0)
    message.field.add(name="below", number=6, type=11, type_name=".Below", label=1)
    file.message_type.add(name="Below").field.add(name="e", number=1, type=14, type_name=".E", label=1)
    decoder = ProtobufBody(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString(), "M", "x")
    bodies = [b"\x08\t", b"\x10\0\x10\t", b"\x1a\5\x0a\1a\x10\t", b"\x20\5\x28\t", b"\x32\2\x08\t"]
    assert read(decoder, *bodies) == ([None] * 5, ["has a number that a closed enum lacks"] * 5)
    ((value,), errors) = read(decoder, b"\x08\0\x10\0\x1a\5\x0a\1a\x10\0\x28\0\x32\2\x08\0\x78\1")
    assert errors == [None]
    assert value == {"one": "A", "many": ["A"], "map": {"a": "A"}, "x": None, "y": "A", "below": {"e": "A"}}


def test_a_file_or_message_that_is_none_is_refused_in_a_line(files: Path) -> None:
    shop, alone = (files / "shop.bin").read_bytes(), (files / "alone.bin").read_bytes()
    for content, name, what in (
        (b"no", "shop.Order", "key: is not a FileDescriptorSet"),
        (b"", "shop.Order", "key: is a FileDescriptorSet without files"),
        (alone, "shop.Order", r"key: lacks money.proto, which it imports; write it by `protoc --include_imports"),
        (shop, "shop.Nothing", "key: has no message shop.Nothing; it has shop.Line, shop.Money, shop.Order, shop.Tree"),
        (shop, "shop.Tree", "key: the message shop.Tree has shop.Tree within itself"),
    ):
        with pytest.raises(SettingsError, match=what):
            ProtobufBody(content, name, "key")


@given(content=st.binary(max_size=20))
def test_whatever_a_file_is_it_is_read_or_refused_in_words(content: bytes) -> None:
    with suppress(SettingsError):
        read(ProtobufBody(content, "shop.Order", "key"), b"")


# With a registry


def test_the_message_is_told_by_the_text_of_its_schema(files: Path) -> None:
    """With a file of descriptors: an index tells nothing by itself, each file has its message at 0."""
    content = (files / "shop.bin").read_bytes()
    refund = """
        // package no; message No {
        syntax = "proto3"; /* message No { } */ package shop; option x = "message No {";
        message Refund { int64 i = 1; message Order { bool there = 1; } enum E { A = 0; } }
        message Order { int32 i = 1; }
    """
    body = made(content, "shop.Order")(i=5).SerializeToString()
    no = "does not begin with a message's indexes"
    with SchemaRegistry() as server:
        form = BodyFormat("protobuf", "x", content, "shop.Order", registry=Registry(server.url))
        own, other = server.register("t-value", SHOP, "PROTOBUF"), server.register("o-value", refund, "PROTOBUF")
        json = server.register("j-value", {}, "JSON")
        values, errors = read(
            form.decoder,
            headed(own, body, b"\x02\x02"),
            headed(other, body, b"\x02\x02"),
            *(headed(number, body, b"\0") for number in (own, other, json, 999)),
            headed(other, body, b"\x02\x04"),
            headed(other, body, b"\x04\0\0"),
            headed(own, body, b"\x03"),
            headed(own, b""),
            headed(own, body, b"\xff" * 11),
            b"\2",
        )
        assert values == [EMPTY | {"i": 5}] * 2 + [None] * 10
        wrong = "is another message than shop.Order"
        assert errors[2:11] == [
            wrong,
            wrong,
            f"names schema {json}, which is of type JSON",
            "names schema 999, which the registry does not have",
            wrong,
            wrong,
            no,
            no,
            no,
        ]
        deep = BodyFormat("protobuf", "x", content, "shop.Line.Deep", registry=Registry(server.url)).decoder
        assert read(deep, headed(own, b"\x08\1", b"\x04\0\0")) == ([{"there": True}], [None])
        moved = server.register("t-value", refund.replace("message Order {", "message O {"), "PROTOBUF")
        assert read(form.decoder, headed(moved, body, b"\x02\x02")) == ([None], [wrong])
        assert server.asked.count(f"/schemas/ids/{own}") == 1


def test_descriptors_are_the_registrys(files: Path) -> None:
    parts = {
        each.name: each for each in descriptor_pb2.FileDescriptorSet.FromString((files / "shop.bin").read_bytes()).file
    }
    with SchemaRegistry() as server:
        serialized = parts["money.proto"].SerializeToString()
        server.register("money", MONEY, "PROTOBUF", serialized=serialized)
        references: list[dict[str, object]] = [{"name": "money.proto", "subject": "money", "version": 1}]
        serialized = parts["shop.proto"].SerializeToString()
        number = server.register("t-value", SHOP, "PROTOBUF", references, serialized)
        form = format_of(_settings(server.url, message="shop.Order"), "t")
        assert form is not None
        body = made((files / "shop.bin").read_bytes(), "shop.Order")(i=5, card={"cents": 2}).SerializeToString()
        values, errors = read(
            form.decoder, headed(number, body, b"\x02\x02"), headed(number, b"", b"\0"), headed(9, b"", b"\0")
        )
        assert values == [EMPTY | {"i": 5, "card": {"cents": 2}}, None, None]
        assert errors == [
            None,
            "is another message than shop.Order",
            "names schema 9, which the registry does not have",
        ]
        first = format_of(_settings(server.url), "t")
        assert first is not None
        assert read(first.decoder, headed(number, b"\x09" + b"\0" * 8, b"\0"))[1] == [None]  # shop.Line
        server.register("t-value", SHOP, "PROTOBUF", references)
        with pytest.raises(StorageError, match=r"gives protobuf as text only.*; set schema_file"):
            format_of(_settings(server.url), "t")
        server.register("t-value", {"type": "string"}, "JSON")
        with pytest.raises(StorageError, match="the schema of t-value is of type JSON; set body: json"):
            format_of(_settings(server.url), "t")


def _settings(url: str, **more: str) -> Settings:
    return Settings.model_validate({"topics": {"t": {"body": "protobuf", "schema_registry": url, **more}}})
