"""Topics for Spark, on tables that were published without it: what is read, what a stream delivers, what SQL sees."""

from __future__ import annotations

import os
import shutil
from datetime import datetime, timedelta, timezone
from functools import reduce
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from sqlalchemy import create_engine, text

from checkback.consumer import MessageSelector, create_views, read, read_stream
from checkback.consumer.spark_reader import options_since
from checkback.errors import SettingsError, StorageError
from checkback.producer import MessageApply, idempotent
from checkback.settings import Settings
from checkback.storage.batch_runs import runs_of
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.timestamps import ms_of, time_of
from consumer.published import Published
from docs.blocks import pages
from support.query_times import made_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

_TIMES = st.integers(10**12, 2 * 10**12)
_SELECTORS = [
    MessageSelector.by_tag("*"),
    MessageSelector.by_tag("a || b"),
    MessageSelector.by_sql("region = 'eu' AND amount > 5"),
    MessageSelector.by_sql("TAGS IS NULL OR amount BETWEEN 3 AND 7"),
    MessageSelector.by_sql("NOT (region IN ('eu', 'us')) OR KEYS = 'key-1'"),
]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.model_validate({"storage": {"root": str(tmp_path / "data"), "sync": False}})


@pytest.fixture
def published(settings: Settings) -> Published:
    return Published(Tables.of(settings.storage))


def _offsets(*found: DataFrame) -> list[list[int]]:
    """The offsets of each of them, by one job."""
    numbered = [rows.select(F.lit(number), "half_queue_offset") for number, rows in enumerate(found)]
    pairs = sorted(tuple(row) for row in reduce(DataFrame.union, numbered).collect())
    return [[offset for which, offset in pairs if which == number] for number in range(len(found))]


def _page_code(part: str, **places: object) -> str:
    """The block of the pages that has this part; its ``/lake`` is another place."""
    found = [block.text for page in pages() for block in page.blocks if block.language == "python"]
    code = next(text for text in found if part in text)
    for place, other in places.items():
        assert f'"/{place}' in code
        code = code.replace(f'"/{place}', f'"{other}')
    return code


def _awkward(random: Random) -> dict[str, Any]:
    properties = [
        ("region", random.choice(["eu", "us", "EU", "", "e'u"])),
        ("amount", random.choice(["4", "5", "6", "06", "6.5", "six", " 6", "-1", "99999999999999999999", "NaN"])),
    ]
    return {"tags": random.choice([None, "a", "b", "a || b", ""]), "properties": random.sample(properties, 2)[:2]}


@pytest.mark.spine("topics as DataFrames")
def test_read_agrees_with_matches(spark: SparkSession, settings: Settings, published: Published) -> None:
    random = Random(7)
    sent = [published.messages(1, **_awkward(random))[0] for _ in range(200)]
    sent += published.messages(3, properties=[]) + published.messages(2, properties=None, tags="a")
    published.publish({"orders": [sent[:150], sent[150:]]})
    found = _offsets(*(read(spark, settings, "orders", selector, isolation="none") for selector in _SELECTORS))
    for selector, offsets in zip(_SELECTORS, found, strict=True):
        assert offsets == [
            row["half_queue_offset"]
            for row in sent
            if selector.matches(row["tags"], dict(row["properties"] or ()), row["keys"])
        ]
    assert len(found[0]) == len(sent)
    assert all(0 < len(offsets) < len(sent) for offsets in found[1:])


def test_batch_without_its_row_is_not_seen(spark: SparkSession, settings: Settings, published: Published) -> None:
    """By read, nor by a view that was made before; across a rebuild, whose batches have the ids of earlier ones."""
    whole: list[int] = []
    waiting: list[int] = []

    def batch(concluded: bool) -> None:
        rows = published.messages(3)
        published.publish({"orders": [rows[:1], rows[1:]]}, concluded)
        (whole if concluded else waiting).extend(row["half_queue_offset"] for row in rows)

    def conclude() -> None:
        published.conclude({})
        whole.extend(waiting)
        waiting.clear()

    def seen() -> list[DataFrame]:
        return [read(spark, settings, "orders"), spark.table(view)]

    published.log("batches")
    batch(concluded=False)
    view = create_views(spark, settings)["orders"]
    assert _offsets(*seen()) == [[], []]
    conclude()
    for _ in range(2):
        batch(concluded=True)
    fixed, then = read(spark, settings, "orders"), list(whole)
    batch(concluded=False)
    as_it_is = read(spark, settings, "orders", isolation="none")
    assert _offsets(*seen(), fixed, as_it_is) == [whole, whole, then, [*whole, *waiting]]
    conclude()
    published.rebuild()
    batch(concluded=False)
    assert _offsets(*seen(), fixed) == [whole, whole, then]
    conclude()
    batch(concluded=True)
    published.rebuild()
    batch(concluded=True)
    batch(concluded=False)
    assert _offsets(*seen(), fixed) == [whole, whole, then]


