"""A task of the check query, without Spark: what it returns, and what it hands on to the next batch."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from check.servers import Received, Server, Wire, always, reply, says, unused_url
from checkback.check import worker as worker_module
from checkback.check.circuit_breaker import CircuitBreaker, Limits, limits_of
from checkback.check.endpoint import CheckedGroup
from checkback.check.endpoint_health import EndpointHealth, Rate, RateState
from checkback.check.query import has_valid_names, rates_of
from checkback.check.worker import RETURNED, CheckWorker
from checkback.settings import Settings
from checkback.storage.schemas import arrow_schema
from support.odd_rows import REPLACED, bad_texts

_MESSAGE = pa.struct(
    [
        ("tags", pa.string()),
        ("keys", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
    ]
)
_REQUEST = pa.schema([*list(RETURNED)[:6], pa.field("born_ms", pa.int64()), pa.field("message", _MESSAGE)])


def batches(group: str, count: int, size: int = 10) -> list[pa.RecordBatch]:
    rows = [
        {"queue_id": 0, "queue_offset": offset, "transaction_id": "tx-1", "producer_group": group}
        | {"real_topic": "orders", "check_times": 1, "born_ms": 0, "message": None}
        for offset in range(count)
    ]
    return [pa.RecordBatch.from_pylist(rows[at : at + size], schema=_REQUEST) for at in range(0, count, size)]


def asked(worker: CheckWorker, given: list[pa.RecordBatch]) -> tuple[list[dict[str, Any]], EndpointHealth]:
    """(answers, what was learned)."""
    rows = pa.Table.from_batches(list(worker.ask(given)), RETURNED).to_pylist()
    (learned,) = [row["health"] for row in rows if row["health"] is not None]
    answers = [row for row in rows if row["health"] is None]
    return answers, EndpointHealth.from_json(learned)


@pytest.mark.slow
def test_message_whose_text_is_not_utf8_is_sent_as_it_can_be() -> None:
    """Another writer's: it holds up neither its own check nor the others of the task."""
    rows = pa.Table.from_batches(batches("orders", 2)).to_pylist()
    rows[0]["message"] = {"tags": "bad", "keys": "k", "properties": [("bad", "bad")], "body": b"\xff"}
    (given,) = bad_texts(pa.Table.from_pylist(rows, _REQUEST)).to_batches()
    with Server(always(reply(says("COMMIT")))) as server:
        answers, _ = asked(
            CheckWorker({"orders": CheckedGroup((server.url,), include_body=True)}, 5, None, concurrency=4), [given]
        )
    assert [row["outcome"] for row in answers] == ["COMMIT", "COMMIT"]
    bodies = [json.loads(each.body) for each in server.received]
    assert [body["tags"] for body in bodies if body.get("tags")] == [REPLACED]


def test_requests_whose_names_are_not_utf8() -> None:
    """Whichever name it is; the others are not touched."""
    names: list[tuple[str | None, str, str]]
    names = [("tx", "orders", "pay"), ("bad", "orders", "pay"), ("tx", "bad", "pay"), ("tx", "orders", "bad")]
    names += [("tx", "\ufffd\ufffdd", "pay"), (None, "orders", "pay")]
    columns = ("transaction_id", "producer_group", "real_topic")
    rows = pa.Table.from_pylist([dict(zip(columns, row, strict=True)) for row in names], arrow_schema("check_requests"))
    assert has_valid_names(rows).to_pylist() == [True] * 6
    found = has_valid_names(bad_texts(rows)).to_pylist()
    assert found == [True, False, False, False, True, True]


@pytest.mark.slow
def test_batch_ends_in_its_time_whatever_is_left() -> None:
    """Of a group that may be asked once a minute one check is sent; the others are skipped, other groups are not."""
    with Server(always(reply(says("COMMIT")))) as server:
        groups = {"slow": CheckedGroup((server.url,)), "well": CheckedGroup((server.url,))}
        worker = CheckWorker(groups, 5, None, concurrency=4, rates={"slow": Rate(1 / 60)}, batch_time_s=1)
        answers, learned = asked(worker, batches("slow", 40) + batches("well", 40))
        again, _ = asked(replace(worker, health=learned), batches("slow", 3))
    said = [(row["producer_group"], row["outcome"], row["error"], row["delivered"]) for row in answers]
    why = "not asked: the 1 s of check.batch_time were over"
    assert said.count(("slow", "SKIPPED", why, False)) == 39
    assert said.count(("slow", "COMMIT", None, True)) == 1
    assert said.count(("well", "COMMIT", None, True)) == 40
    assert len(said) == 80
    assert {row["outcome"] for row in again} == {"SKIPPED"}  # the minute is not over


