"""JSON bodies: types of a JSON Schema, and what has no value because readers would not agree on it."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.bodies.body_format import BodyFormat, with_values
from checkback.bodies.decoder import decode
from checkback.bodies.json_body import JsonBody, JsonText
from checkback.errors import SettingsError
from support.json_schemas import bodies, schemas

_DEEP = "is nested deeper than 128 levels"
_BEYOND = "has a number beyond a double"


def read(schema: Any, *found: bytes | str) -> tuple[list[Any], list[str | None]]:
    decoder = JsonBody(schema, "topics.t.schema")
    raw = [each.encode() if isinstance(each, str) else each for each in found]
    values, errors = decode(decoder, pa.array(raw, pa.binary()))
    assert values.type == decoder.type
    return values.to_pylist(maps_as_pydicts="strict"), errors.to_pylist()


@pytest.mark.parametrize(
    ("schema", "kind", "body", "value"),
    [
        ({"type": "string"}, pa.string(), '"\\ud83d\\ude00\\u0000"', "😀\0"),
        ({"type": "integer"}, pa.int64(), "-9223372036854775808", -(2**63)),
        ({"type": "number"}, pa.float64(), "5", 5.0),
        ({"type": ["boolean", "null"]}, pa.bool_(), "null", None),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, pa.bool_(), "true", True),
        ({"enum": ["a", "b"]}, pa.string(), '"c"', "c"),
        ({"type": "array", "items": {"type": "integer"}}, pa.list_(pa.int64()), "[1, null]", [1, None]),
        (
            {"prefixItems": [True], "items": {"type": "integer"}, "type": "array"},
            pa.list_(pa.string()),
            '["a", 1]',
            ['"a"', "1"],
        ),
        ({"type": "array"}, pa.list_(pa.string()), '[1, "x", {"a": [1.5]}]', ["1", '"x"', '{"a":[1.5]}']),
        ({"properties": {"a": {}}}, pa.struct([("a", pa.string())]), '{"b": 1}', {"a": None}),
        (
            {"type": "object", "additionalProperties": {"type": "integer"}},
            pa.map_(pa.string(), pa.int64()),
            '{"x": 1, "": null}',
            {"x": 1, "": None},
        ),
        ({"type": "object"}, pa.string(), '{"ä": null}', '{"ä":null}'),
        ({"oneOf": [{"type": "string"}, {"type": "integer"}]}, pa.string(), '"x"', '"x"'),
        (True, pa.string(), "[]", "[]"),
        (
            {"$ref": "#/$defs/a~1%20b", "$defs": {"a/ b": {"type": "integer"}}},
            pa.int64(),
            "7",
            7,
        ),
        (
            {"$defs": {"t": {"properties": {"t": {"$ref": "#/$defs/t"}}}}, "$ref": "#/$defs/t"},
            pa.struct([("t", pa.string())]),
            '{"t": {"t": {}}}',
            {"t": '{"t":{}}'},
        ),
    ],
)
def test_types_of_a_schema(schema: Any, kind: pa.DataType, body: str, value: Any) -> None:
    assert JsonBody(schema, "x").type == kind
    assert read(schema, body) == ([value], [None])


@pytest.mark.parametrize("number", ["12345678901234567.89", "0.1234567890123456789012", "1.50", "-1E+2", "1e-400", "7"])
def test_numbers_in_parts_without_a_type_keep_their_text(number: str) -> None:
    schema = {
        "properties": {"price": {"type": ["number", "string"]}, "rest": {"type": "object"}, "n": {"type": "number"}}
    }
    body = f'{{"price": {number}, "rest": {{"ä": [{number}, "\\n"]}}, "n": {number}}}'
    assert read(schema, body) == (
        [{"price": number, "rest": f'{{"ä":[{number},"\\n"]}}', "n": float(number)}],
        [None],
    )


_BASE = {"type": "object", "properties": {"id": {"type": "integer"}, "at": {"type": "string"}}}


@pytest.mark.parametrize(
    "derived",
    [
        {"allOf": [{"$ref": "#/$defs/B"}], "properties": {"n": {"type": "integer"}}},
        {"type": "object", "allOf": [{"$ref": "#/$defs/B"}, {"properties": {"n": {"type": "integer"}}}]},
        {"$ref": "#/$defs/B", "properties": {"n": {"type": "integer"}, "id": {"minimum": 1}, "at": True}},
        {"type": "object", "allOf": [{"$ref": "#/$defs/C"}, {"if": {}, "then": {}}, True]},
    ],
)
def test_an_object_has_the_columns_of_those_it_is_composed_of(derived: dict[str, Any]) -> None:
    more = {"$ref": "#/$defs/B", "properties": {"n": {"type": "integer"}}}
    schema = {"$defs": {"B": _BASE, "C": more}, **derived}
    kind = pa.struct([("id", pa.int64()), ("at", pa.string()), ("n", pa.int64())])
    assert JsonBody(schema, "x").type == kind
    assert read(schema, '{"id": 1, "n": 2, "x": 3}') == ([{"id": 1, "at": None, "n": 2}], [None])


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"", "is not JSON"),
        (b'{"a": 1', "is not JSON"),
        (b"{'a': 1}", "is not JSON"),
        (b"[1,]", "is not JSON"),
        (b"[] []", "is not JSON"),
        (b"\xef\xbb\xbf[]", "is not JSON"),
        ("[]".encode("utf-16"), "is not UTF-8"),
        (b'["\xff"]', "is not UTF-8"),
        (b'["\xed\xa0\x80"]', "is not UTF-8"),
        (b'["a\tb"]', "is not JSON"),
        (b"[01]", "is not JSON"),
        (b"[NaN]", "has NaN or Infinity, which are not JSON"),
        (b"[-Infinity]", "has NaN or Infinity, which are not JSON"),
        (b"[1e999]", _BEYOND),
        (b"[" + b"9" * 309 + b"]", _BEYOND),
        (b"[" + b"9" * 5000 + b"]", _BEYOND),
        (b"[0." + b"1" * 1000 + b"]", _BEYOND),
        (b'{"a": {"b": 1, "\\u0062": 2}}', "has a duplicate key"),
        (b'{"\\ud800": 1}', "has half of a surrogate pair"),
        (b'["\\udc00\\ud800"]', "has half of a surrogate pair"),
        (b"[" * 129 + b"]" * 129, _DEEP),
        (b"[" * 2_000_000, _DEEP),
        (b'{"a":' * 100_000, _DEEP),
        (b"null", "is null"),
    ],
)
def test_hostile_bodies_have_no_value(body: bytes, why: str) -> None:
    assert read({"type": "array"}, body) == ([None], [why])
    if body != b"null":
        assert decode(JsonText(), pa.array([body]))[1].to_pylist() == [why]


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("integer", "1.0", "a.b is not an integer"),
        ("integer", "true", "a.b is not an integer"),
        ("integer", "9223372036854775808", "a.b is beyond 64 bits"),
        ("number", '"1"', "a.b is not a number"),
        ("number", "false", "a.b is not a number"),
        ("string", "1", "a.b is not a string"),
        ("boolean", "0", "a.b is not a boolean"),
        ("array", "{}", "a.b is not an array"),
        ("object", "[]", "a.b is not an object"),
    ],
)
def test_another_type_is_told_by_its_place_without_the_body(kind: str, body: str, why: str) -> None:
    schema = {"properties": {"a": {"properties": {"b": {"type": kind}}}}}
    assert read(schema, f'{{"a": {{"b": {body}}}}}') == ([None], [why])


@given(data=st.data())
def test_what_has_a_value_has_that_of_another_parser(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    body = data.draw(bodies(schema))
    ((text,), _) = (each.to_pylist() for each in decode(JsonText(), pa.array([body])))
    ((value,), (error,)) = read(schema, body)
    if text is None:
        assert error is not None
    else:
        assert _fits(msgspec.json.decode(body), value, schema) == (error is None)


@pytest.mark.parametrize("schema", [{}, {"title": "x"}, True, {"type": ["integer", "null"]}])
def test_null_is_a_value_where_the_schema_says_so_or_nothing(schema: Any) -> None:
    assert JsonBody(schema, "schema").value(b"null") is None


def _fits(parsed: Any, value: Any, schema: dict[str, Any]) -> bool:
    """Whether another parser's value is of the schema, and is this one then."""
    if parsed is None:
        return value is None and (schema.get("type") is None or isinstance(schema["type"], list))
    kind = schema["type"][0] if isinstance(schema.get("type"), list) else schema.get("type")
    if kind is None:
        return value is not None and json.loads(value) == parsed
    types = {"string": str, "boolean": bool, "integer": int, "number": float, "array": list, "object": dict}
    return value is not None and (isinstance(parsed, types[kind]) or (kind == "number" and type(parsed) is int))


