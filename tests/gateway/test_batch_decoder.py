"""Batches read in one go: what is taken is exactly what the rules, message by message, make of it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checkback.gateway.problems import Problem
from checkback.gateway.requests import batch_decoder, json_decoder
from checkback.gateway.requests.batch_decoder import HALF_FIELDS, OP_FIELDS, PARSED
from gateway.contents import HALF, OP

NOW = 1_795_227_064_579
GOOD_HALF: dict[str, Any] = {
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "real_topic": "payments",
    "body": "eyJhbW91bnQiOiA0Mn0=",
}
GOOD_OP: dict[str, Any] = {
    "queue_id": 0,
    "half_offset": 12,
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "state": "COMMIT",
}
TEXT = st.text(st.characters(), max_size=4) | st.text(max_size=4)
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "transaction_id": TEXT,
        "real_queue_id": st.integers(-1, 3) | st.none() | st.floats(0, 3),
        "ordering_key": st.none() | TEXT | st.text("k", min_size=254, max_size=256),
        "tags": TEXT | st.none(),
        "keys": st.none() | TEXT,
        "properties": st.none()
        | st.dictionaries(TEXT | st.sampled_from(sorted(PARSED)), TEXT | st.just("7"), max_size=3),
        "body": st.text("AQ=-_ /+\n", max_size=8) | st.binary(max_size=9).map(lambda b: base64.b64encode(b).decode()),
        "born_timestamp": st.none() | st.integers(-1, 2**64) | st.just(0),
        "check_immunity_s": st.none() | st.integers(-2, 2**31),
        "remark": st.none() | TEXT,
        "state": st.sampled_from(["COMMIT", "ROLLBACK", "commit"]),
        "half_offset": st.integers(-1, 2**64),
    },
)
#: seldom, as one ends all of a message
SELDOM: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}] * 9 + [{"else": [1]}, {"tag": None}, {"committed": True}, {"\ud800": 1}, {"é" * 50: 1}]
)


def slowly(name: str, body: bytes) -> Any:
    items = json_decoder.items_of(body, name)
    if isinstance(items, Problem):
        return items
    return [(json_decoder.half if name == "messages" else json_decoder.op)(fields, NOW) for fields in items]


def batches(name: str, good: dict[str, Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Bodies: mostly good messages with something changed; sometimes a field twice, or bytes that are no JSON."""
    known = HALF_FIELDS if name == "messages" else OP_FIELDS
    changes = CHANGES.map(lambda changes: {field: value for field, value in changes.items() if field in known})
    message = st.tuples(changes, SELDOM).map(lambda parts: {**good, **parts[0], **parts[1]}) | other | st.just(good)
    content = st.tuples(st.lists(message, max_size=3), st.sampled_from([{}, {}, {}, {"else": 1}])).map(
        lambda parts: {name: parts[0], **parts[1]}
    )
    text = content.map(lambda value: json.dumps(value, ensure_ascii=True).encode())
    raw = content.map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    twice = text.map(lambda body: body.replace(b"]}", b'], "%s": []}' % name.encode()))
    again = text.map(lambda body: body.replace(b'{"tr', b'{"state": "ROLLBACK", "body": "AAAA", "tags": 1, "tr'))
    broken = st.tuples(text, st.integers(0, 99), st.binary(max_size=2)).map(
        lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] + 1 :]
    )
    return text | raw | twice | again | broken


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(batches("messages", GOOD_HALF, HALF))
@example(b'{"messages": [' + json.dumps(GOOD_HALF).encode() + b'], "else": "\xff"}')
def test_quickly_read_half_messages_are_the_same(body: bytes) -> None:
    taken = batch_decoder.halves(body, NOW)
    assert taken is None or taken == slowly("messages", body)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(batches("messages", GOOD_HALF, HALF).map(lambda body: body[14:-2]))
@example(json.dumps(GOOD_HALF).encode())
def test_quickly_read_half_message_is_the_same(body: bytes) -> None:
    taken = batch_decoder.half(body, NOW)
    if taken is not None:
        fields = json_decoder.object_of(body)
        assert not isinstance(fields, Problem)
        assert taken == json_decoder.half(fields, NOW)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(batches("ops", GOOD_OP, OP))
