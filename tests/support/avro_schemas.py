"""Avro schemas with their values, for hypothesis, and fastavro's own encoding of them."""

from __future__ import annotations

import io
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import Any

import fastavro
from hypothesis import strategies as st

#: a schema with what Arrow has other types for, and a value as it is read
PAYMENT = {
    "type": "record",
    "name": "shop.Payment",
    "fields": [
        {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}},
        {"name": "paid", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "day", "type": ["null", {"type": "int", "logicalType": "date"}]},
        {"name": "id", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["OPEN", "DONE"]}},
        {"name": "lines", "type": {"type": "array", "items": {"type": "map", "values": "double"}}},
        {
            "name": "by",
            "type": ["null", "string", {"type": "record", "name": "Card", "fields": [{"name": "no", "type": "int"}]}],
        },
    ],
}
VALUE: dict[str, Any] = {
    "amount": Decimal("-12.30"),
    "paid": datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=timezone.utc),
    "day": date(2026, 1, 2),
    "id": "00000000-0000-0000-0000-00000000002a",
    "state": "DONE",
    "lines": [{"price": 1.5}, {}],
    "by": {"string": None, "Card": {"no": 7}},
}


def written(schema: Any, value: Any) -> bytes:
    """The value as fastavro writes it, without a container."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


_NAMES = st.sampled_from(["a", "b", "c", "d"])
_SIMPLE: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=8),
    "string": st.text(max_size=8),
}


def simple_values(kind: str) -> st.SearchStrategy[Any]:
    """Values of a primitive type."""
    return _SIMPLE[kind]


@st.composite
def typed(draw: st.DrawFn, depth: int = 3, name: str = "n") -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and a strategy of its values."""
    kind = draw(st.sampled_from([*_SIMPLE, *(["record", "array", "map", "option", "enum"] if depth else [])]))
    if kind in _SIMPLE:
        return kind, _SIMPLE[kind]
    if kind == "enum":
        symbols = draw(st.lists(_NAMES, min_size=1, unique=True))
        return {"type": "enum", "name": name, "symbols": symbols}, st.sampled_from(symbols)
    if kind == "record":
        fields = {
            each: draw(typed(depth - 1, f"{name}{each}")) for each in draw(st.lists(_NAMES, min_size=1, unique=True))
        }
        schema = {"type": "record", "name": name, "fields": [{"name": k, "type": v[0]} for k, v in fields.items()]}
        return schema, st.fixed_dictionaries({key: each[1] for key, each in fields.items()})
    below, values = draw(typed(depth - 1, f"{name}_"))
    if kind == "option":
        nullable = below == "null" or isinstance(below, list)
        return (below, values) if nullable else (["null", below], st.none() | values)
    return _several(kind, below, values)


def _several(kind: str, below: Any, values: st.SearchStrategy[Any]) -> tuple[Any, st.SearchStrategy[Any]]:
    if kind == "array":
        return {"type": "array", "items": below}, st.lists(values, max_size=3)
    return {"type": "map", "values": below}, st.dictionaries(st.text(max_size=3), values, max_size=3)


def has_empty_items(schema: Any) -> bool:
    """Whether an array's items may take no bytes: those are refused."""
    if isinstance(schema, dict):
        if schema["type"] == "array" and _is_empty(schema["items"]):
            return True
        return any(map(has_empty_items, [schema.get("items"), schema.get("values"), *_fields(schema)]))
    return isinstance(schema, list) and any(map(has_empty_items, schema))


def _is_empty(schema: Any) -> bool:
    return schema == "null" or (
        isinstance(schema, dict) and schema["type"] == "record" and all(map(_is_empty, _fields(schema)))
    )


def _fields(schema: dict[str, Any]) -> list[Any]:
    return [each["type"] for each in schema.get("fields", ())]