def test_batches_of_a_run_are_whole(
    spark: SparkSession, settings: Settings, published: Published, tmp_path: Path
) -> None:
    """Retention has made the first three one row; a fourth is in progress."""
    for _ in range(3):
        published.publish({"orders": [published.messages(2)]})
    rows = DeltaTable(published.tables.location("batches")).to_pyarrow_table().cast(arrow_schema("batches"))
    rows = rows.set_column(rows.schema.get_field_index("committed"), "committed", pa.array([2, 2, 2]))
    shutil.rmtree(published.tables.location("batches"))
    published._logs.clear()
    run = runs_of(rows)
    assert len(run) == 1
    published.write("batches", run)
    published.publish({"orders": [published.messages(2)]}, concluded=False)
    view = create_views(spark, settings)["orders"]
    assert _offsets(read(spark, settings, "orders"), spark.table(view)) == [list(range(6))] * 2


@pytest.mark.spine("topics as streams")
def test_stream_delivers_once_across_optimize_delete_and_restart(
    spark: SparkSession, settings: Settings, published: Published, tmp_path: Path
) -> None:
    """As docs/consumer.md copies a topic; the first run crashed before it had noted its batch as done."""
    tags = ["paid", "open", None]
    sent = [published.messages(1, tags=tags[number % 3])[0] for number in range(30)]
    published.publish({"orders": [sent[:4], sent[4:10]]})
    published.publish({"orders": [sent[10:18]]})
    code = _page_code("txnAppId", lake=tmp_path)
    exec(code, {"spark": spark, "settings": settings})  # noqa: S102 - the page's own code
    assert _offsets(spark.read.format("delta").load(f"{tmp_path}/paid_orders")) == [list(range(0, 18, 3))]

    os.remove(tmp_path / "_checkpoints" / "paid_orders" / "commits" / "0")
    topic = DeltaTable(published.tables.location("topics/orders"))
    topic.delete("half_queue_offset = 3")  # rewrites a file
    assert topic.optimize.compact()["numFilesRemoved"] > 1
    published.publish({"orders": [sent[18:25]]})
    published.publish({"orders": [sent[25:]]}, concluded=False)
    exec(code, {"spark": spark, "settings": settings})  # noqa: S102
    assert _offsets(spark.read.format("delta").load(f"{tmp_path}/paid_orders")) == [list(range(0, 30, 3))]


def test_stream_since_a_time_into_a_database(
    spark: SparkSession, settings: Settings, published: Published, tmp_path: Path
) -> None:
    """As docs/consumer.md; messages before the time are not delivered, one that is applied is not applied again."""
    place = published.tables.location("topics/payments")
    published.time = ms_of(datetime.now(timezone.utc) - timedelta(hours=1))
    sent = [published.messages(1, properties=[("amount", str(number))])[0] for number in range(6)]
    for part in (sent[:2], sent[2:4], sent[4:]):
        published.publish({"payments": [part]})
        made_at(place, published.log("topics/payments").version(), published.time)
        published.time += 300_000
    since = time_of(published.time - 601_000)  # that of the second batch
    engine = create_engine(f"sqlite:///{tmp_path}/credits.db")
    MessageApply().create_table(engine)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE credits (account TEXT, amount INTEGER)"))
        with idempotent(connection, "credits", "payments", 0, 3, since - timedelta(milliseconds=100)) as fresh:
            assert fresh
    code = _page_code("toLocalIterator", lake=tmp_path)
    exec(code, {"spark": spark, "settings": settings, "engine": engine, "since": since})  # noqa: S102 - the page's own
    with engine.connect() as connection:
        found = connection.execute(text("SELECT account, amount FROM credits ORDER BY amount")).all()
    assert [tuple(row) for row in found] == [("key-2", 2), ("key-4", 4), ("key-5", 5)]
    engine.dispose()