@pytest.mark.slow
def test_slow_group_with_large_messages_does_not_starve_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first, however much it is: each has half of the slots; bodies that waited on disk are whole."""
    monkeypatch.setattr(worker_module, "_MOST_BYTES", 1000)
    given = []
    for group, count in (("slow", 40), ("well", 20)):
        rows = pa.Table.from_batches(batches(group, count)).to_pylist()
        for row in rows:
            body = f"{group} {row['queue_offset']}".encode().ljust(300, b".")
            row["message"] = {"tags": group, "keys": None, "properties": [("a", "1")], "body": body}
        given += pa.Table.from_pylist(rows, _REQUEST).to_batches(max_chunksize=5)
    served, in_time = threading.Event(), []

    def quick(received: Received, wire: Wire) -> bool:
        wire.send(reply(says("COMMIT")))
        if sum(each.path == "/quick" for each in server.received) == 20:
            served.set()
        return True

    def slow(received: Received, wire: Wire) -> bool:
        in_time.append(served.wait(5))  # once the other group has had all of its checks
        wire.send(reply(says("UNKNOWN")))
        return True

    with Server(lambda received, wire: (quick if received.path == "/quick" else slow)(received, wire)) as server:
        groups = {
            "slow": CheckedGroup((f"{server.address}/slow",), include_body=True),
            "well": CheckedGroup((f"{server.address}/quick",), include_body=True),
        }
        answers, _ = asked(CheckWorker(groups, 30, None, concurrency=4), given)
    assert all(in_time)
    assert Counter((row["producer_group"], row["outcome"]) for row in answers) == {
        ("slow", "UNKNOWN"): 40,
        ("well", "COMMIT"): 20,
    }
    bodies = {base64.b64decode(each.json["body"]).rstrip(b".").decode() for each in server.received}
    assert bodies == {f"slow {n}" for n in range(40)} | {f"well {n}" for n in range(20)}


def test_breaker_is_handed_on_to_the_next_batch() -> None:
    """Failures of several batches in a row open it, and the next batch does not try."""
    worker = CheckWorker(
        {"gone": CheckedGroup((unused_url(),))}, 5, None, concurrency=1, limits=Limits(failures=5, pause_s=600)
    )
    errors = []
    for _ in range(3):
        answers, learned = asked(worker, batches("gone", 2))
        errors += [row["error"] for row in answers]
        worker = replace(worker, health=learned)
    assert errors == ["connection refused"] * 5 + ["not tried: 5 tries in a row failed"]
    assert [row["delivered"] for row in answers] == [False, False]


def test_row_holds_the_request_and_what_came_of_it() -> None:
    """Every column of RETURNED; and a request's half message is told to those who want it."""
    nobody = unused_url()
    message = {"tags": "t", "keys": "k", "properties": [("a", "1")], "body": b"42"}
    identity: dict[str, Any] = {"queue_id": 3, "queue_offset": 1 << 40, "transaction_id": "tx-1", "producer_group": "g"}
    identity |= {"real_topic": "orders", "check_times": 1}
    asking = pa.RecordBatch.from_pylist([identity | {"born_ms": 9, "message": message}], schema=_REQUEST)
    with Server(always(reply(says("ROLLBACK")))) as server:
        worker = CheckWorker({"g": CheckedGroup((nobody, server.url), include_body=True)}, 5, None, concurrency=2)
        ((row,), _) = asked(worker, [asking, *batches("unknown", 0)])
        told = server.received[0].json
    answered_at, latency_ms = row.pop("answered_at"), row.pop("latency_ms")
    assert (answered_at.utcoffset(), latency_ms >= 0) == (timedelta(0), True)
    assert row == identity | {
        "endpoint": server.url,
        "outcome": "ROLLBACK",
        "error": None,
        "failed_tries": [{"endpoint": nobody, "error": "connection refused"}],
        "delivered": True,
        "health": None,
    }
    assert (told["born_timestamp"], told["body"], told["properties"]) == (9, "NDI=", {"a": "1"})


