"""The whole job on the trace of a real broker: land, reconcile, check back, publish, discard."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.application.queries import reconcile
from checkback.consumer import PushConsumer
from checkback.landing.file_query import land
from checkback.messages.half import CONSUMED
from checkback.query.answers import Answers
from checkback.query.frames import Frames
from checkback.reconcile.start.idle_run import nothing_to_do
from checkback.settings import Settings
from checkback.storage.schemas import SCHEMAS
from checkback.storage.spark_schemas import TOPIC
from checkback.storage.tables import Tables
from conftest import TRACE
from consumer.heard import Heard
from examples.producer import ExampleProducer
from support import expected
from support.broken_batch import reconcile_without_decisions
from support.lines import land_lines
from support.pending_columns import COLUMNS
from support.rows import count_of, records_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: the trace happened long ago; that is no reason to give its messages up
_LONG_AGO = {"timeout": "0s", "max_age": "36500d"}
_CHECK_MAX = 3
_TRANSACTIONS = 154
_NOBODY = "http://127.0.0.1:9/check"
_GONE = frozenset({"g_gone", "g_main1"})


def _settings(root: Path, producers: dict[str, Any] | None = None, **transaction: Any) -> Settings:
    return Settings.model_validate(
        {
            "storage": {"root": str(root)},
            "transaction": _LONG_AGO | transaction,
            "reconcile": {"partitions": 2, "segment_size": 64, "trigger": "0s"},
            "producers": producers or {},
        }
    )


def _rows(settings: Settings, table: str) -> list[dict[str, Any]]:
    return records_of(settings.storage.root, table)


def _decisions(settings: Settings) -> dict[int, tuple[str, str | None]]:
    rows = _rows(settings, "decisions")
    assert len({row["queue_offset"] for row in rows}) == len(rows), "decided twice"
    return {row["queue_offset"]: (row["state"], row["reason"]) for row in rows}


def _published(spark: SparkSession, settings: Settings) -> list[dict[str, Any]]:
    tables = Tables.of(settings.storage)
    topics = {line["real_topic"] for line in expected.lines(TRACE / "half.jsonl")}
    found = []
    for topic in topics:
        if tables.exists(spark, f"topics/{topic}"):
            assert tables.read(spark, f"topics/{topic}").schema.names == TOPIC.names
            found += [row | {"topic": topic} for row in _rows(settings, f"topics/{topic}")]
    return found


def _counts(spark: SparkSession, settings: Settings) -> dict[str, int]:
    counts = {name: count_of(settings.storage.root, name) for name in SCHEMAS}
    return counts | {"topics": len(_published(spark, settings))}


def _assert_published_once_and_whole(spark: SparkSession, settings: Settings) -> None:
    """Each committed message is in its topic once, byte for byte; nothing else is."""
    halves = {line["queue_offset"]: line for line in expected.lines(TRACE / "half.jsonl")}
    committed = {offset for offset, (state, _) in _decisions(settings).items() if state == "COMMIT"}
    published = _published(spark, settings)
    assert sorted(row["half_queue_offset"] for row in published) == sorted(committed)
    for row in published:
        half = halves[row["half_queue_offset"]]
        assert row["topic"] == half["real_topic"]
        assert bytes(row["body"]) == base64.b64decode(half["body"])
        assert row["queue_id"] == half["real_queue_id"]
        for name in ("transaction_id", "producer_group", "tags", "keys"):
            assert row[name] == half[name], name
        assert row["properties"] == {name: text for name, text in half["properties"].items() if name not in CONSUMED}


def _assert_consumed_by_tags(settings: Settings, published: list[dict[str, Any]]) -> None:
    """A group for each tag: between them, each message once, in the order of its queue."""
    for tag in {row["tags"] for row in published}:
        wanted = sorted((row["topic"], row["half_queue_offset"]) for row in published if row["tags"] == tag)
        heard = Heard()
        consumer = PushConsumer(f"only-{tag}", settings, heard, orderly=True)
        for topic in {row["topic"] for row in published}:
            consumer.subscribe(topic, tag)
        with consumer:
            heard.wait_for_count(len(wanted))
        assert sorted((message.topic, message.half_queue_offset) for message in heard.messages) == wanted
        bodies = {row["half_queue_offset"]: bytes(row["body"]) for row in published}
        queues: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for message in heard.messages:
            assert message.body == bodies[message.half_queue_offset]
            places = queues.setdefault((message.topic, message.queue_id), [])
            places.append((message.batch_id, message.half_queue_offset))
        assert all(places == sorted(places) for places in queues.values())


@pytest.fixture
def producers() -> Iterator[dict[str, Any]]:
    """Endpoints of an example producer for each group; two groups have nobody."""
    groups = {line["producer_group"] for line in expected.lines(TRACE / "half.jsonl")}
    with ExampleProducer(TRACE / "check_answers.json") as producer:
        yield {group: {"endpoints": [_NOBODY] if group in _GONE else producer.endpoints} for group in groups}


@pytest.mark.spine("the trace of a real broker, from files to topics and discards")
def test_job_decides_the_trace_in_scheduled_runs(
    spark: SparkSession, tmp_path: Path, producers: dict[str, Any]
) -> None:
    """Run after run until nothing is pending: each transaction is decided as the protocol says."""
    settings = _settings(tmp_path, producers, check_interval="1ms", check_max=_CHECK_MAX)
    land(spark, settings, str(TRACE / "half.jsonl"), str(TRACE / "op.jsonl"), available_now=True)
    runs = 0
    while runs == 0 or Answers(settings).pending().num_rows:
        reconcile(spark, settings, available_now=True)
        runs += 1
        assert runs <= _CHECK_MAX + 1, "checks do not end"
    assert _decisions(settings) == expected.decisions(TRACE, _CHECK_MAX, _GONE)
    _assert_published_once_and_whole(spark, settings)
    checks = _rows(settings, "check_requests")
    assert len({(row["queue_offset"], row["check_times"]) for row in checks}) == len(checks)
    assert max(row["check_times"] for row in checks) == _CHECK_MAX
    assert len(_rows(settings, "check_answers")) == len(checks)
    halves = {line["queue_offset"]: line for line in expected.lines(TRACE / "half.jsonl")}
    discarded = _rows(settings, "discarded")
    assert {row["queue_offset"] for row in discarded} == {
        offset for offset, (state, _) in _decisions(settings).items() if state == "DISCARD"
    }
    for row in discarded:
        assert bytes(row["body"]) == base64.b64decode(halves[row["queue_offset"]]["body"])
        assert (row["reason"], row["check_times"]) == ("CHECK_MAX", _CHECK_MAX)


def test_job_decides_the_trace_while_it_runs_on(spark: SparkSession, tmp_path: Path, producers: dict[str, Any]) -> None:
    """Continuously: the same decisions; a stop finishes the batch and returns."""
    # Many more checks than the fifth, which is the last one that any script answers: a slow machine may be late.
    settings = _settings(tmp_path, producers, check_interval="1s", check_max=15)
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    reconcile(
        spark,
        settings,
        available_now=False,
        meanwhile=lambda stopper: stopper.stop() if count_of(tmp_path, "decisions") == _TRANSACTIONS else None,
    )
    assert not Answers(settings).pending().num_rows
    assert _decisions(settings) == expected.decisions(TRACE, 15, _GONE)
    _assert_published_once_and_whole(spark, settings)
    _assert_consumed_by_tags(settings, _published(spark, settings))


def test_replayed_batch_changes_no_table(spark: SparkSession, tmp_path: Path) -> None:
    """Spark runs the last batch again when its commit is lost; every table stays as it was. The tick makes one more."""
    settings = _settings(tmp_path, check_interval="1h")
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    reconcile(spark, settings, available_now=True)
    before = _counts(spark, settings)
    assert before["decisions"] > 0
    assert before["check_requests"] > 0
    now = round(time.time() * 1000)
    assert nothing_to_do(Tables.of(settings.storage), settings, now)
    assert not nothing_to_do(Tables.of(settings.storage), settings, now + 3_600_000), "the next checks are due"
    for query in ("reconcile", "check"):
        commits = Path(Tables.of(settings.storage).checkpoint(query)) / "commits"
        newest = max(int(file.name) for file in commits.iterdir() if file.name.isdigit())
        (commits / str(newest)).unlink()
        (commits / f".{newest}.crc").unlink(missing_ok=True)
    assert not nothing_to_do(Tables.of(settings.storage), settings, now)
    reconcile(spark, settings, available_now=True)
    assert _counts(spark, settings) == before | {name: before[name] + 1 for name in ("ticks", "batches")}


@pytest.mark.spine("a batch broken off between its tables")
def test_failed_write_is_made_good_by_the_next_start(spark: SparkSession, tmp_path: Path) -> None:
    """A batch that dies between its tables is done again: what was written is not written twice, the rest is."""
    settings = _settings(tmp_path, check_interval="1h")
    land_lines(tmp_path, TRACE / "half.jsonl", TRACE / "op.jsonl")
    reconcile_without_decisions(spark, settings)
    assert _published(spark, settings), "the failure must come after some tables were written"
    assert not _rows(settings, "decisions")
    reconcile(spark, settings, available_now=True)
    _assert_published_once_and_whole(spark, settings)
    by_ops = {offset for offset, (state, _) in expected.decisions(TRACE, 0).items() if state != "DISCARD"}
    assert set(_decisions(settings)) == by_ops


def test_restart_between_half_and_op_loses_and_repeats_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """The half messages are pending over a restart, as `pending` shows; the ops of the next run decide them."""
    settings = _settings(tmp_path, check_interval="1h")
    land_lines(tmp_path, half=TRACE / "half.jsonl")
    reconcile(spark, settings, available_now=True)
    assert _decisions(settings) == {}
    waiting = Frames(settings, spark).pending()
    assert tuple(waiting.columns) == COLUMNS
    rows = waiting.collect()
    assert len(rows) == 154
    assert {row["check_times"] for row in rows} == {1}
    assert {(row["last_outcome"], row["last_error"]) for row in rows} >= {
        ("NO_ANSWER", "producers.g_main0 has no endpoints")
    }
    land_lines(tmp_path, op=TRACE / "op.jsonl")
    reconcile(spark, settings, available_now=True)
    by_ops = {offset: d for offset, d in expected.decisions(TRACE, 0).items() if d[0] != "DISCARD"}
    assert _decisions(settings) == by_ops
    _assert_published_once_and_whole(spark, settings)
    assert Answers(settings).pending().num_rows == 154 - len(by_ops)
    rejected = _rows(settings, "rejected")
    assert all(row["source"] == "op" for row in rejected)
