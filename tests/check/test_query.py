"""The check query on Spark: batches, replays and a crash between its two writes."""

from __future__ import annotations

import re
import time
from datetime import datetime, timedelta, timezone
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from check.servers import SHORT, Received, Server, Wire, late, reply, says
from check.started import start_check
from checkback.check.checkpoint_reset import renew
from checkback.check.query import CheckBatches, check_query, decisive_ops
from checkback.check.superseded import superseding_rows
from checkback.errors import SettingsError
from checkback.producer import CheckRequest, CheckServer, LocalTransactionState, check_app
from checkback.rotated import read_again
from checkback.settings import Settings
from checkback.storage.schemas import arrow_schema
from checkback.storage.tables import Tables
from checkback.storage.valid_texts import NOT_UTF8, OVERTAKEN
from examples.producer import ExampleProducer
from producer.checked import OTHER, Listener
from support.odd_rows import BAD, append_odd
from support.rows import rows_of
from support.secret_volume import as_kubelet

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BORN = datetime(2026, 3, 1, 12, 0, 0, 250_000, tzinfo=timezone.utc)
NAMES = ("check_requests", "check_answers", "op", "half", "decisions")


class CrashBeforeOps(CheckBatches):
    """Crashes between the two writes of every batch."""

    def send_ops(self, spark: SparkSession, answers: pa.Table, app: str, batch_id: int) -> None:  # noqa: ARG002 - the base class's
        raise RuntimeError("crash point: before the ops")


class CrashBeforeAnswers(CheckBatches):
    """Crashes before anybody is asked."""

    def ask(self, spark: SparkSession, requests: pa.Table, app: str, batch_id: int) -> pa.Table:  # noqa: ARG002 - the base class's
        raise RuntimeError("crash point: before the answers")


class Bench:
    """Tables of one test, and runs of the check query on them."""

    def __init__(self, spark: SparkSession, root: Path, by_files: bool = True) -> None:
        self.spark, self.root = spark, root
        self.tables = Tables(root=str(root), by_files=by_files)
        self.tables.create(spark, *NAMES)

    def request(self, *rows: tuple[int, str, str, int], requested_at: datetime | None = None) -> None:
        """Append requests: (queue_offset, group, transaction_id, check_times)."""
        when = requested_at or datetime.now(timezone.utc)
        values = [(0, offset, tx, group, "orders", times, BORN, when, 0) for offset, group, tx, times in rows]
        self.append("check_requests", *values)

    def append(self, name: str, *rows: tuple[Any, ...]) -> None:
        """Append rows, with values for all columns."""
        schema = arrow_schema(name)
        content = [dict(zip(schema.names, row, strict=False)) for row in rows]  # the last columns may be null
        self.tables.append_arrow(self.spark, pa.Table.from_pylist(content, schema), name)

    def run(self, settings: Settings, dispatch: type[CheckBatches] | None = None) -> None:
        """One run that drains what is there."""
        query = start_check(self.spark, settings, self.tables, available_now=True, dispatch=dispatch)
        try:
            assert query.awaitTermination(60)
        finally:
            query.stop()

    def run_one_by_one(self, settings: Settings) -> None:
        """One run with a batch for each append of requests."""
        _, batches = check_query(self.spark, settings, self.tables, available_now=True)
        writer = self.tables.stream(self.spark, "check_requests", maxFilesPerTrigger="1").writeStream
        writer = writer.option("checkpointLocation", self.tables.checkpoint("check")).trigger(availableNow=True)
        assert writer.foreachBatch(batches).start().awaitTermination(120)

    def rows(self, name: str) -> list[Any]:
        return sorted(rows_of(self.root, name), key=attrgetter("queue_id", "queue_offset", "transaction_id"))

    def answers(self) -> dict[str, tuple[str, str | None]]:
        """transaction_id -> (outcome, error); each once."""
        rows = self.rows("check_answers")
        found = {row.transaction_id: (row.outcome, row.error) for row in rows}
        assert len(found) == len(rows)
        return found

    def ops(self) -> dict[str, str]:
        """transaction_id -> state; each once."""
        rows = self.rows("op")
        found = {row.transaction_id: row.state for row in rows}
        assert len(found) == len(rows)
        return found

    def versions(self) -> dict[str, int]:
        """Commits of each table."""
        return {name: len(list((self.root / name / "_delta_log").glob("*.json"))) for name in NAMES}

    def forget_last_commit(self) -> None:
        """As if the run had stopped just before Spark noted the end of its last batch."""
        commits = self.root / "_checkpoints" / "check" / "commits"
        last = max((path for path in commits.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))
        last.unlink()
        (commits / f".{last.name}.crc").unlink(missing_ok=True)


