"""JSON Schemas and JSON that may fit them, for hypothesis."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

_NAMES = st.sampled_from(["a", "b", "a b", "ä", "", "it's", 'q"', "`"])
#: JSON of one value, and what looks like it
SCALARS = (
    *("null", "true", "false", "True", "nul", ""),
    *("0", "-0", "1.0", "-1.5", "1e5", "1E-400", "9223372036854775807", "9223372036854775808", "-9223372036854775808"),
    *("1e308", "1e309", "-1e999", "9" * 39, "9" * 320, "0.1", "123456789.123456789012345678901234567890", "4.9e-324"),
    *("1." + "1" * 1000, "0.1.1", "01", "+1", "1.", ".5", "NaN", "-Infinity"),
    *('"x"', '"\\ud83d\\ude00"', '"\\ud800"', '"\\udc00\\ud800"', '"\\u0000"', '"a\tb"', '"1e999 [[["', '"\\"{"'),
    *("'x'", '"x', '"Zoë"', '"5"', '"true"', '"Infinity"', "[]", "{}", "[null]", '{"a": null}', "[1]", '{"a": 1}'),
)
_SCALARS = st.sampled_from(SCALARS)
_DEEP = st.sampled_from([128, 129, 300]).map(lambda depth: "[" * depth + "]" * depth)


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    """Of all types that are typed, with parts that are not."""
    simple: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
        [{"type": "string"}, {"type": "integer"}, {"type": "number"}, {"type": "boolean"}, {}, {"type": "object"},
         {"type": ["integer", "null"]}]
    )  # fmt: skip
    if not depth:
        return simple
    below = schemas(depth - 1)
    return st.one_of(
        simple,
        st.builds(_struct, st.dictionaries(_NAMES, below, min_size=1, max_size=3)),
        st.builds(_array, below),
        st.builds(_map, below),
    )


def _struct(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def _array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _map(entries: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": entries}


def texts(schema: dict[str, Any]) -> st.SearchStrategy[str]:
    """JSON that fits the schema as often as not, and text that is none."""
    kinds = schema.get("type")
    kind = kinds[0] if isinstance(kinds, list) else kinds
    fitting: st.SearchStrategy[str] = _SCALARS
    if kind == "string":
        fitting = st.text(max_size=5).map(json.dumps)
    elif kind == "integer":
        fitting = st.integers(-(2**63), 2**63 - 1).map(str)
    elif kind == "number":
        fitting = st.floats(allow_nan=False, allow_infinity=False).map(repr) | st.integers(-(10**40), 10**40).map(str)
    elif kind == "boolean":
        fitting = st.sampled_from(["true", "false"])
    elif kind == "array":
        fitting = st.lists(texts(schema["items"]), max_size=3).map(lambda it: f"[{','.join(it)}]")
    elif "properties" in schema:
        fields = {name: texts(each) for name, each in schema["properties"].items()}
        fitting = st.fixed_dictionaries({}, optional=fields | {"more": _SCALARS}).map(_object)
    elif kind == "object":
        fitting = st.dictionaries(_NAMES, texts(schema.get("additionalProperties", {})), max_size=3).map(_object)
    return st.one_of(fitting, fitting, fitting, fitting, fitting, _SCALARS | _DEEP)


def _object(entries: dict[str, str]) -> str:
    return f"{{{','.join(f'{json.dumps(name)}: {value}' for name, value in entries.items())}}}"


def bodies(schema: dict[str, Any]) -> st.SearchStrategy[bytes]:
    """Bodies of `texts`, some with something around them, or twice a key, and bytes of anybody."""
    text = texts(schema)
    junk = st.sampled_from(
        ["", "", "", " ", "\n", "]", "}", "] x", "} x", ",1", "\ufeff", "//", " 1", ',"w":2', "\x00"]
    )
    around = st.tuples(junk, text, junk).map("".join)
    twice = text.map(lambda value: f'{{"a": {value}, "\\u0061": {value}}}')
    return (text | around | twice).map(str.encode) | st.binary(max_size=8)
