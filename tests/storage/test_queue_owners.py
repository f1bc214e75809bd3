"""A queue has one owner, and nobody else's message gets into it, however close the two come. Without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkback.errors import FencedError, SettingsError, StorageError
from checkback.gateway.appender import Appender, claim
from checkback.gateway.metrics import Metrics
from checkback.gateway.service import GatewayService
from checkback.messages.limits import LONG_MAX
from checkback.settings import Settings
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.queue_owners import (
    ANY_TOPIC,
    OwnedQueues,
    QueueOwner,
    log_of_half,
    operators_queues,
    refuse_foreign,
)
from checkback.storage.tables import Tables
from operate.fixtures import Lakehouse

NEVER = 99


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    tables = Tables.of(Settings.model_validate({"storage": {"root": str(tmp_path)}}).storage)
    for name in ("half", "op"):
        DeltaLog.create(name, tables.location(name))
    return tables


def claimed(tables: Tables, *queues: int) -> None:
    """A gateway starts."""
    half, op = (Appender(tables.root, name, queues) for name in ("half", "op"))
    claim(half, op)


def committed(tables: Tables, queues: OwnedQueues, batch: int = 0) -> None:
    """A landing's commit, as Tables.append makes it."""
    expected, marks = queues.fence()
    tables.log("half").commit_after([], expected, {**marks, "land/q/half": batch})


def test_each_owner_is_told_and_refused(tables: Tables) -> None:
    claimed(tables, 0, 7)
    tables.log("half").commit_after([], {}, {"operator/9": 0, "operator/RESUME/0/1/g/t": 0, "kafka/1000": 5})
    files = OwnedQueues(tables, "half", QueueOwner.FILES, NEVER).refused([0, 1, 7, 9, 1000, NEVER])
    assert {queue: reason.partition(" is ")[2].partition(",")[0] for queue, reason in files.items()} == {
        0: "the gateway's",
        7: "the gateway's",
        9: "the operator's",
        1000: "of a topic of Kafka",
        NEVER: "the operator's",
    }
    assert set(OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER).refused([0, 1000, 1001])) == {0}
    assert operators_queues(DeltaLog("half", tables.location("half"))) == {9}
    # An op for a topic's half message may come by a file.
    assert set(OwnedQueues(tables, "op", QueueOwner.FILES, NEVER).refused([0, 9, 1000])) == {0, 9}


def test_a_gateway_that_comes_first_fences_the_commit(tables: Tables) -> None:
    queues = OwnedQueues(tables, "half", QueueOwner.FILES, NEVER)
    assert queues.refused([0, 1]) == {}
    claimed(tables, 0)
    with pytest.raises(FencedError):
        committed(tables, queues)
    assert queues.changed()
    assert set(queues.refused([0, 1])) == {0}
    assert not queues.changed()
    committed(tables, queues)


def test_a_gateway_that_comes_later_is_not_disturbed_by_what_landed(tables: Tables) -> None:
    queues = OwnedQueues(tables, "half", QueueOwner.FILES, NEVER)
    for batch in range(3):
        assert queues.refused([0]) == {}
        committed(tables, queues, batch)
    claimed(tables, 0)
    assert set(queues.refused([0])) == {0}


@pytest.mark.parametrize("owner", [QueueOwner.FILES, QueueOwner.KAFKA])
def test_of_two_that_land_on_a_queue_at_once_the_second_looks_again(tables: Tables, owner: QueueOwner) -> None:
    """Each has a checkpoint of its own: what the first has landed was not there when the second looked."""
    first, second = (OwnedQueues(tables, "half", owner, NEVER, mark=12) for _ in range(2))
    for batch in range(2):
        for queues in (first, second):
            assert queues.refused([1000]) == {}
        committed(tables, first, batch)
        with pytest.raises(FencedError):
            committed(tables, second, batch)
        assert second.changed()
        assert second.refused([1000]) == {}
        committed(tables, second, batch)