def settings(
    timeout: str = "5s", concurrency: int = 8, check: dict[str, Any] | None = None, **producers: dict[str, Any]
) -> Settings:
    return Settings.model_validate(
        {
            "check": {"timeout": timeout, "concurrency": concurrency, **(check or {})},
            "producers": producers,
            "reconcile": {"partitions": 2},
        }
    )


@pytest.fixture
def bench(spark: SparkSession, tmp_path: Path) -> Bench:
    return Bench(spark, tmp_path)


@pytest.fixture
def producer() -> Iterator[ExampleProducer]:
    script = {"c": ["COMMIT"], "r": ["ROLLBACK"], "u": ["UNKNOW"], "e": ["EXCEPTION"]}
    with ExampleProducer(script, SECRET) as running:
        yield running


@pytest.mark.spine("checking back")
def test_batch_of_several_groups_one_answer_each_ops_for_decisions(bench: Bench, producer: ExampleProducer) -> None:
    """One row of check_answers per request, whatever came of it; op rows for COMMIT and ROLLBACK only."""
    before = datetime.now(timezone.utc) - timedelta(seconds=1)
    orders = [(1, "orders", "c", 1), (2, "orders", "r", 2), (3, "orders", "u", 1), (4, "orders", "e", 1)]
    with Server(late) as hangs:
        bench.request(*orders, (5, "silent", "s", 1), (6, "nobody", "n", 1))
        bench.request((1, "orders", "c", 1))  # the same check again
        bench.run(
            settings(
                "300ms",
                orders={"endpoints": producer.endpoints, "secret": SECRET},
                silent={"endpoints": [hangs.url]},
            )
        )
    assert bench.answers() == {
        "c": ("COMMIT", None),
        "r": ("ROLLBACK", None),
        "u": ("UNKNOWN", None),
        "e": ("NO_ANSWER", "status 500"),
        "s": ("NO_ANSWER", "timed out after 0.3 s"),
        "n": ("NO_ANSWER", "producers.nobody has no endpoints"),
    }
    assert producer.checks_by_transaction == {"c": 1, "r": 1, "u": 1, "e": 2}

    answers = {row.transaction_id: row for row in bench.rows("check_answers")}
    assert answers["r"].endpoint == producer.endpoints[1]
    assert answers["n"].endpoint is None
    assert [tuple(tried.values()) for tried in answers["e"].failed_tries] == [(producer.endpoints[0], "status 500")]
    assert answers["c"].failed_tries == []
    assert {row.batch_id for row in answers.values()} == {0}
    assert answers["s"].latency_ms >= SHORT * 1000

    commit, rollback = bench.rows("op")
    assert (commit.queue_id, commit.queue_offset, commit.transaction_id, commit.producer_group) == (0, 1, "c", "orders")
    assert (commit.state, commit.source, commit.remark) == ("COMMIT", "check", "check 1")
    assert (rollback.queue_offset, rollback.state, rollback.remark) == (2, "ROLLBACK", "check 2")
    assert commit.born_timestamp == answers["c"].answered_at
    assert before.timestamp() <= commit.born_timestamp.timestamp() <= commit.store_timestamp.timestamp()
    assert commit.store_timestamp.timestamp() <= time.time()