@given(body=st.binary(max_size=30))
def test_bytes_of_anybody_are_json_text_or_none(body: bytes) -> None:
    (value,), (error,) = (each.to_pylist() for each in decode(JsonText(), pa.array([body])))
    assert (value is None) == (error is not None)
    if error is None:
        msgspec.json.decode(body)


def test_many_bodies_are_decoded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of any size, in order."""
    monkeypatch.setattr("checkback.bodies.decoder._PIECE_ROWS", 7)
    monkeypatch.setattr("checkback.bodies.decoder._PIECE_BYTES", 20)
    found = [str(number).encode() * (number % 4 + 1) for number in range(100)]
    column = pa.chunked_array([found[:50], [], found[50:]], pa.binary())
    rows = with_values(pa.table({"body": column}), BodyFormat("json", "x", b'{"type": "integer"}'))
    assert rows["value"].to_pylist() == [int(body) for body in found]
    assert rows["value"].num_chunks > 10
    assert with_values(rows.select(["body"]).slice(0, 0), BodyFormat("text", "x"))["value"].to_pylist() == []


def test_a_body_of_too_many_values_has_none() -> None:
    """Three bytes may be an item of a hundred columns."""
    wide = {"properties": {f"f{number}": {"type": "string"} for number in range(100)}}
    many = ["has more than 5000000 values"]
    assert read({"type": "array", "items": wide}, "[" + "{}," * 50_000 + "{}]") == ([None], many)
    body = json.dumps({str(number): {} for number in range(50_000)})
    assert read({"type": "object", "additionalProperties": wide}, body) == ([None], many)
    assert read({"type": "array"}, "[" + "{}," * 50_000 + "{}]")[1] == [None]


_KEYWORDS = st.sampled_from(
    ["type", "properties", "items", "$ref", "anyOf", "allOf", "enum", "const", "additionalProperties", "x"]
)
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_KEYWORDS, below, max_size=3),
)


@given(schema=_ANYTHING, body=st.sampled_from([b"1", b"{}", b'{"x": [1]}', b"[null]"]))
def test_whatever_a_schema_is_it_is_read_or_refused_in_words(schema: Any, body: bytes) -> None:
    with suppress(SettingsError):
        read(schema, body)


def test_a_schema_that_is_too_large_or_none_is_refused() -> None:
    laughs: dict[str, Any] = {
        f"a{n}": {"properties": {k: {"$ref": f"#/$defs/a{n + 1}"} for k in "xyz"}} for n in range(20)
    }
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"items": deep, "type": "array"}
    for schema, what in (
        (deep, "is nested too deeply"),
        ({"$ref": "#/$defs/a0", "$defs": laughs | {"a20": {}}}, "has more than 10000 parts"),
        ({"type": "date"}, "has a type that is not of JSON Schema"),
        ([], "is not a JSON Schema"),
        ({"properties": [1]}, "has properties that are not a mapping"),
        ({"$ref": "#/$defs/no"}, "to what it does not have"),
        ({"$ref": "#here", "$defs": {"a": {"$anchor": "here", "type": "string"}}}, "to an anchor"),
    ):
        with pytest.raises(SettingsError, match=rf"^topics\.t\.schema: the JSON Schema .*{what}"):
            read(schema)
