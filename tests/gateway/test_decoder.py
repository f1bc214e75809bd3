"""Bodies decoded in one go: what comes of them is exactly what the rules, message by message, make of it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from checkback.gateway.http import decoder
from checkback.gateway.http.decoder import Op
from checkback.gateway.problems import Problem
from checkback.messages.half import CONSUMED, SHARDING_KEY, HalfMessage
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
    "queue_offset": 12,
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "state": "COMMIT",
}
_PARSED = CONSUMED | {SHARDING_KEY}
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
        | st.dictionaries(TEXT | st.sampled_from(sorted(_PARSED)), TEXT | st.just("7"), max_size=3),
        "body": st.text("AQ=-_ /+\n", max_size=8) | st.binary(max_size=9).map(lambda b: base64.b64encode(b).decode()),
        "born_timestamp": st.none() | st.integers(-1, 2**64) | st.just(0),
        "check_immunity": st.none() | st.integers(-2, 2**31) | st.sampled_from(["30s", "1500ms", "99999d", "1s\n"]),
        "delay": st.none() | st.integers(-1, 2**64) | st.sampled_from(["30s", "1d", "soon", "1s\n"]),
        "delay_level": st.none() | st.integers(-1, 2**64),
        "deliver_at": st.none() | st.integers(-1, 2**64),
        "remark": st.none() | TEXT,
        "state": st.sampled_from(["COMMIT", "ROLLBACK", "commit"]),
        "queue_offset": st.integers(-1, 2**64),
    },
)
#: seldom, as one ends all of a message
SELDOM: st.SearchStrategy[dict[str, Any]] = st.sampled_from(
    [{}] * 9 + [{"else": [1]}, {"tag": None}, {"committed": True}, {"\ud800": 1}, {"é" * 50: 1}]
)


def slowly(name: str, body: bytes) -> Any:
    if name == "messages":
        halves = decoder._each(body, name, HalfMessage)
        return halves if isinstance(halves, Problem) else [decoder._half(one, NOW, None) for one in halves]
    ops = decoder._each(body, name, Op)
    return ops if isinstance(ops, Problem) else [decoder._op(one, NOW) for one in ops]


def batches(name: str, good: dict[str, Any], other: st.SearchStrategy[Any]) -> st.SearchStrategy[bytes]:
    """Bodies: mostly good messages with something changed; sometimes a field twice, or bytes that are no JSON."""
    known = (HalfMessage if name == "messages" else Op).__struct_fields__
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


@given(batches("messages", GOOD_HALF, HALF))
@example(b'{"messages": [' + json.dumps(GOOD_HALF).encode() + b'], "else": "\xff"}')
def test_half_messages_are_the_same(body: bytes) -> None:
    assert decoder.halves_of_body(body, NOW) == slowly("messages", body)


@given(batches("messages", GOOD_HALF, HALF).map(lambda body: body[14:-2]))
@example(json.dumps(GOOD_HALF).encode())
def test_half_message_is_the_same(body: bytes) -> None:
    expected = decoder._half(decoder._checked(decoder._object(body), HalfMessage), NOW, None)
    assert decoder.half_of_body(body, NOW) == expected


@given(batches("ops", GOOD_OP, OP))
def test_ops_are_the_same(body: bytes) -> None:
    assert decoder.ops_of_body(body, NOW) == slowly("ops", body)


@pytest.mark.parametrize("value", [2**63, 2**64, -(2**63) - 1, 10**30])
@pytest.mark.parametrize("field", ["delay", "delay_level", "deliver_at", "check_immunity", "real_queue_id"])
def test_integer_of_over_64_bits_is_refused_alone_and_beside_another(field: str, value: int) -> None:
    """In a batch with a message that is not valid each one is decoded on its own."""
    alone = decoder.half_of_body(json.dumps({**GOOD_HALF, field: value}).encode(), NOW)
    beside = json.dumps({"messages": [{**GOOD_HALF, field: value}, {}]}).encode()
    found = decoder.halves_of_body(beside, NOW)
    assert isinstance(alone, Problem)
    assert not isinstance(found, Problem)
    assert found[0] == alone


@pytest.mark.parametrize(
    "change", [{}, {"properties": {"r\u00e9gion": "eu"}, "tags": "t", "keys": "k"}, {"delay": "30s"}]
)
def test_usual_body_is_decoded_in_one_go(change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoder, "_object", lambda _: pytest.fail("it became objects"))
    half = {**GOOD_HALF, **change}
    assert not isinstance(decoder.half_of_body(json.dumps(half).encode(), NOW), Problem)
    for found in (
        decoder.halves_of_body(json.dumps({"messages": [half] * 1000}).encode(), NOW),
        decoder.ops_of_body(json.dumps({"ops": [{**GOOD_OP, "remark": "r"}] * 1000}).encode(), NOW),
    ):
        assert not isinstance(found, Problem)
        assert not any(isinstance(one, Problem) for one in found)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unknown": [1]}, "unknown: no such field"),
        ({"tag": "t"}, "tag: no such field, did you mean tags?"),
        ({"committed": True}, "committed: no such field"),
        ({"queue_id": 0}, "queue_id: no such field"),
        ({"real_topic": "rmq_sys_x"}, 'real_topic: "rmq_sys_x" is a system topic'),
        ({"real_topic": "a%b"}, 'real_topic: "a%b" has characters other than a-z, A-Z, 0-9, _ and -'),
        ({"real_topic": "t" * 128}, "real_topic: 128 characters, over 127"),
        ({"producer_group": "orders\n"}, 'producer_group: "orders\\n" has characters other than'),
        ({"producer_group": ""}, "producer_group: empty"),
        ({"transaction_id": "t" * 1025}, "transaction_id: 1025 characters, over 1024"),
        ({"real_queue_id": 0, "ordering_key": "k"}, "ordering_key: real_queue_id is there too"),
        ({"born_timestamp": 10**15}, "born_timestamp: 1000000000000000 is over 253402300799999"),
        ({"delay": "1s", "delay_level": 1}, "delay: delay_level is there too"),
        ({"properties": {"DELAY": "x"}}, "DELAY: not a whole number"),
        ({"tags": "\u20ac" * 11_000}, "properties: 33006 bytes with tags and keys, over 32 KiB"),
        ({"properties": dict.fromkeys(map(str, range(9999)), "")}, "properties: "),
        ({"body": "AA"}, "body: not base64"),
    ],
)
def test_message_that_is_refused_is_refused_alone(change: dict[str, Any], reason: str) -> None:
    body = json.dumps({"messages": [GOOD_HALF, {**GOOD_HALF, **change}, GOOD_HALF]}).encode()
    found = decoder.halves_of_body(body, NOW)
    assert not isinstance(found, Problem)
    first, refused, last = found
    assert first == last
    assert not isinstance(first, Problem)
    assert isinstance(refused, Problem)
    assert (refused.code, refused.more["field"]) == ("unfit", refused.detail.partition(":")[0])
    assert refused.detail.startswith(reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unknown": [1]}, "unknown: no such field"),
        ({"queue_id": -1}, "queue_id: -1 is negative"),
        ({"queue_offset": 2**63}, "queue_offset: 9223372036854775808 is over"),
        ({"producer_group": "a b"}, 'producer_group: "a b" has characters other than'),
        ({"state": "commit"}, 'state: unknown state "commit", neither COMMIT nor ROLLBACK: did you mean COMMIT?'),
        ({"state": "UNKNOWN"}, 'state: unknown state "UNKNOWN", neither COMMIT nor ROLLBACK'),
        ({"remark": "r" * 1025}, "remark: 1025 characters, over 1024"),
        ({"remark": 7}, "remark: an integer, not a string"),
    ],
)
def test_op_that_is_refused_is_refused_alone(change: dict[str, Any], reason: str) -> None:
    found = decoder.ops_of_body(json.dumps({"ops": [GOOD_OP, {**GOOD_OP, **change}]}).encode(), NOW)
    assert not isinstance(found, Problem)
    assert not isinstance(found[0], Problem)
    assert isinstance(found[1], Problem)
    assert found[1].detail.startswith(reason)


def test_recorded_op_has_the_offset_by_its_other_name() -> None:
    recorded = {"half_offset" if name == "queue_offset" else name: value for name, value in GOOD_OP.items()}
    expected = decoder.op_of_body(json.dumps(GOOD_OP).encode(), NOW)
    assert not isinstance(expected, Problem)
    assert decoder.op_of_body(json.dumps(recorded).encode(), NOW) == expected
    both, half = GOOD_OP | recorded, GOOD_HALF | {"half_offset": 12}
    found = decoder.ops_of_body(json.dumps({"ops": [GOOD_OP, recorded, both]}).encode(), NOW)
    assert not isinstance(found, Problem)
    assert found[:2] == [expected, expected]
    of_half = decoder.half_of_body(json.dumps(half).encode(), NOW)
    for problem, said in ((found[2], "queue_offset: half_offset, its other"), (of_half, "half_offset: no such field")):
        assert isinstance(problem, Problem)
        assert problem.detail.startswith(said)


def test_names_of_any_length_are_not_kept() -> None:
    """Whatever was sent as a group or topic: what is kept of it is bounded in number and length."""
    tracemalloc.start()
    try:
        for number in range(20):
            name = f"{number}" + "g" * (1 << 20)
            for change in ({"producer_group": name}, {"real_topic": name}):
                decoder.halves_of_body(json.dumps({"messages": [GOOD_HALF | change]}).encode(), NOW)
            decoder.ops_of_body(json.dumps({"ops": [GOOD_OP | {"producer_group": name}]}).encode(), NOW)
        assert tracemalloc.get_traced_memory()[0] < 8 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("number", [0, 1001])
def test_number_of_messages_is_limited(number: int) -> None:
    for read, name, message in (
        (decoder.halves_of_body, "messages", GOOD_HALF),
        (decoder.ops_of_body, "ops", GOOD_OP),
    ):
        found = read(json.dumps({name: [message] * number}).encode(), NOW)
        assert isinstance(found, Problem)
        assert (found.detail, found.more) == (f"{name}: {number} of them; 1 to 1000 fit in a request", {"field": name})