def test_secret_is_rotated_between_batches(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    as_kubelet(file, SECRET)

    class Rotating(Listener):
        def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
            as_kubelet(file, OTHER)
            read_again()
            return super().check_local_transaction(check)

    bench = Bench(spark, tmp_path / "lake")
    bench.request((0, "orders", "tx-0", 1))
    bench.request((1, "orders", "tx-1", 1))
    with CheckServer(check_app(Rotating(), secret=f"file:{file}")) as server:
        bench.run_one_by_one(settings(orders={"endpoints": [server.url], "secret": f"file:{file}"}))
    assert bench.answers() == {"tx-0": ("COMMIT", None), "tx-1": ("COMMIT", None)}


def test_request_whose_names_are_not_utf8_holds_up_no_other(bench: Bench, producer: ExampleProducer) -> None:
    """Another writer's half message: nobody is asked, the last of its checks counts, and its bytes stay."""
    bench.request((1, "orders", "c", 1))
    now = datetime.now(timezone.utc)
    row = {"queue_id": 0, "real_topic": "orders", "check_times": 15, "requested_at": now, "born_timestamp": BORN}
    odd = [
        row | {"queue_offset": 2, "transaction_id": "bad", "producer_group": "orders"},
        row | {"queue_offset": 3, "transaction_id": "t", "producer_group": "bad"},
    ]
    append_odd(str(bench.root), "check_requests", odd)
    bench.request((4, "orders", "r", 1))
    group = {"endpoints": producer.endpoints, "secret": SECRET, "include_body": True}
    bench.run(settings(orders=group))
    tables = Tables(root=str(bench.root), by_files=True)
    files = {name: [file.path for file in tables.log(name).data_files()] for name in ("check_answers", "op")}
    found = pa.concat_tables(map(pq.read_table, files["check_answers"])).sort_by("queue_offset")
    assert found.column("outcome").to_pylist() == ["COMMIT", "NO_ANSWER", "NO_ANSWER", "ROLLBACK"]
    assert set(found.column("error").drop_null().to_pylist()) == {NOT_UTF8}
    assert found.column("transaction_id").cast(pa.binary()).to_pylist() == [b"c", BAD, b"t", b"r"]
    ops = pa.concat_tables(pq.read_table(path, columns=["queue_offset", "state"]) for path in files["op"]).to_pylist()
    states = {row["queue_offset"]: row["state"] for row in ops}
    assert states == {1: "COMMIT", 2: "COUNTED", 3: "COUNTED", 4: "ROLLBACK"}


def test_batch_done_again_changes_nothing(bench: Bench, producer: ExampleProducer) -> None:
    """Replayed with its answers and ops written: no table gets a commit, nobody is asked."""
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    bench.request((1, "orders", "c", 1), (2, "orders", "u", 1))
    bench.run(config)
    versions, asked = bench.versions(), producer.checks_received
    producer.change_mind("c", "ROLLBACK")

    bench.forget_last_commit()
    bench.run(config)
    assert (bench.versions(), producer.checks_received) == (versions, asked)
    assert bench.ops() == {"c": "COMMIT"}


@pytest.mark.spine("checking back after a crash")
def test_crash_between_answers_and_ops_then_the_recorded_answer_counts(bench: Bench, producer: ExampleProducer) -> None:
    """The producer changed its mind meanwhile: the op is the answer that was recorded, nobody is asked again.

    With Spark Connect a scheduled run learns from the tables that there is something to decide.
    """
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    bench.request((1, "orders", "c", 1), (2, "orders", "u", 1))
    with pytest.raises(StreamingQueryException, match="crash point: before the ops"):
        bench.run(config, CrashBeforeOps)
    assert (bench.answers()["c"], bench.ops()) == (("COMMIT", None), {})

    producer.change_mind("c", "ROLLBACK")
    producer.change_mind("u", "ROLLBACK")
    since = datetime.now(timezone.utc)
    before = decisive_ops(bench.spark, bench.tables, since)
    bench.run(config)
    assert bench.answers() == {"c": ("COMMIT", None), "u": ("UNKNOWN", None)}
    assert bench.ops() == {"c": "COMMIT"}
    assert decisive_ops(bench.spark, bench.tables, since) - before == 1
    assert producer.checks_by_transaction == {"c": 1, "u": 1}


def test_crash_before_answers_then_asked_once_nothing_decided_no_op(bench: Bench, producer: ExampleProducer) -> None:
    """UNKNOWN and NO_ANSWER decide nothing: `op` gets no commit, not even an empty one."""
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    bench.request((1, "orders", "u", 1), (2, "nobody", "n", 1))
    before = bench.versions()
    with pytest.raises(StreamingQueryException, match="crash point: before the answers"):
        bench.run(config, CrashBeforeAnswers)
    assert bench.versions() == before
    bench.run(config)
    assert bench.versions() == before | {"check_answers": before["check_answers"] + 1}
    assert producer.checks_by_transaction == {"u": 1}


def test_tables_of_sparks_own_are_asked_about_alike(
    spark: SparkSession, tmp_path: Path, producer: ExampleProducer
) -> None:
    """Where Spark writes the tables: a crash between the two writes, then the recorded answer counts."""
    bench = Bench(spark, tmp_path, by_files=False)
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    bench.request((1, "orders", "c", 1), (2, "orders", "u", 1))
    with pytest.raises(StreamingQueryException, match="crash point: before the ops"):
        bench.run(config, CrashBeforeOps)
    producer.change_mind("c", "ROLLBACK")
    bench.run(config)
    assert (bench.answers()["c"], bench.ops()) == (("COMMIT", None), {"c": "COMMIT"})
    assert producer.checks_by_transaction == {"c": 1, "u": 1}


def test_checkpoint_lost_answered_checks_are_not_asked_again(bench: Bench, producer: ExampleProducer) -> None:
    """Batch ids begin anew and all requests come again: only those without an answer are asked, no op is lost."""
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    long_ago = datetime.now(timezone.utc) - timedelta(days=2)
    bench.request((1, "orders", "c", 1), requested_at=long_ago)
    with pytest.raises(StreamingQueryException, match="crash point"):
        bench.run(config, CrashBeforeOps)
    (bench.root / "_checkpoints" / "check").rename(bench.root / "lost")

    bench.request((2, "orders", "r", 1), (1, "orders", "c", 2))
    bench.run(config)
    assert {(row.queue_offset, row.state) for row in bench.rows("op")} == {
        (1, "COMMIT"),
        (2, "ROLLBACK"),
    }
    assert producer.checks_by_transaction == {"c": 2, "r": 1}


@pytest.mark.parametrize("by_spark", [False, True])
def test_answers_deleted_then_the_query_goes_on_and_asks_nobody_again(
    bench: Bench, producer: ExampleProducer, by_spark: bool
) -> None:
    """Some of a file's rows, then all of a file."""
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})

    def delete(where: str) -> None:
        if by_spark:
            bench.spark.sql(f"DELETE FROM delta.`{bench.root}/check_answers` WHERE {where}")  # noqa: S608
        else:
            DeltaTable(str(bench.root / "check_answers")).delete(where)
        assert renew(bench.spark, bench.tables) is None

    bench.request((1, "orders", "c", 1), (2, "orders", "u", 1))
    bench.run(config)
    delete("transaction_id = 'c'")
    bench.request((2, "orders", "u", 2))
    bench.run(config)
    delete("check_times = 2")
    bench.run(config)
    assert producer.checks_by_transaction == {"c": 1, "u": 2}
    assert bench.answers() == {"u": ("UNKNOWN", None)}


