"""Typed bodies in SQL alone, for lasting views: other clients of the catalog have none of this process's functions.

Values are those of `json_body`: the tests compare both. `try_parse_json` reads as strictly, but for three things: it
ignores what follows the value, takes numbers beyond a double for infinite ones, and has no limit of levels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.bodies.decoder import ERROR, MAX_DEPTH, NOT_UTF8, VALUE
from checkback.bodies.json_body import MAX_NUMBER, JsonBody

if TYPE_CHECKING:
    from checkback.bodies.body_format import BodyFormat
    from checkback.bodies.json_body import Part
    from checkback.settings.model import TopicBody

#: one that no value follows: what closes it within an array does not close it within an object
_WHOLE = (
    "try_parse_json(concat('[', {0}, ']')) IS NOT NULL AND try_parse_json(concat('{{\"\":', {0}, '}}')) IS NOT NULL"
)
#: also one that does not end: each of its quotes would else be looked at to the body's end
_STRING = r"""r'"(?:[^"\\]++|\\.)*+"?'"""
_NUMBER = "r'-?[0-9][-+.0-9eE]*'"
_TYPES = {"string": "STRING", "integer": "BIGINT", "number": "DOUBLE", "boolean": "BOOLEAN"}
#: by kind what schema_of_variant says of a value
_SHAPES = {
    "string": "= 'STRING'",
    "integer": "= 'BIGINT'",
    "number": "RLIKE '^(BIGINT|DOUBLE|DECIMAL.*)$'",
    "boolean": "= 'BOOLEAN'",
    "array": "LIKE 'ARRAY<%'",
    "map": "LIKE 'OBJECT<%'",
    "object": "LIKE 'OBJECT<%'",
}


def has_sql(body: TopicBody | None) -> bool:
    """Whether SQL can decode the format that the settings tell."""
    return body is not None and body.schema_registry is None and body.body in ("json", "text")


def lasting_query(body: BodyFormat, query: str) -> str:
    """The query, which has body and body_text, with `VALUE` and `ERROR`, for formats that `has_sql`.

    Raises SettingsError.
    """
    error = f"CASE WHEN body IS NULL THEN NULL WHEN body_text IS NULL THEN '{NOT_UTF8}'"
    if body.body == "text":
        return f"SELECT *, body_text AS {VALUE}, {error} END AS {ERROR} FROM ({query})"
    bare = f"regexp_replace(body_text, {_STRING}, '')"
    valid = f"{_WHOLE.format('body_text')} AND {_numbers_fit('_bare')} AND {_is_flat('_bare')}"
    parsed = f"SELECT *, CASE WHEN {valid} THEN try_parse_json(body_text) END AS _json FROM (SELECT *, {bare} AS _bare FROM ({query}))"  # noqa: E501
    fits, value = "true", "_json"
    decoder = body.decoder
    if isinstance(decoder, JsonBody):
        fits, value = _fits("_json", decoder.part, 0), _value("_json", decoder.part, 0)
        if not decoder.part.nullable:
            error += " WHEN is_variant_null(_json) THEN 'is null'"
            fits = f"NOT is_variant_null(_json) AND {fits}"
    error += f" WHEN _json IS NULL THEN 'is not JSON' WHEN NOT ({fits}) THEN 'does not fit its schema' END"
    value = f"CASE WHEN _json IS NOT NULL AND {fits} THEN {value} END"
    return f"SELECT * EXCEPT (_json, _bare), {value} AS {VALUE}, {error} AS {ERROR} FROM ({parsed})"


def _numbers_fit(bare: str) -> str:
    """Whether all numbers of JSON without its strings are finite doubles."""
    beyond = f"length(n) > {MAX_NUMBER} OR abs(CAST(n AS DOUBLE)) = CAST('Infinity' AS DOUBLE)"
    return f"NOT exists(regexp_extract_all({bare}, {_NUMBER}, 0), n -> {beyond})"


def _is_flat(bare: str) -> str:
    """Whether JSON without its strings has at most `MAX_DEPTH` levels."""
    brackets = f"regexp_replace({bare}, r'[^\\[\\]{{}}]', '')"
    step = "CASE WHEN bracket IN ('[', '{') THEN 1 WHEN bracket IN (']', '}') THEN -1 ELSE 0 END"
    deepest = (
        f"aggregate(split({brackets}, ''), named_struct('now', 0, 'most', 0), (levels, bracket) -> named_struct("
        f"'now', levels.now + {step}, 'most', greatest(levels.most, levels.now + {step}))).most"
    )
    return f"CASE WHEN length({brackets}) <= {2 * MAX_DEPTH} THEN true ELSE {deepest} <= {MAX_DEPTH} END"


def _is_null(json: str) -> str:
    return f"({json} IS NULL OR is_variant_null({json}))"


def _entries(json: str) -> str:
    return f"try_cast({json} AS MAP<STRING, VARIANT>)"


def _items(json: str) -> str:
    return f"try_cast({json} AS ARRAY<VARIANT>)"


def _entry(json: str, name: str) -> str:
    return f"try_element_at({_entries(json)}, {_literal(name)})"


def _literal(text: str) -> str:
    """Text as SQL's, whichever way the session reads backslashes and quotes."""
    return f"CAST(X'{text.encode().hex()}' AS STRING)"


def _fits(json: str, part: Part, depth: int) -> str:
    """Whether a VARIANT, which may be null, is of the types of a part of the schema; never null itself."""
    if part.kind == "any":
        return "true"
    shape, below = f"schema_of_variant({json}) {_SHAPES[part.kind]}", f"v{depth}"
    if part.kind == "array":
        shape += f" AND forall({_items(json)}, {below} -> {_fits(below, part.below[''], depth + 1)})"
    elif part.kind == "map" and part.below:
        shape += f" AND forall(map_values({_entries(json)}), {below} -> {_fits(below, part.below[''], depth + 1)})"
    elif part.kind == "object":
        fields = (_fits(_entry(json, name), each, depth) for name, each in part.below.items())
        shape = " AND ".join([shape, *fields])
    return f"({_is_null(json)} OR ({shape}))"


def _value(json: str, part: Part, depth: int) -> str:
    """The value of a VARIANT that fits."""
    below = f"v{depth}"
    if part.kind in _TYPES:
        return f"try_cast({json} AS {_TYPES[part.kind]})"
    if not part.below:
        return f"CASE WHEN NOT {_is_null(json)} THEN to_json({json}) END"
    if part.kind == "array":
        return f"transform({_items(json)}, {below} -> {_value(below, part.below[''], depth + 1)})"
    if part.kind == "map":
        return f"transform_values({_entries(json)}, (k{depth}, {below}) -> {_value(below, part.below[''], depth + 1)})"
    fields = [f"{_literal(name)}, {_value(_entry(json, name), each, depth)}" for name, each in part.below.items()]
    return f"CASE WHEN NOT {_is_null(json)} THEN named_struct({', '.join(fields)}) END"
