"""Records of a real broker land once, beside what files bring, and what goes wrong with Kafka is one line."""

from __future__ import annotations

import base64
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from checkback.application.queries import reconcile
from checkback.errors import CheckbackError, SettingsError
from checkback.landing import kafka_query as landing_kafka
from checkback.landing.batch import Landing
from checkback.landing.kafka_query import land
from checkback.landing.landing_queries import Landed
from checkback.settings import Settings
from checkback.spark.session import kafka_package
from crash.process import kill_session
from landing.broker import Kafka, changed
from landing.fixtures import Lakehouse, half, op

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from support.jars import Jars

_UNPLACED = ("queue_id", "queue_offset")


def take(lake: Lakehouse, kafka: Kafka, half_topic: str | None, op_topic: str | None = None, base: int = 0) -> Landed:
    gateway, kafka_settings = lake.settings.gateway, lake.settings.kafka
    settings = lake.settings.model_copy(
        update={
            "kafka": kafka_settings.model_copy(update={"queue_base": base}),
            "gateway": gateway.model_copy(update={"queues": [77]}),
        }
    )
    return land(lake.spark, settings, kafka.servers, half_topic, op_topic, available_now=True)


def unplaced(queue_offset: int, **changes: object) -> str:
    """A half message as its producer sends it to Kafka: where it will lie it does not know."""
    return changed(half(queue_offset), leave=_UNPLACED, **changes)


def test_records_land_once_and_bad_ones_are_rejected_beside_them(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]
) -> None:
    halves, ops = topics
    kafka.send(halves, unplaced(0))
    kafka.send(halves, None)
    kafka.send(halves, changed(half(2), queue_id=5))
    kafka.send(halves, changed(half(7), queue_id=5))
    kafka.send(halves, changed(half(4), queue_id=0))
    kafka.send(halves, b"\xff")
    kafka.send(halves, " ")
    kafka.send(halves, changed(unplaced(7), leave=("born_timestamp",)), timestamp_ms=1_600_000_000_123)
    sent = kafka.send(halves, unplaced(0), partition=1)
    named = changed(op(0), leave=("queue_id", "queue_offset"), partition=sent.partition, offset=sent.offset)
    kafka.send(ops, named)
    kafka.send(ops, op(7, queue_id=5))
    kafka.send(
        ops, changed(op(0), leave=("queue_id", "queue_offset", "transaction_id"), partition=0, queue_offsets="0,2,")
    )
    kafka.send(ops, changed(named, queue_id=5))
    kafka.send(ops, changed(named, queue_offset=3))
    kafka.send(ops, None)
    assert take(lake, kafka, halves, ops, base=5) == Landed(half=4, op=4, rejected=8)

    assert lake.rows("half", "queue_id", "queue_offset", "transaction_id") == [
        (5, 0, "t0"),
        (5, 2, "t2"),
        (5, 7, "t7"),
        (6, 0, "t0"),
    ]
    born = {(row.queue_id, row.queue_offset): row.born_timestamp.timestamp() for row in lake.rows("half")}
    assert born[5, 0] == 1_700_000_000
    assert born[5, 7] == 1_600_000_000.123
    assert lake.rows("op", "queue_id", "queue_offset", "source") == [
        (5, 0, "producer"),
        (5, 2, "producer"),
        (5, 7, "producer"),
        (6, 0, "producer"),
    ]
    found = lake.rows("rejected", "source", "file", "reason", "raw")
    rejected = {(row.source, row.file): (row.reason, row.raw) for row in found}
    assert rejected == {
        ("half", f"kafka:{halves}/0/1"): ("record: no value (a tombstone)", None),
        ("half", f"kafka:{halves}/0/3"): ("queue_offset: is not the record's, 3", changed(half(7), queue_id=5)),
        ("half", f"kafka:{halves}/0/4"): ("queue_id: is not the record's, 5", half(4)),
        ("half", f"kafka:{halves}/0/5"): ("not JSON: byte 0 is not UTF-8", "\ufffd"),
        ("half", f"kafka:{halves}/0/6"): ("not JSON: Expecting value at character 1", " "),
        ("op", f"kafka:{ops}/0/3"): ("queue_id: is not that of the partition, 6", changed(named, queue_id=5)),
        ("op", f"kafka:{ops}/0/4"): ("queue_offset: is not the offset, 0", changed(named, queue_offset=3)),
        ("op", f"kafka:{ops}/0/5"): ("record: no value (a tombstone)", None),
    }

    # Killed between the writes and the note that they are done: the batch runs again, its rows are there already.
    versions = lake.versions()
    lake.forget_last_batch("land-kafka-half")
    lake.forget_last_batch("land-kafka-op")
    take(lake, kafka, halves, ops, base=5)
    assert lake.commits("land-kafka-half") == lake.commits("land-kafka-op") == [0]
    assert lake.versions() == versions
    # What comes later lands, what has landed does not.
    kafka.send(halves, unplaced(1), partition=1)
    assert take(lake, kafka, halves, ops, base=5) == Landed(half=1)