def test_body_is_sent_to_groups_that_want_it(bench: Bench) -> None:
    """By a join back to `half`: of the very message, once, also if it landed twice; null if it is gone."""

    def half(offset: int, tx: str, body: bytes) -> tuple[Any, ...]:
        group = "plain" if tx == "p" else "full"
        return (0, offset, tx, group, "orders", 0, "tag", "key", [("a", "1")], body, BORN, BORN, None)

    rows = [half(1, "a", b"\x00\xff"), half(1, "a", b"\x00\xff"), half(1, "other", b"wrong"), half(3, "p", b"no")]
    bench.append("half", *rows)
    bench.request((1, "full", "a", 1), (2, "full", "gone", 1), (3, "plain", "p", 1))
    with Server(commit_whatever) as server:
        bench.run(settings(full={"endpoints": [server.url], "include_body": True}, plain={"endpoints": [server.url]}))
    sent = {received.json["transaction_id"]: received.json for received in server.received}
    assert len(server.received) == 3
    message = {name: sent["a"][name] for name in ("body", "tags", "keys", "properties")}
    assert message == {"body": "AP8=", "tags": "tag", "keys": "key", "properties": {"a": "1"}}
    assert sent["a"]["born_timestamp"] == round(BORN.timestamp() * 1000)
    assert {sent["gone"][name] for name in message} == {None}
    assert not message.keys() & sent["p"].keys()
    assert bench.ops() == {"a": "COMMIT", "gone": "COMMIT", "p": "COMMIT"}


