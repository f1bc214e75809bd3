"""Typed topics: value and value_error of bodies, alike in Arrow, pandas, DuckDB, polars and Spark."""

from __future__ import annotations

import json
import re
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import duckdb
import polars
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback import Checkback, Settings, SettingsError, StorageError
from checkback.bodies.body_format import BodyFormat, with_values
from checkback.consumer import create_views, read, read_stream
from checkback.query.typed_frames import with_value_columns
from checkback.settings.model import TopicBody
from checkback.storage.dataframes import frame
from support import avro_schemas, json_schemas
from support.avro_schemas import has_empty_items, typed, written
from support.examples import DEAR
from support.protobuf_files import made, write_descriptors
from support.query_times import append
from support.schema_registry import SchemaRegistry, headed
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
HEADER = "does not begin with a schema's id (magic byte 0, then 4 bytes)"
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


def _everywhere(spark: SparkSession, form: BodyFormat, bodies: list[bytes | None]) -> list[dict[str, Any]]:
    """The two columns of bodies, which DuckDB, polars and Spark must have as Arrow has them."""
    rows = with_values(pa.table({"body": pa.array(bodies, pa.binary())}), form)
    found = _plain(rows.drop_columns("body"))
    with duckdb.connect() as connection:
        assert _plain(connection.sql("SELECT value, value_error FROM rows").to_arrow_table()) == found
    assert _plain(polars.DataFrame(rows).select("value", "value_error").to_arrow()) == found
    there = with_value_columns(frame(spark, rows.select(["body"])), form)
    assert _plain(there.select("value", "value_error").toArrow()) == found
    return found


def _plain(rows: pa.Table) -> list[dict[str, Any]]:
    """The rows as Python has them, comparable: engines may give timestamps another name of UTC, and NaN is NaN."""
    return [_comparable(row) for row in rows.to_pylist()]


def _comparable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _comparable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):  # a map is a list of pairs, of polars of structs
        return [
            _comparable(list(each.values()) if isinstance(each, dict) and each.keys() == {"key", "value"} else each)
            for each in value
        ]
    return value


@DEAR
@given(data=st.data())
@pytest.mark.spark
def test_all_engines_have_the_same_values_of_avro(spark: SparkSession, data: st.DataObject) -> None:
    schema, values = data.draw(typed().filter(lambda found: not has_empty_items(found[0])))
    bodies: list[bytes | None] = [
        written(schema, value) for value in data.draw(st.lists(values, min_size=1, max_size=5))
    ]
    bodies += [None, *data.draw(st.lists(st.binary(max_size=20), max_size=5))]
    form = BodyFormat("avro", "x", json.dumps(schema).encode())
    assert _everywhere(spark, form, bodies)[0]["value_error"] is None


@DEAR
@given(data=st.data())
@pytest.mark.spark
def test_all_engines_have_the_same_values_of_json(spark: SparkSession, data: st.DataObject) -> None:
    schema = data.draw(json_schemas.schemas())
    bodies: list[bytes | None] = [None, *data.draw(st.lists(json_schemas.bodies(schema), min_size=3, max_size=20))]
    _everywhere(spark, BodyFormat("json", "x", json.dumps(schema).encode()), bodies)


@pytest.mark.spark
def test_all_engines_have_the_same_dates_decimals_and_unions(spark: SparkSession) -> None:
    body = written(
        avro_schemas.PAYMENT,
        avro_schemas.VALUE | {"id": UUID(avro_schemas.VALUE["id"]), "by": ("shop.Card", {"no": 7})},
    )
    found = _everywhere(spark, BodyFormat("avro", "x", json.dumps(avro_schemas.PAYMENT).encode()), [body, body[:-1]])
    assert found[0]["value"]["paid"] == avro_schemas.VALUE["paid"]
    assert found[1]["value_error"] == "ends within a value"


@pytest.mark.spark
def test_all_engines_have_the_same_messages_of_protobuf(spark: SparkSession, tmp_path: Path) -> None:
    write_descriptors(tmp_path)
    content = (tmp_path / "shop.bin").read_bytes()
    order = made(content, "shop.Order")(
        l=-(2**63), big=2**64 - 1, raw=b"\xff", state=1, lines=[{"weight": 0.5}], by_name={"b": {}, "a": {}},
        states={7: 1, -7: 5}, at={"seconds": -(2**33), "nanos": 999}, wrapped={"value": 0}, cash="x",
    )  # fmt: skip
    bodies = [order.SerializeToString(), b"", b"\xff", None]
    found = _everywhere(spark, BodyFormat("protobuf", "x", content, "shop.Order"), bodies)
    assert [row["value_error"] for row in found] == [None, None, "is not a shop.Order", None]


@pytest.mark.parametrize("form", [{"body": "json", "schema": PAYMENT}, {"body": "json"}], ids=["schema", "variant"])
@pytest.mark.spark
def test_temporary_views_and_readers_have_the_columns_too(
    spark: SparkSession, tmp_path: Path, form: dict[str, Any]
) -> None:
    lake(tmp_path, BODIES)
    settings = opened(tmp_path, **form).settings
    assert create_views(spark, settings) == {"payments": "`payments`"}
    topic = opened(tmp_path, spark, **form).topic("payments").to_spark()
    stream = read_stream(spark, settings, "payments").writeStream.format("memory").queryName("typed_stream")
    stream.trigger(availableNow=True).start().awaitTermination()
    shown = "SELECT half_queue_offset, to_json(struct(value)) AS value, value_error FROM {rows} ORDER BY 1"
    expected = spark.sql(shown, rows=topic).collect()
    assert [row.value_error for row in expected].count(None) == (3 if "schema" in form else 4)
    for rows in ("payments", "typed_stream"):
        assert spark.sql(shown.format(rows=rows)).collect() == expected
    assert spark.sql(shown, rows=read(spark, settings, "payments")).collect() == expected
    plan = spark.sql("EXPLAIN SELECT batch_id, body_text FROM payments").collect()[0][0]
    assert "ArrowEval" not in plan
    assert "ArrowEval" in spark.sql("EXPLAIN SELECT value FROM payments").collect()[0][0]