def test_transactions_of_kafka_are_decided(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    """A producer sends its half, learns where it lies, and ends it by that; beside a file's queue."""
    halves, ops = topics
    ends = [(0, "a", "COMMIT"), (0, "b", "ROLLBACK"), (1, "c", "COMMIT")]
    for partition, name, state in ends:
        sent = kafka.send(halves, unplaced(0, transaction_id=name), partition)
        place = {"partition": sent.partition, "offset": sent.offset}
        kafka.send(ops, changed(op(0), leave=("queue_id", "queue_offset"), transaction_id=name, state=state, **place))
    assert take(lake, kafka, halves, ops, base=1) == Landed(half=3, op=3)
    reconcile(lake.spark, lake.settings, available_now=True)
    decided = lake.rows("decisions", "queue_id", "queue_offset", "transaction_id", "state")
    assert decided == [(1, 0, "a", "COMMIT"), (1, 1, "b", "ROLLBACK"), (2, 0, "c", "COMMIT")]
    published = lake.rows("topics/orders_created", "half_queue_id", "half_queue_offset", "transaction_id", "body")
    assert published == [(1, 0, "a", b"hi"), (2, 0, "c", b"hi")]


def test_delays_of_kafka_are_kept(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    """By a field or by RocketMQ's properties, with a transaction or without one; one that is no delay is rejected."""
    halves, ops = topics
    records: list[dict[str, Any]] = [
        {"delay": "1h"},
        {"properties": {"DELAY": "3"}, "committed": True},
        {"properties": {"TIMER_DELIVER_MS": "1600000000000"}, "committed": True},
        {"delay_level": "soon", "committed": True},
        {"delay": "90d", "committed": True},
        {"committed": True},
    ]
    for offset, more in enumerate(records):
        kafka.send(halves, unplaced(offset, **more))
    kafka.send(ops, changed(op(0), leave=("queue_id", "queue_offset"), partition=0, offset=0))
    assert take(lake, kafka, halves, ops) == Landed(half=4, op=1, rejected=2)
    assert [reason.partition(":")[0] for (reason,) in lake.rows("rejected", "reason")] == ["delay", "delay_level"]
    reconcile(lake.spark, lake.settings, available_now=True)
    decided = lake.rows("decisions", "queue_offset", "state", "decided_at", "deliver_at")
    delays = {offset: at and (at - decided_at).total_seconds() for offset, _, decided_at, at in decided}
    assert delays == {0: 3_600, 1: 10, 2: None, 5: None}
    assert {state for _, state, _, _ in decided} == {"COMMIT"}
    assert lake.rows("topics/orders_created", "half_queue_offset") == [(2,), (5,)]


def test_json_behind_a_schema_registry_header_lands(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    """That of Confluent's JSON Schema serializer; what has no JSON behind it is named. No id of a schema is UTF-8."""
    halves, ops = topics
    header = b"\0\0\0\0\xc8"
    kafka.send(halves, header + unplaced(0).encode())
    kafka.send(halves, header + unplaced(1, body=base64.b64encode(bytes(600_000)).decode()).encode())
    kafka.send(halves, header + b"\x10order-47\x02{")
    kafka.send(halves, header + b'{"transaction_id": ')
    kafka.send(ops, header + changed(op(0), leave=("queue_id", "queue_offset"), partition=0, offset=0).encode())
    assert take(lake, kafka, halves, ops) == Landed(half=2, op=1, rejected=2)
    assert lake.rows("half", "queue_offset", "transaction_id") == [(0, "t0"), (1, "t1")]
    told = "a Schema Registry header (schema id 200) and no JSON object behind it: Avro or Protobuf; send JSON"
    assert lake.rows("rejected", "reason") == [("not JSON: Expecting value at character 19",), (f"not JSON: {told}",)]


def test_trace_context_of_kafkas_headers(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    """A record's own properties come first; what is no context is left out."""
    halves, ops = topics
    parent, other = (f"00-{trace:032x}-00f067aa0ba902b7-01" for trace in (1, 2))
    kafka.send(halves, unplaced(0), traceparent=parent, tracestate="a=b", other="x")
    kafka.send(halves, unplaced(1, properties={"traceparent": other}), traceparent=parent)
    kafka.send(halves, unplaced(2), traceparent="nonsense")
    assert take(lake, kafka, halves, ops) == Landed(half=3, op=0, rejected=0)
    found = [dict(properties or {}) for _, properties in lake.rows("half", "queue_offset", "properties")]
    assert found == [{"traceparent": parent, "tracestate": "a=b"}, {"traceparent": other}, {}]


def test_aborted_transactions_of_kafka_do_not_land(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    kafka.send_in_transaction(topics[0], [unplaced(0), unplaced(1)], commit=False)
    (place,) = kafka.send_in_transaction(topics[0], [unplaced(2)], commit=True)
    assert take(lake, kafka, topics[0]) == Landed(half=1)
    assert lake.rows("half", "queue_offset", "transaction_id") == [(place.offset, "t2")]
    options = {"isolation.level": "read_uncommitted"}
    other = Settings.model_validate(
        {"storage": {"root": str(lake.root.parent / "other")}, "kafka": {"options": options}}
    )
    assert land(lake.spark, other, kafka.servers, topics[0], None, available_now=True) == Landed(half=3)


def test_files_and_kafka_share_a_table(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], inbox: Path) -> None:
    (inbox / "a.jsonl").write_text(half(0))
    assert lake.land(half=inbox) == Landed(half=1)
    kafka.send(topics[0], unplaced(0, transaction_id="kafka's own"))
    kafka.send(topics[0], unplaced(1))
    # Without a base the queues are the same: what came first stays.
    assert take(lake, kafka, topics[0]) == Landed(half=1, rejected=1)
    assert lake.rows("half", "queue_offset", "transaction_id") == [(0, "t0"), (1, "t1")]
    assert lake.rows("rejected", "file", "reason", "raw") == [
        (
            f"kafka:{topics[0]}/0/0",
            "repeated (queue_id, queue_offset) 0/0",
            unplaced(0, transaction_id="kafka's own"),
        )
    ]


def test_signal_lets_the_batch_finish_and_no_batch_is_over_the_limit(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    take_batch, sizes = Landing.__call__, []

    def take_and_be_told_to_stop(landing: Landing, batch: DataFrame, batch_id: int) -> None:
        sizes.append(batch.count())
        if len(sizes) == 2 or sum(sizes) == 250:
            os.kill(os.getpid(), signal.SIGTERM)
        take_batch(landing, batch, batch_id)

    monkeypatch.setattr(Landing, "__call__", take_and_be_told_to_stop)
    kafka.send_all(topics[0], [unplaced(number) for number in range(250)])
    settings = lake.settings.model_copy(update={"kafka": lake.settings.kafka.model_copy(update={"max_records": 100})})
    landed = land(lake.spark, settings, kafka.servers, topics[0], None, available_now=False)
    assert landed == Landed(half=200)
    assert sizes == [100, 100]
    assert lake.commits("land-kafka-half") == [0, 1]
    assert not lake.spark.streams.active
    assert take(lake, kafka, topics[0], base=settings.kafka.queue_base) == Landed(half=50)
    ids = {(row.queue_offset, row.transaction_id) for row in lake.rows("half")}
    assert ids == {(number, f"t{number}") for number in range(250)}


def test_records_that_are_gone_before_they_were_read_end_the_query(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]
) -> None:
    kafka.send(topics[0], unplaced(0))
    assert take(lake, kafka, topics[0]) == Landed(half=1)
    for number in (1, 2, 3):
        kafka.send(topics[0], unplaced(number))
    kafka.forget(topics[0], before=3)
    with pytest.raises(CheckbackError) as caught:
        take(lake, kafka, topics[0])
    checkpoint = lake.tables.checkpoint("land-kafka-half")
    line = str(caught.value)
    assert line.startswith("query land-kafka-half: records of Kafka were removed before they were read: ")
    assert f"topic partition {topics[0]}-0" in line
    assert line.endswith(f"to go on with those that are left, remove {checkpoint}: what has landed is known")
    assert len(lake.rows("half")) == 1
    # As the line says.
    kafka.send(topics[0], unplaced(4))
    shutil.rmtree(checkpoint)
    assert take(lake, kafka, topics[0]) == Landed(half=2)


@pytest.mark.parametrize("meanwhile", [False, True], ids=["between runs", "while it runs"])
def test_topic_that_was_made_anew_is_refused_and_loses_nothing(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch, meanwhile: bool
) -> None:
    """The new topic is longer than the old one was: by its offsets alone its first records would be passed over."""
    kafka.send(topics[0], unplaced(0))
    assert take(lake, kafka, topics[0]) == Landed(half=1)

    def make_anew() -> None:
        kafka.create_anew(topics[0], 2)
        for number in range(4):
            kafka.send(topics[0], unplaced(number, transaction_id=f"new{number}"))

    if meanwhile:
        kafka.send(topics[0], unplaced(1))
        take_batch = Landing.__call__

        def take_from_the_new_one(landing: Landing, batch: DataFrame, batch_id: int) -> None:
            make_anew()
            take_batch(landing, batch, batch_id)

        monkeypatch.setattr(Landing, "__call__", take_from_the_new_one)
    else:
        make_anew()
    checkpoint = lake.tables.checkpoint("land-kafka-half")
    with pytest.raises(CheckbackError) as caught:
        take(lake, kafka, topics[0])
    told = (
        f"{topics[0]}: the topic was deleted and created again, or another one has its name: its offsets start over; "
        f"to land it from its beginning remove {checkpoint} and give it half queues of its own "
        "(--queue-base N): the previous ones hold its old offsets"
    )
    assert str(caught.value) == told
    assert lake.rows("half", "transaction_id") == [("t0",)]
    monkeypatch.undo()
    # Half of what the line says is not enough, all of it is.
    shutil.rmtree(checkpoint)
    with pytest.raises(SettingsError, match="half queue 0 holds messages of another topic, or of this one before"):
        take(lake, kafka, topics[0])
    assert take(lake, kafka, topics[0], base=10) == Landed(half=4)
    assert lake.rows("half", "queue_id", "transaction_id") == [(0, "t0"), *((10, f"new{n}") for n in range(4))]


def test_checkpoint_of_another_topic_is_refused_and_stays(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]
) -> None:
    """Removed, the topic whose it is would land once more, in other half queues."""
    kafka.send(topics[0], unplaced(0))
    assert take(lake, kafka, topics[0]) == Landed(half=1)
    checkpoint = lake.tables.checkpoint("land-kafka-half")
    with pytest.raises(SettingsError) as caught:
        take(lake, kafka, topics[1], base=10)
    told = f"{topics[1]}: {checkpoint} is the checkpoint of the topic {topics[0]}; land {topics[0]} with it; "
    assert str(caught.value) == f"{told}another topic needs a storage.checkpoints and half queues of its own"
    kafka.send(topics[0], unplaced(1))
    assert take(lake, kafka, topics[0]) == Landed(half=1)


def test_queues_of_a_topic_are_its_own(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], inbox: Path) -> None:
    kafka.send(topics[0], unplaced(0))
    assert take(lake, kafka, topics[0], base=5) == Landed(half=1)
    (inbox / "halves").mkdir()
    (inbox / "halves" / "a.jsonl").write_text(f"{half(9, queue_id=5)}\n{half(9, queue_id=4)}\n")
    (inbox / "ops.jsonl").write_text(op(0, queue_id=5))
    assert lake.land(inbox / "halves", inbox / "ops.jsonl") == Landed(half=1, op=1, rejected=1)
    reason = "queue_id: 5 is of a topic of Kafka, whose messages come by no other door"
    assert lake.rows("rejected", "reason", "raw") == [(reason, half(9, queue_id=5))]
    for base in (76, 77):
        with pytest.raises(SettingsError) as caught:
            take(lake, kafka, topics[0], base=base)
        told = f"partitions of {topics[0]} are half queues {base} to {base + 1}, and 77 is in gateway.queues"
        assert str(caught.value) == f"kafka.queue_base: {told}; give each queues of its own"


def test_partition_in_the_queue_of_another_topic_lands_nothing(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was added while `land` ran: the other partitions land, and the topic whose queue it is goes on."""
    kafka.send(topics[1], unplaced(0, transaction_id="its own"))
    assert take(lake, kafka, topics[1], base=1) == Landed(half=1)
    storage = lake.settings.storage.model_copy(update={"checkpoints": str(lake.root.parent / "others")})
    other = replace(lake, settings=lake.settings.model_copy(update={"storage": storage}))
    kafka.send(topics[0], unplaced(0))
    for number in range(2):
        kafka.send(topics[0], unplaced(number, transaction_id="another's"), partition=1)
    with monkeypatch.context() as patch:
        patch.setattr(landing_kafka, "check_queues", lambda *_: None)  # at the start it had one partition
        assert take(other, kafka, topics[0]) == Landed(half=1, rejected=2)
    told = "queue_id: 1 is of another topic of Kafka, whose messages come by no other door"
    assert lake.rows("rejected", "file", "reason") == [(f"kafka:{topics[0]}/1/{number}", told) for number in range(2)]
    with pytest.raises(SettingsError, match="half queue 1 holds messages of another topic"):
        take(other, kafka, topics[0])
    kafka.send(topics[1], unplaced(1))
    assert take(lake, kafka, topics[1], base=1) == Landed(half=1)
    assert lake.rows("half", "queue_id", "transaction_id") == [(0, "t0"), (1, "its own"), (1, "t1")]


def test_topic_of_some_groups_takes_no_others_messages(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str]) -> None:
    bound = lake.settings.kafka.model_copy(update={"groups": {topics[0]: ["orders"], topics[1]: ["orders"]}})
    lake.settings = lake.settings.model_copy(update={"kafka": bound})
    for group in ("orders", "thieves"):
        kafka.send(topics[0], unplaced(0, producer_group=group))
        kafka.send(topics[1], op(0, producer_group=group))
    assert take(lake, kafka, *topics) == Landed(half=1, op=1, rejected=2)
    reason = "producer_group: thieves may not write in this topic (kafka.groups)"
    assert lake.rows("rejected", "source", "reason") == [("half", reason), ("op", reason)]


def test_missing_topic_and_missing_brokers_are_told_at_once(lake: Lakehouse, kafka: Kafka) -> None:
    with pytest.raises(SettingsError) as missing:
        take(lake, kafka, "no-such-topic")
    told = f"no-such-topic: there is no such topic at {kafka.servers}; create it or check its name"
    assert str(missing.value) == told
    quick = {"default.api.timeout.ms": "500", "request.timeout.ms": "400"}
    hasty = Settings.model_validate({"storage": {"root": str(lake.root)}, "kafka": {"options": quick}})
    with pytest.raises(CheckbackError) as gone:
        land(lake.spark, hasty, "127.0.0.1:9", "half", None, available_now=True)
    assert str(gone.value) == "127.0.0.1:9: no Kafka broker answers; check --kafka, kafka.options and the brokers"
    assert not lake.root.exists()


@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_compacted_topic_is_refused(lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], policy: str) -> None:
    """Its acknowledged records may be gone before they are read, without a gap that Spark would tell."""
    name = kafka.create(f"compacted-{topics[0]}", cleanup_policy=policy)
    for named in ((name, topics[1]), (topics[0], name)):
        with pytest.raises(SettingsError) as caught:
            take(lake, kafka, *named)
        assert str(caught.value).startswith(f"{name}: has cleanup.policy={policy}: ")
        assert "set the topic's cleanup.policy to delete" in str(caught.value)
    assert not lake.root.exists()


def test_spark_without_its_kafka_source_is_told_what_to_bring(
    lake: Lakehouse, kafka: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(landing_kafka, "_SOURCE", (*landing_kafka._SOURCE, "no.such.Class"))
    with pytest.raises(SettingsError) as caught:
        take(lake, kafka, "half")
    told = f"--kafka: Spark's Kafka source is missing; add {kafka_package()} to --packages"
    assert str(caught.value) == told


@pytest.mark.skipif("CHECKBACK_SLOW" not in os.environ, reason="takes a minute: run it with CHECKBACK_SLOW=1")
def test_killed_process_has_landed_each_record_once(
    lake: Lakehouse, kafka: Kafka, jars: Jars, topics: tuple[str, str]
) -> None:
    """Kill -9 of `checkback land` between its batches or in one; the next start takes up what is left."""
    kafka.send_all(topics[0], [unplaced(number) for number in range(2_000)])
    command = [str(Path(sys.executable).parent / "checkback"), "land", "--kafka", kafka.servers]
    command += ["--half-topic", topics[0], "--queue-base", "3"]
    for setting in (
        f"storage.root={lake.root}",
        f"spark.jars={','.join(jars.source)}",
        "kafka.max_records=100",
        "reconcile.trigger=0s",
    ):
        command += ["--set", setting]
    log = lake.root / "half" / "_delta_log"
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    try:
        deadline = time.monotonic() + 180
        # The table's own first version, and one batch; the next are under way.
        while process.poll() is None and time.monotonic() < deadline and len([*log.glob("*.json")]) < 2:
            time.sleep(0.05)
        assert process.poll() is None
    finally:
        kill_session(process.pid)
        _, said = process.communicate()
    before = len(lake.rows("half"))
    assert 100 <= before < 2_000, said
    assert take(lake, kafka, topics[0], base=3).half >= 2_000 - before - 100
    rows = lake.rows("half", "queue_id", "queue_offset", "transaction_id")
    assert rows == [(3, number, f"t{number}") for number in range(2_000)]
    assert not lake.rows("rejected")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"security.protocol": "hush", "ssl.key.password": "hush"}, "check --kafka and kafka.options"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "sasl.jaas.config": "org.x.Module hush hush;"},
            "sasl.jaas.config is not one that Kafka understands",
        ),
        ({"auto.offset.reset": "hush"}, "kafka.options: Spark's Kafka source does not take auto.offset.reset"),
        ({"key.deserializer": "hush"}, "kafka.options: Spark's Kafka source does not take key.deserializer"),
    ],
)
def test_wrong_options_are_told_without_their_values(
    lake: Lakehouse, kafka: Kafka, topics: tuple[str, str], options: dict[str, str], told: str
) -> None:
    settings = Settings.model_validate({"storage": {"root": str(lake.root)}, "kafka": {"options": options}})
    with pytest.raises(SettingsError) as caught:
        land(lake.spark, settings, kafka.servers, topics[0], None, available_now=True)
    assert told in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "\n" not in str(caught.value)