@pytest.mark.parametrize("by_files", [True, False], ids=["by files", "by Spark"])
def test_producer_is_asked_about_its_own_place_whatever_operator_queue_was(
    spark: SparkSession, tmp_path: Path, by_files: bool
) -> None:
    """A message was resumed into queue 77 before the setting was changed, or by a command that was given it."""
    bench = Bench(spark, tmp_path, by_files)
    properties, schema = [("CHECKBACK_RESUMED_FROM", "3/7")], arrow_schema("half")
    rows = [(queue, 5, f"t-{queue}", "g", "orders", 0, None, None, properties, b"", BORN, BORN) for queue in (77, 78)]
    halves = pa.Table.from_pylist([dict(zip(schema.names, row, strict=False)) for row in rows], schema)
    bench.tables.append_arrow(spark, halves, "half", "operator/77", 0)
    if not by_files:
        bench.tables.create(spark, "operations")
        bench.append("operations", (BORN, "RESUME", "ann", "why", 3, 7, "t-77", "g", "orders", 77, 5, "0.1.0"))
    now = datetime.now(timezone.utc)
    bench.append("check_requests", *((queue, 5, f"t-{queue}", "g", "orders", 1, BORN, now, 0) for queue in (77, 78)))
    with Server(commit_whatever) as server:
        bench.run(settings(g={"endpoints": [server.url]}))
    told = {received.json["transaction_id"]: received.json for received in server.received}
    places = {name: (one["queue_id"], one["queue_offset"]) for name, one in told.items()}
    assert places == {"t-77": (3, 7), "t-78": (78, 5)}  # the other is a producer's, who may send such properties
    assert bench.ops() == {"t-77": "COMMIT", "t-78": "COMMIT"}


def commit_whatever(received: Received, wire: Wire) -> bool:
    wire.send(reply(says("COMMIT", received.json["transaction_id"])))
    return True


def unknown(received: Received, wire: Wire) -> bool:
    wire.send(reply(says("UNKNOWN", received.json["transaction_id"])))
    return True