def test_a_topic_keeps_its_queues(tables: Tables) -> None:
    queues = OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER, mark=12)
    assert queues.refused([1000, 1001]) == {}
    committed(tables, queues)
    log = log_of_half(tables)
    refuse_foreign(log, [999, 1000, 1001], QueueOwner.KAFKA, "kafka.queue_base", mark=12)
    refuse_foreign(log, [1000], QueueOwner.KAFKA, "kafka.queue_base")  # a broker that gives no ids
    with pytest.raises(SettingsError, match="half queue 1001 holds messages of another topic"):
        refuse_foreign(log, [1001], QueueOwner.KAFKA, "kafka.queue_base", mark=13)
    assert set(OwnedQueues(tables, "half", QueueOwner.FILES, NEVER).refused([1000, 1002])) == {1000}


def test_a_topic_takes_no_queue_of_another_one(tables: Tables) -> None:
    """A partition was added to it: it is not looked at at the start only."""
    mine, others = (OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER, mark) for mark in (12, 13))
    others.refused([1001])
    committed(tables, others)
    told = "queue_id: 1001 is of another topic of Kafka, whose messages come by no other door"
    assert mine.refused([1000, 1001]) == {1001: told}
    committed(tables, mine)
    assert others.refused([1001]) == {}
    for mark in (12, ANY_TOPIC):
        unknown = OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER, mark)
        unknown.refused([1000])
        committed(tables, unknown, 1)  # a broker that gives no ids does not make them forgotten
    assert tables.log("half").versions(["kafka/1000", "kafka/1001"]) == {"kafka/1000": 12, "kafka/1001": 13}


def test_a_topic_that_comes_first_fences_the_commit(tables: Tables) -> None:
    topic = OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER, mark=12)
    late = [
        OwnedQueues(tables, "half", QueueOwner.KAFKA, NEVER, mark=13),
        OwnedQueues(tables, "half", QueueOwner.FILES, NEVER),
    ]
    for queues in (topic, *late):
        assert queues.refused([1000]) == {}
    committed(tables, topic)
    for queues in late:
        with pytest.raises(FencedError):
            committed(tables, queues, 1)
        assert queues.changed()
        assert set(queues.refused([1000])) == {1000}


@pytest.mark.parametrize(("app", "whose"), [("operator/5", "the operator's"), ("kafka/5", "of a topic of Kafka")])
def test_gateway_does_not_start_on_the_queue_of_another(tables: Tables, app: str, whose: str) -> None:
    tables.log("half").commit_after([], {}, {app: 1})
    settings = Settings.model_validate({"storage": {"root": tables.root}, "gateway": {"queues": [4, 5]}})
    with pytest.raises(SettingsError) as caught:
        GatewayService(settings, Metrics(), print)
    told = f"gateway.queues: half queue 5 is {whose} already; give each a queue of its own"
    assert str(caught.value) == told
    assert tables.log("half").versions(["gateway/4"]) == {"gateway/4": None}


def test_gateway_says_that_a_queue_has_no_offset_left(tmp_path: Path) -> None:
    Lakehouse(tmp_path).half(LONG_MAX, queue=3)
    settings = Settings.model_validate({"storage": {"root": str(tmp_path)}, "gateway": {"queues": [3]}})
    with pytest.raises(StorageError, match=r"queue 3 has the offset 9223372036854775807: .*give the gateway other"):
        GatewayService(settings, Metrics(), print)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kafka": {"queue_base": 0}}, "kafka.queue_base 0 is also in gateway.queues"),
        ({"gateway": {"queues": [1, 2_000_000_000]}}, "operator.queue 2000000000 is also in gateway.queues"),
        ({"operator": {"queue": 1000}}, "operator.queue 1000 is also in kafka.queue_base"),
    ],
)
def test_settings_that_give_a_queue_twice_are_refused(settings: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Settings.model_validate(settings)


def test_tables_that_spark_writes_know_the_operators_queue_only(tmp_path: Path) -> None:
    storage = {"root": str(tmp_path), "writer": "spark"}
    queues = OwnedQueues(Tables.of(Settings.model_validate({"storage": storage}).storage), "half", QueueOwner.FILES, 9)
    assert set(queues.refused([0, 9])) == {9}
    assert queues.fence()[1] == {}
