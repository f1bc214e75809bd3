"""Avro bodies: what fastavro writes is read as it is, what nobody should write is not."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.bodies.avro_body import AvroBody
from checkback.bodies.decoder import decode
from checkback.bodies.registry import Registered, Registry
from checkback.errors import SettingsError, StorageError
from support.avro_schemas import PAYMENT, VALUE, has_empty_items, simple_values, typed, written
from support.schema_registry import SchemaRegistry, headed

if TYPE_CHECKING:
    from collections.abc import Iterator


def read(schema: object, *bodies: bytes, registry: Registry | None = None) -> tuple[list[Any], list[str | None]]:
    decoder = AvroBody(Registered(json.dumps(schema)), "topics.t.schema", registry)
    values, errors = decode(decoder, pa.array(bodies, pa.binary()))
    assert values.type == decoder.type
    return values.to_pylist(maps_as_pydicts="strict"), errors.to_pylist()


def long(number: int) -> bytes:
    return written("long", number)


def test_logical_types_unions_enums_and_maps_have_their_arrow_types() -> None:
    body = written(PAYMENT, VALUE | {"id": UUID(VALUE["id"]), "by": ("shop.Card", {"no": 7})})
    assert read(PAYMENT, body) == ([VALUE], [None])
    assert AvroBody(Registered(json.dumps(PAYMENT)), "x").type == pa.struct(
        [
            ("amount", pa.decimal128(6, 2)),
            ("paid", pa.timestamp("us", "UTC")),
            ("day", pa.date32()),
            ("id", pa.string()),
            ("state", pa.string()),
            ("lines", pa.list_(pa.map_(pa.string(), pa.float64()))),
            ("by", pa.struct([("string", pa.string()), ("Card", pa.struct([("no", pa.int32())]))])),
        ]
    )


@given(st.data())
def test_what_fastavro_writes_is_read_as_it_was(data: st.DataObject) -> None:
    schema, values = data.draw(typed().filter(lambda found: not has_empty_items(found[0])))
    value = data.draw(values)
    body = written(schema, value)
    assert read(schema, body) == ([value], [None])
    if body:
        assert read(schema, body[:-1])[0] == [None]
    assert read(schema, body + b"\0") == ([None], ["goes on after its value"])


@given(st.data())
def test_bytes_of_anybody_are_a_value_that_is_written_as_they_are_or_none(data: st.DataObject) -> None:
    """Whatever is read must be what fastavro writes for it, up to blocks and integers that are longer than need be."""
    schema, _ = data.draw(typed())
    body = data.draw(st.binary(max_size=40))
    ((value,), (error,)) = read(schema, body)
    if error is None:
        again = written(schema, value)
        assert len(again) <= len(body)
        ((same,), _) = read(schema, again)
        assert repr(same) == repr(value)  # NaN is NaN
    else:
        assert value is None


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
LONGS = {"type": "array", "items": "long"}


@pytest.mark.parametrize(
    ("schema", "body", "why"),
    [
        ("bytes", long(2**60) + b"abc", "ends within a value"),
        ("bytes", long(-5) + b"abc", "ends within a value"),
        ("string", long(2) + b"\xff\xfe", "has a string that is not UTF-8"),
        ("long", b"\xff" * 11 + b"\x01", "has an integer beyond 64 bits"),
        ("long", b"\xff" * 9 + b"\x7f", "has an integer beyond 64 bits"),
        ("long", b"\xff", "ends within a value"),
        ("int", long(2**31), "has an int beyond 32 bits"),
        ("boolean", b"\x02", "has a boolean that is neither 0 nor 1"),
        (ENUM, long(-1), "has an enum without such a symbol"),
        (ENUM, long(2), "has an enum without such a symbol"),
        (["null", "string"], long(-1) + long(1) + b"x", "has a union without such a branch"),
        (LONGS, long(2**60) + long(1), "ends within a value"),
        (LONGS, long(-(2**63)) + long(0) + long(1), "ends within a value"),
        (LONGS, long(-2) + long(9) + long(1) * 2 + long(0), "has a block that is not as long as it says"),
        ({"type": "array", "items": "null"}, long(2**60) + long(0), "has an array of values without bytes"),
        ({"type": "int", "logicalType": "date"}, long(2**31 - 1), "has a date outside of the years 1 to 9999"),
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            long(2**62),
            "has a timestamp outside of the years 1 to 9999",
        ),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2},
            long(3) + (12345).to_bytes(3, "big"),
            "has a decimal of more than 4 digits",
        ),
    ],
)
def test_hostile_bytes_have_no_value(schema: object, body: bytes, why: str) -> None:
    assert read(schema, body) == ([None], [why])


def test_blocks_that_say_their_size_are_read() -> None:
    assert read(LONGS, long(-2) + long(2) + long(1) + long(2) + long(1) + long(3) + long(0)) == ([[1, 2, 3]], [None])
    assert math.isnan(read("double", written("double", math.nan))[0][0])


def test_a_schema_that_no_column_can_hold_is_refused() -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "below", "type": {"type": "array", "items": "Tree"}}]}
    with pytest.raises(SettingsError, match=r"topics.t.schema: the Avro schema has Tree within itself"):
        read(tree)
    with pytest.raises(SettingsError, match=r"topics.t.schema: the Avro schema is not valid: strin"):
        read("strin")


_KEYWORDS = st.sampled_from(["type", "name", "fields", "items", "values", "symbols", "size", "logicalType", "default"])
_ANYTHING = st.recursive(
    st.none()
    | st.integers()
    | st.sampled_from(["int", "string", "null", "record", "array", "map", "enum", "fixed", "n"]),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYWORDS, below, max_size=4),
)


@given(schema=_ANYTHING, body=st.binary(max_size=4))
def test_whatever_a_schema_is_it_is_read_or_refused_in_words(schema: Any, body: bytes) -> None:
    with suppress(SettingsError):
        read(schema, body)


# With a registry

V1 = {
    "type": "record",
    "name": "shop.Pay",
    "fields": [{"name": "no", "type": "int"}, {"name": "old", "type": "string"}],
}
V2 = {
    "type": "record",
    "name": "shop.Pay",
    "fields": [{"name": "no", "type": "long"}, {"name": "note", "type": "string", "default": "none"}],
}


def test_the_writers_schema_is_resolved_to_the_readers_and_asked_for_once() -> None:
    with SchemaRegistry() as server:
        first, second = server.register("t-value", V1), server.register("t-value", V2)
        bodies = [
            headed(first, written(V1, {"no": 1, "old": "x"})),
            headed(second, written(V2, {"no": 2**40, "note": "y"})),
        ]
        values, errors = read(V2, *bodies * 3, registry=Registry(server.url))
        assert values == [{"no": 1, "note": "none"}, {"no": 2**40, "note": "y"}] * 3
        assert errors == [None] * 6
        assert sorted(server.asked) == [f"/schemas/ids/{first}", f"/schemas/ids/{second}"]


def test_what_is_wrong_with_a_header_is_the_bodys_fault() -> None:
    with SchemaRegistry() as server:
        first = server.register("t-value", V1)
        other = server.register("o-value", "message O {}", "PROTOBUF")
        no_schema = server.register("n-value", {"type": "record"})
        skipped = headed(first, written(V1, {"no": 1, "old": "gone"}))[:-2]
        strings = server.register("s-value", "string")
        bodies = [
            b"\1" + skipped[1:],
            b"\0\0",
            b"",
            headed(99, b""),
            skipped,
            headed(other, b""),
            headed(no_schema, b""),
            headed(strings, b"\2x"),
        ]
        values, errors = read(V2, *bodies, registry=Registry(server.url))
        header = "does not begin with a schema's id (magic byte 0, then 4 bytes)"
        assert values == [None] * 8
        assert errors[:6] == [
            header,
            header,
            header,
            "names schema 99, which the registry does not have",
            "ends within a value",
            f"names schema {other}, which as an Avro schema is of type PROTOBUF",
        ]
        assert errors[6] is not None
        assert errors[6].startswith(f"names schema {no_schema}, which as an Avro schema is not valid")
        assert errors[7] == "is of a schema that does not resolve to the reader's"


def test_schemas_that_refer_to_others_are_read_with_them() -> None:
    money = {"type": "record", "name": "shop.Money", "fields": [{"name": "cents", "type": "long"}]}
    order = {
        "type": "record",
        "name": "shop.Order",
        "fields": [{"name": "a", "type": "Money"}, {"name": "b", "type": "Money"}],
    }
    with SchemaRegistry() as server:
        server.register("money", money)
        references: list[dict[str, object]] = [{"name": "shop.Money", "subject": "money", "version": 1}]
        number = server.register("t-value", order, references=references)
        registry = Registry(server.url)
        decoder = AvroBody(registry.latest("t-value"), server.url, registry)
        values, errors = decode(decoder, pa.array([headed(number, long(1) + long(2))]))
        assert (values.to_pylist(), errors.to_pylist()) == ([{"a": {"cents": 1}, "b": {"cents": 2}}], [None])


def test_a_registry_that_is_down_or_refuses_is_an_error_that_names_it() -> None:
    with SchemaRegistry(authorization="Bearer the-right-token-it-is") as server:
        number = server.register("t-value", V1)
        body = headed(number, written(V1, {"no": 1, "old": "x"}))
        with pytest.raises(
            StorageError, match=rf"{server.url}/schemas/ids/{number}: .* answered 401; set user and pass"
        ):
            read(V1, body, registry=Registry(server.url, token="the-wrong-token"))
        assert read(V1, body, registry=Registry(server.url, token="the-right-token-it-is"))[1] == [None]
        with pytest.raises(StorageError, match=r"/api/schemas/ids/5: .*; is schema_registry the API's URL\?"):
            read(V1, headed(5, b""), registry=Registry(f"{server.url}/api", token="the-right-token-it-is"))
        server.status = 500
        with pytest.raises(StorageError, match="answered 500"):
            read(V1, headed(7, b""), registry=Registry(server.url))
        url = server.url
    with pytest.raises(StorageError, match=rf"{url}/schemas/ids/8: the schema registry gave no answer"):
        read(V1, headed(8, b""), registry=Registry(url))


def record(*fields: dict[str, Any], name: str = "P") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def of(kind: object, **more: object) -> dict[str, Any]:
    return record({"name": "x", "type": kind, **more})


def logical(kind: str, name: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return logical("bytes", "decimal", precision=precision, scale=scale)


def symbols(*names: str, name: str = "E", **more: object) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(names), **more}


MILLIS, MICROS, DATE = logical("long", "timestamp-millis"), logical("long", "timestamp-micros"), logical("int", "date")
NEW_YEAR = datetime(2026, 1, 1, tzinfo=timezone.utc)
OTHER = "was written with another logical type"
UNRESOLVED = "is of a schema that does not resolve to the reader's"
BARE = "was written without a logical type, as another type than the reader's"
CREATED, CANCELLED = (
    record({"name": "n", "type": "int"}, name="Created"),
    record({"name": "n", "type": "int"}, name="C"),
)
MADE = {**CREATED, "name": "Made", "aliases": ["Created"]}
HALF = record({"name": "a", "type": "int", "default": 7}, {"name": "b", "type": "int"}, name="Half")


@pytest.mark.parametrize(
    ("writer", "value", "reader", "expected"),
    [
        # logical types: exactly, or not at all
        (of(decimal(10, 2)), Decimal("123.45"), of(decimal(12, 4)), Decimal("123.4500")),
        (of(decimal(10, 2)), Decimal("123.45"), of(decimal(12, 2)), Decimal("123.45")),
        (of(decimal(10, 2)), Decimal("123.45"), of(decimal(4, 2)), "has a decimal of more than 4 digits"),
        (of(decimal(10, 2)), Decimal("123.45"), of(decimal(6, 4)), "has a decimal of more than 6 digits"),
        (of(decimal(10, 4)), Decimal("123.45"), of(decimal(10, 2)), OTHER),
        (of("bytes"), b"\x01", of(decimal(4, 2)), Decimal("0.01")),
        (of("string"), "12.34", of(decimal(38, 2)), BARE),
        (of(decimal(10, 2)), Decimal("1.00"), of("bytes"), b"\x64"),
        (of(MILLIS), NEW_YEAR, of(MICROS), NEW_YEAR),
        (of(MICROS), NEW_YEAR, of(MILLIS), NEW_YEAR),
        (of(MILLIS), NEW_YEAR, of(logical("long", "local-timestamp-millis")), OTHER),
        (of(logical("long", "timestamp-nanos")), 5, of(MICROS), OTHER),
        (of(MILLIS), NEW_YEAR, of(logical("long", "timestamp-nanos")), OTHER),
        (of(DATE), date(2026, 1, 1), of(MILLIS), OTHER),
        (of("int"), 5, of(MILLIS), BARE),
        (of("int"), 5, of(DATE), date(1970, 1, 6)),
        (of(DATE), date(1970, 1, 6), of("long"), 5),
        # named types: by their names
        (of(CREATED), {"n": 1}, of([CANCELLED, CREATED]), {"C": None, "Created": {"n": 1}}),
        (of([CREATED]), {"n": 1}, of([CANCELLED, CREATED]), {"C": None, "Created": {"n": 1}}),
        (of(CREATED), {"n": 1}, of([CANCELLED, MADE]), {"C": None, "Made": {"n": 1}}),
        (of(CREATED), {"n": 1}, of([CANCELLED, "string"]), UNRESOLVED),
        (of(CREATED), {"n": 1}, of(["null", CANCELLED]), UNRESOLVED),
        (of(CREATED), {"n": 1}, of(CANCELLED), UNRESOLVED),
        (of(CREATED), {"n": 1}, of([{**CREATED, "name": "a.Created"}, {**CREATED, "name": "b.Created"}]), UNRESOLVED),
        (of(symbols("A")), "A", of([symbols("A", name="F"), symbols("A")]), {"F": None, "E": "A"}),
        (of(symbols("A", "B")), "B", of(symbols("A")), UNRESOLVED),
        (of(symbols("A", "B")), "B", of(symbols("A", default="A")), "A"),
        # unions: by the writer's branch
        (of(["int", MILLIS]), 5, of(["int", MILLIS]), {"int": 5, "long": None}),
        (of([DATE, MILLIS]), date(2026, 1, 1), of([DATE, MILLIS]), {"int": date(2026, 1, 1), "long": None}),
        (of("long"), 2**60 + 2**36 + 1, of("float"), float(2**60 + 2**37)),
        (of("int"), 2**24 + 1, of(["float", "long"]), {"float": None, "long": 2**24 + 1}),
        (of(["int", "long", "string"]), 5, of(["int", "long", "string"]), {"long": 5, "string": None}),
        (of(["null", "int"]), None, of("int"), UNRESOLVED),
        (of(["null", "int"]), 3, of("int"), 3),
        (
            of([{"type": "map", "values": "int"}, {**CREATED, "name": "map"}]),
            {"k": 1},
            of([{"type": "map", "values": "int"}, {**CREATED, "name": "map"}]),
            {"map": {"k": 1}, "map_": None},
        ),
        # defaults: of the first branch that they fit, with those of the fields below
        (record(), {}, of([symbols("A"), "string"], default="A"), {"E": "A", "string": None}),
        (record(), {}, of(["bytes", "string"], default="\u00ff"), {"bytes": b"\xff", "string": None}),
        (record(), {}, of(["double", "long"], default=1), {"double": 1.0, "long": None}),
        (record(), {}, of(decimal(4, 2), default="\u0001"), Decimal("0.01")),
        (record(), {}, of(MILLIS, default=0), datetime(1970, 1, 1, tzinfo=timezone.utc)),
        (record(), {}, of({"type": "map", "values": ["null", "int"]}, default={"k": 1}), {"k": 1}),
        (
            record(),
            {},
            of(HALF, default={"b": 1}),
            {"a": 7, "b": 1},
        ),
    ],
)  # fmt: skip
def test_what_a_writer_wrote_is_that_or_nothing(
    server: SchemaRegistry, writer: dict[str, Any], value: Any, reader: dict[str, Any], expected: Any
) -> None:
    body = headed(server.register("t-value", writer), written(writer, {"x": value}))
    missing = isinstance(expected, str) and expected != "A"
    given = ([None], [expected]) if missing else ([{"x": expected}], [None])
    assert read(reader, body, registry=Registry(server.url)) == given


def test_records_in_records_that_the_reader_lacks_cost_no_time(server: SchemaRegistry) -> None:
    """Of 60 levels of two fields there are 2^60 values without a byte."""
    below: Any = record({"name": "a", "type": "null"}, name="R0")
    for level in range(1, 60):
        below = record({"name": "a", "type": below}, {"name": "b", "type": below["name"]}, name=f"R{level}")
    number = server.register("t-value", of(below))
    assert read(record(), headed(number, b""), registry=Registry(server.url)) == ([{}], [None])


def test_a_body_of_too_many_values_has_none() -> None:
    """A byte may be an item of a hundred columns."""
    several = [record(name=f"R{number}") for number in range(100)]
    body = long(50_000) + long(1) * 50_000 + long(0)
    assert read({"type": "array", "items": several}, body) == ([None], ["has more than 5000000 values"])
    deep = record(*({"name": f"f{number}", "type": record(name=f"R{number}")} for number in range(100)))
    nested = {"type": "array", "items": record({"name": "i", "type": "int"}, {"name": "d", "type": deep}, name="Q")}
    assert read(nested, body) == ([None], ["has more than 5000000 values"])


def test_values_of_defaults_count(server: SchemaRegistry) -> None:
    numbers = {"name": "n", "type": {"type": "array", "items": "int"}, "default": [0] * 1000}
    number = server.register("t-value", of({"type": "array", "items": record({"name": "i", "type": "int"}, name="R")}))
    reader = of({"type": "array", "items": record(numbers, name="R")})
    body = headed(number, long(6000) + long(1) * 6000 + long(0))
    assert read(reader, body, registry=Registry(server.url)) == ([None], ["has more than 5000000 values"])


@pytest.fixture(scope="module")
def server() -> Iterator[SchemaRegistry]:
    with SchemaRegistry() as server:
        yield server


_WIDER = {"int": "long", "float": "double", "string": "bytes", "long": "double"}


@given(data=st.data())
def test_an_older_writers_values_are_the_readers(server: SchemaRegistry, data: st.DataObject) -> None:
    """Fields are left out, added with a default, widened and made nullable."""
    kinds = data.draw(st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(list(_WIDER)), min_size=1))
    writer = {"type": "record", "name": "W", "fields": [{"name": name, "type": kind} for name, kind in kinds.items()]}
    value = {name: data.draw(simple_values(kind)) for name, kind in kinds.items()}
    fields: list[dict[str, Any]] = [{"name": "new", "type": "string", "default": "none"}]
    expected: dict[str, Any] = {"new": "none"}
    for name, kind in kinds.items():
        if data.draw(st.booleans()):
            wider = data.draw(st.sampled_from([kind, _WIDER[kind]]))
            fields.append({"name": name, "type": data.draw(st.sampled_from([wider, ["null", wider]]))})
            expected[name] = value[name].encode() if wider == "bytes" else value[name]
            if wider == "double":
                expected[name] = float(value[name])
    reader = {"type": "record", "name": "W", "fields": fields}
    body = headed(server.register("t-value", writer), written(writer, value))
    assert read(reader, body, body[:-1], registry=Registry(server.url))[0] == [expected, None]
