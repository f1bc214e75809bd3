"""Typed topics: value and value_error of bodies, alike in Arrow, pandas, DuckDB, polars and Spark."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from checkback import Checkback, Settings, SettingsError
from support.query_times import append
from support.stories import BORN, Transaction, batch

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

PAYMENT = {
    "type": "object",
    "properties": {
        "amount": {"type": "integer"},
        "to": {"type": ["string", "null"]},
        "lines": {"type": "array", "items": {"type": "object", "properties": {"price": {"type": "number"}}}},
    },
}
GOOD = {"amount": 42, "to": "Zoë", "lines": [{"price": 1.5}]}
BODIES = [json.dumps(GOOD).encode(), b'{"amount": "42"}', b"", None, b"\xff", b'{"amount": 1, "to": null}']
ERRORS = [None, "amount is not an integer", "is not JSON", None, "is not UTF-8", None]


def lake(root: Path, bodies: list[bytes | None]) -> None:
    """A topic `payments` with these bodies, in order, of two batches, and what a topic needs beside it."""
    append(root, "half", [Transaction(0, 0).half()[1]])
    times = [BORN, BORN + timedelta(seconds=2)]
    append(root, "batches", [batch(number, time)[1] for number, time in enumerate(times)])
    rows = [
        {"half_queue_id": 0, "half_queue_offset": number, "batch_id": number % 2, "published_at": times[number % 2]}
        for number in range(len(bodies))
    ]
    for part in (0, 1):
        mine = [row | {"body": body} for row, body in zip(rows, bodies, strict=True) if row["batch_id"] == part]
        append(root, "topics/payments", mine)


def opened(root: Path, spark: SparkSession | None = None, **body: Any) -> Checkback:
    """The lake, with the format of the bodies of `payments`."""
    settings = {"storage": {"root": str(root)}, "topics": {"payments": body}}
    return Checkback(settings=Settings.model_validate(settings), spark=spark)


def test_a_json_schema_types_the_values_and_bodies_that_have_none_say_why(tmp_path: Path) -> None:
    lake(tmp_path, BODIES)
    topic = opened(tmp_path, body="json", schema=PAYMENT).topic("payments")
    rows = topic.to_arrow()
    assert rows["body"].to_pylist() == BODIES
    assert rows["value"].type == pa.struct(
        [
            ("amount", pa.int64()),
            ("to", pa.string()),
            ("lines", pa.list_(pa.struct([("price", pa.float64())]))),
        ]
    )
    assert rows["value"].to_pylist() == [GOOD, None, None, None, None, {"amount": 1, "to": None, "lines": None}]
    assert rows["value_error"].to_pylist() == ERRORS
    with duckdb.connect() as connection:
        found = connection.execute("SELECT sum(value.amount), count(value_error) FROM topic").fetchall()
    assert found == [(43, 3)]
    assert topic.to_pandas()["value_error"].notna().sum() == 3


def test_without_the_setting_a_topic_is_its_table(tmp_path: Path) -> None:
    lake(tmp_path, BODIES)
    assert "value" not in opened(tmp_path).topic("payments").to_arrow().column_names
    assert "value" in opened(tmp_path, body="text").topic("payments").to_arrow().column_names


def test_a_schema_that_is_none_is_refused_where_it_is_set(tmp_path: Path) -> None:
    lake(tmp_path, [])
    for schema, what in (("{", "is not JSON"), ({"type": "money"}, "has a type"), ({"$ref": "http://x/y"}, "another")):
        with pytest.raises(SettingsError, match=rf"^topics\.payments\.schema: .*{what}"):
            opened(tmp_path, body="json", schema=schema).topic("payments").to_arrow()
    with pytest.raises(SettingsError, match=r"topics.payments.schema_file: no.json cannot be read: No such file"):
        opened(tmp_path, body="json", schema_file="no.json").topic("payments").to_arrow()


@pytest.mark.parametrize("form", [{"body": "json", "schema": PAYMENT}, {"body": "text"}], ids=["json", "text"])
@pytest.mark.spark
def test_spark_has_the_same_values(spark: SparkSession, tmp_path: Path, form: dict[str, Any]) -> None:
    lake(tmp_path, BODIES)
    here, there = opened(tmp_path, **form), opened(tmp_path, spark, **form)
    rows = here.topic("payments").to_arrow()
    assert there.topic("payments").to_arrow().to_pylist() == rows.to_pylist()
    frame = there.topic("payments").to_spark().orderBy("half_queue_offset")
    assert (
        frame.select("value", "value_error").toArrow().to_pylist() == rows.select(["value", "value_error"]).to_pylist()
    )
    pruned = there.topic("payments").to_spark().select("batch_id")
    assert "ArrowEvalPython" in frame._jdf.queryExecution().toString()
    assert "ArrowEvalPython" not in pruned._jdf.queryExecution().executedPlan().toString()


@pytest.mark.spark
def test_json_without_a_schema_is_a_variant_in_spark(spark: SparkSession, tmp_path: Path) -> None:
    lake(tmp_path, BODIES)
    rows = opened(tmp_path, body="json").topic("payments").to_arrow()
    frame = opened(tmp_path, spark, body="json").topic("payments").to_spark().orderBy("half_queue_offset")
    assert frame.schema["value"].dataType.simpleString() == "variant"
    found = frame.selectExpr("to_json(value) AS text", "value_error", "value:amount::int AS amount").collect()
    texts = [None if text is None else json.loads(text) for text in rows["value"].to_pylist()]
    assert [None if row.text is None else json.loads(row.text) for row in found] == texts
    assert [row.value_error for row in found] == rows["value_error"].to_pylist()
    assert [row.amount for row in found] == [42, 42, None, None, None, 1]