@pytest.mark.parametrize(
    ("module", "form"),
    [
        ("fastavro", {"body": "avro", "schema": "string"}),
        ("google.protobuf", {"body": "protobuf", "schema_file": "x.bin", "message": "M"}),
    ],
    ids=["avro", "protobuf"],
)
def test_an_extra_that_is_missing_is_named_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, form: dict[str, Any]
) -> None:
    lake(tmp_path, [])
    (tmp_path / "x.bin").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    for name in [module, *(each for each in sys.modules if each.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)
    extra = re.escape(f"install checkback[{form['body']}]")
    with pytest.raises(SettingsError, match=rf"^topics\.payments\.schema.*: the Python module .* is missing; {extra}$"):
        opened(tmp_path, **form).topic("payments").to_arrow()


@pytest.mark.spark
def test_lasting_views_have_the_columns_by_sql(spark: SparkSession, tmp_path: Path) -> None:
    lake(tmp_path, BODIES)
    for form, columns in (
        ({"body": "json", "schema": PAYMENT}, 2), ({"body": "json"}, 2), ({"body": "avro", "schema": "string"}, 0),
    ):  # fmt: skip
        made = create_views(spark, opened(tmp_path, **form).settings, "typed_topics")
        assert made == {"payments": "`typed_topics`.`payments`"}
        view = spark.table(made["payments"])
        assert len({"value", "value_error"} & set(view.columns)) == columns
        assert not {"_json", "_bare"} & set(view.columns)
        if "schema" in form and columns:
            rows = view.orderBy("half_queue_offset").select("value", "value_error").toArrow().to_pylist()
            assert [row["value"] for row in rows] == [
                GOOD,
                None,
                None,
                None,
                None,
                {"amount": 1, "to": None, "lines": None},
            ]
            errors = [None, "does not fit its schema", "is not JSON", None, "is not UTF-8", None]
            assert [row["value_error"] for row in rows] == errors
    spark.sql("DROP SCHEMA typed_topics CASCADE")


@pytest.mark.spark
def test_one_topics_fault_leaves_the_others_their_views(spark: SparkSession, tmp_path: Path) -> None:
    """Lasting views do not even ask a registry whose columns they leave out."""
    lake(tmp_path, BODIES)
    append(tmp_path, "topics/a_orders", [])
    down = {"body": "avro", "schema_registry": "http://127.0.0.1:1"}
    settings = opened(tmp_path, body="text").settings.model_copy(
        update={"topics": {"a_orders": TopicBody.model_validate(down), "payments": TopicBody(body="text")}}
    )
    made = create_views(spark, settings, "typed_topics")
    assert list(made) == ["a_orders", "payments"]
    assert "value" in spark.table(made["payments"]).columns
    spark.sql("DROP SCHEMA typed_topics CASCADE")
    spark.sql("DROP VIEW IF EXISTS payments")
    with pytest.raises(
        StorageError, match=r"127.0.0.1:1/.* gave no answer .*; there is no new view of a_orders, of all"
    ):
        create_views(spark, settings)
    assert spark.table("payments").where("value_error IS NULL").count() == 5


@pytest.mark.spark
def test_a_registrys_bodies_are_the_same_in_sparks_tasks(spark: SparkSession, tmp_path: Path) -> None:
    first = {"type": "record", "name": "P", "fields": [{"name": "no", "type": "int"}]}
    second = {
        "type": "record",
        "name": "P",
        "fields": [*first["fields"], {"name": "by", "type": "string", "default": ""}],
    }
    with SchemaRegistry() as server:
        old, new = server.register("payments-value", first), server.register("payments-value", second)
        bodies = [
            headed(old, written(first, {"no": 1})), headed(new, written(second, {"no": 2, "by": "x"})), headed(9, b""),
        ]  # fmt: skip
        lake(tmp_path, [*bodies, b"{}"])
        form: dict[str, Any] = {"body": "avro", "schema_registry": server.url}
        rows = opened(tmp_path, **form).topic("payments").to_arrow()
        assert rows["value"].to_pylist() == [{"no": 1, "by": ""}, {"no": 2, "by": "x"}, None, None]
        assert rows["value_error"][2].as_py() == "names schema 9, which the registry does not have"
        there = opened(tmp_path, spark, **form).topic("payments").to_spark().orderBy("half_queue_offset")
        assert (
            there.select("value", "value_error").toArrow().to_pylist()
            == rows.select(["value", "value_error"]).to_pylist()
        )
        server.register("payments-value", {"type": "integer"}, "JSON")
        rows = opened(tmp_path, body="json", schema_registry=server.url).topic("payments").to_arrow()
        assert rows["value_error"].to_pylist() == ["is not JSON"] * 2 + ["is not JSON", HEADER]
        url = server.url
    with pytest.raises(StorageError, match=rf"{url}/subjects/payments-value/versions/latest: .* gave no answer"):
        opened(tmp_path, **form).topic("payments").to_arrow()
