"""Lasting views decode by SQL alone what the decoder decodes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.bodies.body_format import BodyFormat, with_values
from checkback.query.typed_sql import has_sql, lasting_query
from checkback.settings.model import TopicBody
from checkback.storage.dataframes import frame
from support.examples import DEAR
from support.json_schemas import SCALARS, bodies, schemas

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

_QUERY = "SELECT *, try_validate_utf8(CAST(body AS STRING)) AS body_text FROM {rows}"
_ANY: dict[str, Any] = {}


def _of_sql(spark: SparkSession, form: BodyFormat, found: list[bytes | None], value: str) -> list[tuple[Any, bool]]:
    rows = frame(spark, pa.table({"i": range(len(found)), "body": pa.array(found, pa.binary())}))
    query = lasting_query(form, _QUERY).replace("{rows}", "bodies")
    rows.createOrReplaceTempView("bodies")
    shown = spark.sql(f"SELECT {value} AS value, value_error FROM ({query}) ORDER BY i").toArrow().to_pylist()  # noqa: S608
    return [(row["value"], row["value_error"] is not None) for row in shown]


def _of_decoder(form: BodyFormat, found: list[bytes | None]) -> list[tuple[Any, bool]]:
    rows = with_values(pa.table({"body": pa.array(found, pa.binary())}), form).to_pylist()
    return [(row["value"], row["value_error"] is not None) for row in rows]


def _comparable(value: Any, schema: dict[str, Any]) -> Any:
    """The value with parsed JSON for its text, and a map's entries in order: VARIANT keeps neither's spelling."""
    if value is None:
        return None
    if "properties" in schema:
        return {name: _comparable(value[name], each) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_comparable(each, schema["items"]) for each in value]
    if "additionalProperties" in schema:
        return sorted((key, _comparable(each, schema["additionalProperties"])) for key, each in value)
    return _read(value) if schema.get("type") in (None, "object") else value


def _read(text: str) -> Any:
    """JSON's value; a number is what a double has of it."""
    return json.loads(text, parse_int=float)


def _same(spark: SparkSession, schema: dict[str, Any], found: list[bytes | None]) -> None:
    form = BodyFormat("json", "x", json.dumps(schema).encode())
    expected, there = _of_decoder(form, found), _of_sql(spark, form, found, "value")
    for body, (value, failed), (other, also) in zip(found, expected, there, strict=True):
        assert also == failed, body
        assert _comparable(other, schema) == _comparable(value, schema), body


@DEAR
@given(data=st.data())
@pytest.mark.spark
def test_sql_decodes_what_the_decoder_decodes(spark: SparkSession, data: st.DataObject) -> None:
    schema = data.draw(schemas())
    found: list[bytes | None] = [None, *data.draw(st.lists(bodies(schema), min_size=10, max_size=40))]
    _same(spark, schema, found)


@pytest.mark.parametrize("kind", ["string", "integer", "number", "boolean", "array", "object", "map", "struct"])
@pytest.mark.spark
def test_sql_takes_what_the_decoder_takes_for_each_type(spark: SparkSession, kind: str) -> None:
    integers = {"type": "integer"}
    several = {
        "array": {"type": "array", "items": integers},
        "map": {"type": "object", "additionalProperties": integers},
        "struct": {"type": "object", "properties": {"a": integers}},
    }
    schema = several.get(kind, {"type": kind})
    _same(spark, schema, [text.encode() for text in SCALARS])
    _same(spark, {"type": "array", "items": schema}, [f"[{text}]".encode() for text in SCALARS])


@DEAR
@given(found=st.lists(bodies(_ANY), min_size=10, max_size=40))
@example([b'{"a": 1} x', b"[1] ]", b"1,2", b"", b"1e999", b'{"a": "Infinity"}', b"[" * 129 + b"]" * 129, b'"\\ud800"'])
@pytest.mark.spark
def test_sql_parses_what_the_decoder_parses(spark: SparkSession, found: list[bytes | None]) -> None:
    form = BodyFormat("json", "x")
    expected, there = _of_decoder(form, found), _of_sql(spark, form, found, "to_json(value)")
    for body, (value, failed), (other, also) in zip(found, expected, there, strict=True):
        assert also == failed, body
        assert (None if other is None else _read(other)) == (None if value is None else _read(value)), body


@pytest.mark.spark
def test_a_string_that_does_not_end_costs_no_time(spark: SparkSession) -> None:
    """Of JSON that is cut short within embedded JSON; a look from each quote to the end would take hours."""
    cut = b'"' + b'\\"' * (1 << 19)
    assert _of_sql(spark, BodyFormat("json", "x"), [cut], "to_json(value)") == [(None, True)]


@pytest.mark.spark
def test_text_and_what_sql_cannot_decode(spark: SparkSession) -> None:
    found = [b"x", b"\xff", None, b""]
    text = BodyFormat("text", "x")
    assert _of_sql(spark, text, found, "value") == _of_decoder(text, found)
    avro = {"body": "avro", "schema": "string"}
    headed = {"body": "json", "schema_registry": "http://127.0.0.1"}
    assert [has_sql(TopicBody.model_validate(each)) for each in (avro, headed, {"body": "json"})] == [
        False,
        False,
        True,
    ]