def test_quickly_read_ops_are_the_same(body: bytes) -> None:
    taken = batch_decoder.ops(body, NOW)
    assert taken is None or taken == slowly("ops", body)


@pytest.mark.parametrize("change", [{}, {"properties": {"région": "eu"}, "tags": "t", "keys": "k"}])
def test_usual_batch_is_read_quickly(change: dict[str, Any]) -> None:
    assert batch_decoder.half(json.dumps({**GOOD_HALF, **change}).encode(), NOW) is not None
    assert batch_decoder.halves(json.dumps({"messages": [{**GOOD_HALF, **change}] * 1000}).encode(), NOW) is not None
    assert batch_decoder.ops(json.dumps({"ops": [{**GOOD_OP, "remark": "r"}] * 1000}).encode(), NOW) is not None


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": [1]},
        {"real_topic": "rmq_sys_x"},
        {"real_topic": "_delta_log"},
        {"real_topic": "NUL"},
        {"real_topic": "a%b"},
        {"real_topic": "t" * 128},
        {"producer_group": "g" * 121},
        {"producer_group": ""},
        {"transaction_id": ""},
        {"transaction_id": "t" * 1025},
        {"real_queue_id": -1},
        {"real_queue_id": 2**31},
        {"real_queue_id": 0, "ordering_key": "k"},
        {"ordering_key": ""},
        {"ordering_key": "k" * 256},
        {"born_timestamp": -1},
        {"born_timestamp": 10**15},
        {"check_immunity_s": 7},
        *({"properties": {name: "7"}} for name in sorted(PARSED)),
        {"body": "AA"},
    ],
)
def test_what_is_in_doubt_is_left_to_the_rules(change: dict[str, Any]) -> None:
    assert batch_decoder.halves(json.dumps({"messages": [GOOD_HALF, {**GOOD_HALF, **change}]}).encode(), NOW) is None


@pytest.mark.parametrize(
    "change",
    [
        {"unknown": [1]},
        {"queue_id": -1},
        {"queue_id": 2**31},
        {"half_offset": -1},
        {"half_offset": 2**63},
        {"transaction_id": ""},
        {"producer_group": "a b"},
        {"state": "UNKNOWN"},
        {"born_timestamp": -1},
        {"remark": "r" * 1025},
    ],
)
def test_op_in_doubt_is_left_to_the_rules(change: dict[str, Any]) -> None:
    assert batch_decoder.ops(json.dumps({"ops": [GOOD_OP, {**GOOD_OP, **change}]}).encode(), NOW) is None


def test_names_of_any_length_are_not_kept() -> None:
    """Whatever was sent as a group or topic: what is kept of it is bounded in number and length."""
    tracemalloc.start()
    try:
        for number in range(20):
            name = f"{number}" + "g" * (1 << 20)
            for change in ({"producer_group": name}, {"real_topic": name}):
                assert batch_decoder.halves(json.dumps({"messages": [GOOD_HALF | change]}).encode(), NOW) is None
            assert batch_decoder.ops(json.dumps({"ops": [GOOD_OP | {"producer_group": name}]}).encode(), NOW) is None
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [0, 1001])
def test_unfit_number_of_messages_is_not_read_quickly(number: int) -> None:
    assert batch_decoder.halves(json.dumps({"messages": [GOOD_HALF] * number}).encode(), NOW) is None
    assert batch_decoder.ops(json.dumps({"ops": [GOOD_OP] * number}).encode(), NOW) is None


def test_properties_near_their_limit_are_left_to_the_rules() -> None:
    for fields in (
        {"tags": "€" * 11_000},
        {"properties": {"a": "€" * 11_000}},
        {"properties": dict.fromkeys(map(str, range(9999)), "")},
    ):
        body = json.dumps({"messages": [{**GOOD_HALF, **fields}]}).encode()
        assert batch_decoder.halves(body, NOW) is None
        assert isinstance(slowly("messages", body)[0], Problem)