def test_dispatcher_was_down_asks_no_stale_question(bench: Bench, producer: ExampleProducer) -> None:
    """Of a pile of three for one half the newest is asked, also if it is beyond the batch; of a decided one none is.

    Read by Spark, the tables say the same.
    """
    minutes = [datetime.now(timezone.utc) - timedelta(minutes=ago) for ago in (5, 4, 3)]
    for times, when in enumerate(minutes, start=1):
        bench.request((1, "orders", "u", times), requested_at=when)
    bench.request((2, "orders", "c", 1), (3, "orders", "r", 1), requested_at=minutes[0])
    decided = (0, 2, "c", "orders", "orders", "COMMIT", "producer", None, 1, minutes[1], 0)
    bench.append("decisions", decided)
    config = settings(orders={"endpoints": producer.endpoints, "secret": SECRET})
    bench.run_one_by_one(config)
    said = {
        (row.transaction_id, row.check_times): (row.outcome, row.error, row.delivered)
        for row in bench.rows("check_answers")
    }
    assert said == {
        ("u", 1): ("SKIPPED", "overtaken by check 3", False),
        ("u", 2): ("SKIPPED", "overtaken by check 3", False),
        ("u", 3): ("UNKNOWN", None, True),
        ("c", 1): ("SKIPPED", "overtaken by the decision COMMIT", False),
        ("r", 1): ("ROLLBACK", None, True),
    }
    assert producer.checks_by_transaction == {"u": 1, "r": 1}
    assert bench.ops() == {"r": "ROLLBACK"}
    piled = bench.tables.read(bench.spark, "check_requests").toArrow().cast(arrow_schema("check_requests"))
    by_files = superseding_rows(bench.spark, bench.tables, piled)
    by_spark = superseding_rows(bench.spark, Tables(root=str(bench.root)), piled)
    assert [table.num_rows for table in by_spark] == [5, 1]
    for ours, sparks in zip(by_files, by_spark, strict=True):
        assert sorted(ours.to_pylist(), key=str) == sorted(sparks.to_pylist(), key=str)


@pytest.mark.parametrize("count_undelivered", [True, False])
def test_last_check_is_requested_again_before_its_answer_is_read_then_not_sent_again(
    bench: Bench, count_undelivered: bool
) -> None:
    """Or a producer that answers late is asked once more than check_max times. Requested later, it is sent."""
    now = datetime.now(timezone.utc)
    for offset, when in [(1, now), (1, now), (2, now), (1, now + timedelta(hours=1))]:
        bench.request((offset, "orders", f"t{offset}", 3), requested_at=when)
    with Server(unknown) as server:
        config = settings(orders={"endpoints": [server.url]})
        rules = config.transaction.model_copy(update={"check_max": 3, "count_undelivered": count_undelivered})
        config = config.model_copy(update={"transaction": rules})
        bench.run_one_by_one(config)
    assert [received.json["queue_offset"] for received in server.received] == [1, 2, 1]
    said = [(row.queue_offset, row.outcome, row.error) for row in bench.rows("check_answers")]
    answered = [(offset, "UNKNOWN", None) for offset in (1, 1, 2)]
    assert sorted(said, key=str) == sorted([*answered, (1, "SKIPPED", OVERTAKEN)], key=str)


def test_query_runs_on_with_new_requests(bench: Bench) -> None:
    """Continuous: several batches of one query, each asked once."""
    with Server(commit_whatever) as server:
        config = settings(orders={"endpoints": [server.url]})
        config = config.model_copy(update={"reconcile": config.reconcile.model_copy(update={"trigger": timedelta(0)})})
        query = start_check(bench.spark, config, bench.tables, available_now=False)
        try:
            assert query.name == "check"
            for batch in range(2):
                bench.request((batch, "orders", f"t{batch}", 1))
                query.processAllAvailable()
        finally:
            query.stop()
    assert bench.ops() == dict.fromkeys(["t0", "t1"], "COMMIT")
    assert len(server.received) == 2
    first, second = (row.batch_id for row in bench.rows("check_answers"))
    assert first < second


def test_settings_unfit_are_refused_before_the_query_starts(bench: Bench) -> None:
    config = settings(orders={"endpoints": ["http://127.0.0.1/"]})
    config = config.model_copy(update={"check": config.check.model_copy(update={"ca_file": "/nonexistent.pem"})})
    with pytest.raises(SettingsError, match=re.escape("check.ca_file: /nonexistent.pem")):
        start_check(bench.spark, config, bench.tables, available_now=True)
    assert not (bench.root / "_checkpoints").exists()