@pytest.mark.parametrize(
    ("properties", "place"),
    [
        ([("CHECKBACK_RESUMED_FROM", "3/7")], (3, 7)),
        ([("CHECKBACK_RESUMED_FROM", "2000000000/0"), ("CHECKBACK_FIRST_PLACE", "3/7")], (3, 7)),
        ([("CHECKBACK_RESUMED_FROM", "3/x")], (2_000_000_000, 5)),
        (None, (2_000_000_000, 5)),
    ],
)
def test_producer_of_a_resumed_message_is_asked_about_the_place_that_it_knows(
    properties: list[tuple[str, str]] | None, place: tuple[int, int]
) -> None:
    """Its half message in operator.queue is another one; that it is answered for. Elsewhere properties mean nothing."""
    message = {"tags": None, "keys": None, "properties": properties, "body": b"42"}
    (sent,) = batches("g", 1)
    rows = [
        row | {"queue_id": queue, "queue_offset": 5, "message": message}
        for row in sent.to_pylist()
        for queue in (2_000_000_000, 0)
    ]
    with Server(always(reply(says("COMMIT")))) as server:
        worker = CheckWorker({"g": CheckedGroup((server.url,))}, 5, None, concurrency=1, resumed_queues={2_000_000_000})
        answers, _ = asked(worker, [pa.RecordBatch.from_pylist(rows, schema=_REQUEST)])
        told = [(received.json["queue_id"], received.json["queue_offset"]) for received in server.received]
    assert {(row["queue_id"], row["queue_offset"], row["outcome"]) for row in answers} == {
        (queue, 5, "COMMIT") for queue in (2_000_000_000, 0)
    }
    assert sorted(told) == sorted([place, (0, 5)])
    assert "body" not in server.received[0].json


def test_nothing_to_ask_is_no_answer() -> None:
    answers, learned = asked(CheckWorker({}, 5, None, concurrency=4), [])
    assert (answers, learned) == ([], EndpointHealth())


times = st.floats(0, 1e9, allow_nan=False)
breakers = st.builds(
    CircuitBreaker, failed=st.integers(0, 99), until=times, asked_for=st.booleans(), changed=st.floats(1, 1e9)
)
healths = st.builds(
    EndpointHealth,
    st.dictionaries(st.tuples(st.sampled_from("ab"), st.sampled_from("uv")), breakers),
    st.dictionaries(st.sampled_from("ab"), st.builds(RateState, times)),
)


@given(healths)
def test_health_survives_the_way_to_the_driver(health: EndpointHealth) -> None:
    assert EndpointHealth.from_json(health.to_json()) == health


@given(st.lists(healths, min_size=1, max_size=3))
def test_health_of_several_tasks_is_what_was_learned_last(learned: list[EndpointHealth]) -> None:
    together = EndpointHealth()
    for one in learned:
        together = together.and_then(one)
    for place, breaker in together.breakers.items():
        assert breaker.changed == max(one.breakers[place].changed for one in learned if place in one.breakers)
    for name, pace in together.paces.items():
        assert pace == max((one.paces[name] for one in learned if name in one.paces), key=lambda each: each.used_until)


@pytest.mark.parametrize(
    ("interval", "pause", "expected"),
    [("60s", "30s", 30), ("60s", "10s", 10), ("10s", "30s", 5), ("1ms", "30s", 0.25), ("1ms", "1ms", 0.001)],
)
def test_pause_ends_before_anybody_is_due_again(interval: str, pause: str, expected: float) -> None:
    settings = {"transaction": {"check_interval": interval}, "check": {"breaker_pause": pause, "timeout": "2s"}}
    limits = limits_of(Settings.model_validate(settings))
    assert limits == Limits(failures=10, pause_s=expected, trial_s=3, longest_s=300)


def test_limits_of_groups_are_those_that_are_set() -> None:
    producers = {"slow": {"checks_per_second": 0.5, "checks_burst": 3}, "well": {}}
    assert rates_of(Settings.model_validate({"producers": producers})) == {"slow": Rate(0.5, 3)}