@given(_TIMES, st.integers(0, 10**6), _TIMES, st.integers(0, 40 * 86_400_000), st.integers(1, 30))
def test_stream_begins_early_enough(since: int, version: int, made: int, ago: int, days: int) -> None:
    """At the newest commit only if that is before all messages; else at a time, with files that are there for sure."""
    now = made + ago
    options = options_since(since, (version, made), now, timedelta(days=days))
    if not options:
        assert now - since > days * 43_200_000 - 600_000
    elif "startingVersion" in options:
        assert options == {"startingVersion": str(version)}
        assert since > made
    else:
        begin = ms_of(datetime.fromisoformat(options["startingTimestamp"]))
        assert begin < min(since, made)
        assert now - begin <= days * 43_200_000 or begin >= made - 660_000


@pytest.fixture
def schema(spark: SparkSession) -> Iterator[str]:
    yield "checkback_topics"
    spark.sql("DROP SCHEMA IF EXISTS checkback_topics CASCADE")


def test_views_in_a_schema(spark: SparkSession, settings: Settings, published: Published, schema: str) -> None:
    """Lasting ones see batches that come later; a body that is not UTF-8 has no text."""
    bodies = [b"Gr\xc3\xbc\xc3\x9fe", b"\xff\xfe", b"", None]
    sent = [published.messages(1, body=body)[0] for body in bodies]
    published.publish({"orders": [sent[:2]], "Order-events": [published.messages(1)]})
    made = create_views(spark, settings, schema)
    assert made["orders"] == "`checkback_topics`.`orders`"
    published.publish({"orders": [sent[2:]]})
    rows = spark.sql("SELECT body, body_text FROM checkback_topics.orders ORDER BY half_queue_offset").collect()
    assert [(row[0] if row[0] is None else bytes(row[0]), row[1]) for row in rows] == [
        (b"Gr\xc3\xbc\xc3\x9fe", "Grüße"),
        (b"\xff\xfe", None),
        (b"", ""),
        (None, None),
    ]
    assert _offsets(spark.table(made["Order-events"])) == [[4]]


def test_tables_in_a_catalog(spark: SparkSession, tmp_path: Path, published: Published, schema: str) -> None:
    """Written by Spark, and read by name."""
    spark.sql("CREATE SCHEMA spark_catalog.checkback_topics")
    storage = {"catalog": "spark_catalog", "schema": schema, "checkpoints": str(tmp_path / "c")}
    settings = Settings.model_validate({"storage": storage})
    published.publish({"Orders": [published.messages(2, tags="a")]})
    published.publish({"Orders": [published.messages(2, tags="a")]}, concluded=False)
    tables = Tables.of(settings.storage)
    for name in ("topics/Orders", "batches"):
        tables.create(spark, name)
        tables.append(published.tables.read(spark, name), name)
    view = spark.table(create_views(spark, settings)["Orders"])
    assert _offsets(read(spark, settings, "Orders", MessageSelector.by_tag("a")), view) == [[0, 1]] * 2
    assert read_stream(spark, settings, "Orders").isStreaming
    with pytest.raises(StorageError, match=r"spark_catalog\.checkback_topics: .*'orders'.* these have one: Orders;"):
        read(spark, settings, "orders")


def test_topic_without_a_table(spark: SparkSession, settings: Settings, published: Published) -> None:
    with pytest.raises(StorageError, match="no topic has one yet"):
        read(spark, settings, "orders")
    with pytest.raises(StorageError, match="batches: there is no such table; run `checkback reconcile`"):
        create_views(spark, settings)
    for number in range(12):
        published.log(f"topics/t{number:02}")
    published.log("batches")
    for topic in ("orders", "../batches", ""):
        for reading in (read, read_stream):
            with pytest.raises(StorageError, match=r"these have one: t00, t01, .*, t09 and 2 more; "):
                reading(spark, settings, topic)


def test_words_that_are_none(spark: SparkSession, settings: Settings) -> None:
    with pytest.raises(SettingsError, match="write batch or none"):
        read(spark, settings, "orders", isolation="snapshot")  # type: ignore[arg-type]
    # "last" would begin anew at each start before the first message: what came between would be lost.
    with pytest.raises(SettingsError, match="'last' is no start; write first, or give a datetime that is the same at"):
        read_stream(spark, settings, "orders", starting="last")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="starting: '2026-11-20 15:00:00' has no time zone"):
        read_stream(spark, settings, "orders", starting=datetime(2026, 11, 20, 15))  # noqa: DTZ001
