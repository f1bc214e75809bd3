"""Whatever the gateway, or something in its place, replies."""

from __future__ import annotations

import json
import pickle
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.gateway.problems import CODES
from checkback.producer import GatewayError
from checkback.producer.calls import Call, distribute
from checkback.producer.responses import GatewayReply, ItemReply, Place, may_have_landed, read_place, refusal
from checkback.producer.retry import Attempts, RetryPolicy

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("transaction_id", "queue_id", "queue_offset", "code", "detail", "title", "status")
RESULT = JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.sampled_from([200, 503, "t1"]))
BODIES = st.binary(max_size=40) | st.one_of(
    RESULT, st.fixed_dictionaries({"results": st.lists(RESULT, max_size=2)})
).map(lambda value: json.dumps(value).encode())
KINDS = st.sampled_from(["", "application/json", "application/problem+json", "application/problem+json; charset=utf-8"])


def replied(reply: GatewayReply, *, lost: bool = False) -> Place | GatewayError:
    """What a call of one message makes of a reply; there is no time for another attempt."""
    attempts = Attempts(RetryPolicy(total_timeout=timedelta(seconds=0)), 0)
    attempts.lost = lost
    call = Call([("t1", b"{}")], attempts)
    distribute([call], "/v1/halves", reply)
    assert call.after(0) is None
    (result,) = call.results
    assert result is not None
    return result


@given(st.integers(100, 999), BODIES, KINDS, st.booleans())
def test_reply_is_a_place_or_a_gateway_error(status: int, body: bytes, kind: str, lost: bool) -> None:
    outcome = replied(GatewayReply(status, body, kind), lost=lost)
    if isinstance(outcome, Place):
        assert status == 200
        assert min(outcome) >= 0
        assert json.loads(body)["results"][0]["transaction_id"] == "t1"
        return
    assert "\n" not in str(outcome)
    assert len(str(outcome)) < 400
    assert not (outcome.refused and lost)
    copy = pickle.loads(pickle.dumps(outcome))  # noqa: S301 - made here
    assert vars(copy) == vars(outcome)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_place_is_read(queue_id: int, queue_offset: int) -> None:
    result = {"status": 200, "transaction_id": "t1", "queue_id": queue_id, "queue_offset": queue_offset}
    body = json.dumps({"results": [result]}).encode()
    assert replied(GatewayReply(200, body), lost=True) == (queue_id, queue_offset)


@pytest.mark.parametrize("field", ["queue_id", "queue_offset", "transaction_id"])
@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1"])
def test_place_that_is_none_is_an_error(field: str, value: object) -> None:
    with pytest.raises(GatewayError, match="not that of a gateway for this transaction"):
        read_place({"transaction_id": "t1", "queue_id": 0, "queue_offset": 0, field: value}, "/v1/halves", "t1")


@given(st.lists(st.sampled_from([200, 409, 422, 500, 502, 503]), min_size=1, max_size=8), st.data())
def test_each_caller_gets_its_own_results(statuses: list[int], data: st.DataObject) -> None:
    """However the messages of a request are divided among callers: each has its own result, and is sent again alone."""
    cuts = data.draw(st.lists(st.booleans(), min_size=len(statuses) - 1, max_size=len(statuses) - 1))
    calls: list[list[int]] = [[0]]
    for number, cut in enumerate(cuts, 1):
        if cut:
            calls.append([])
        calls[-1].append(number)
    made = [Call([(f"t{n}", b"%d" % n) for n in numbers], Attempts(RetryPolicy(), 0)) for numbers in calls]
    results = [
        {"status": status, "transaction_id": f"t{n}", "queue_id": 0, "queue_offset": n}
        for n, status in enumerate(statuses)
    ]
    distribute(made, "/v1/halves", GatewayReply(200, json.dumps({"results": results}).encode()))
    for call, numbers in zip(made, calls, strict=True):
        again = [n for n in numbers if statuses[n] in {502, 503}]
        assert (call.after(0) is None) == (not again)
        if again:
            assert call.json() == b",".join(b"%d" % n for n in again)
        for n, result in zip(numbers, call.results, strict=True):
            if n in again:
                assert result is None
            elif statuses[n] == 200:
                assert result == (0, n)
            else:
                assert isinstance(result, GatewayError)
                assert result.status == statuses[n]
                assert result.refused == (statuses[n] < 500)


def test_reply_with_a_result_of_another_transaction_is_nobodys() -> None:
    """Nor is the refusal beside it one of these messages: it is the reply to another request."""
    call = Call([("t1", b"{}"), ("t2", b"{}")], Attempts(RetryPolicy(), 0))
    results = [
        {"status": 422, "code": "unfit"},
        {"status": 200, "transaction_id": "t3", "queue_id": 0, "queue_offset": 0},
    ]
    assert not distribute([call], "/v1/halves", GatewayReply(200, json.dumps({"results": results}).encode()))
    assert call.after(0) is None
    assert [isinstance(one, GatewayError) and one.refused for one in call.results] == [False, False]


def test_request_sent_twice_proves_no_refusal() -> None:
    """Libcurl sends a request again when its connection ends: the first may have landed."""
    once = replied(GatewayReply(422, b"{}", "application/problem+json"))
    twice = replied(GatewayReply(422, b"{}", "application/problem+json", resent=True))
    assert isinstance(once, GatewayError)
    assert isinstance(twice, GatewayError)
    assert (once.refused, twice.refused) == (True, False)


@pytest.mark.parametrize("code", [code for code, (status, _) in CODES.items() if status == 503])
def test_gateways_own_503_says_that_nothing_was_stored(code: str) -> None:
    """But "stopping": whether its last commit succeeded may be unknown. Without its code it is a proxy's."""
    reply = ItemReply(503, {"code": code})
    assert may_have_landed(reply) == (code == "stopping")
    assert refusal(reply, "/v1/halves", lost=False).refused == (code != "stopping")
    assert may_have_landed(ItemReply(503, {"code": "of a proxy"}))


def test_refusal_after_one_of_several_may_have_landed_is_none() -> None:
    """Whichever of the messages it was, and whatever the first one was told."""
    call = Call([("t1", b"{}"), ("t2", b"{}")], Attempts(RetryPolicy(), 0))
    for codes in (("queue_full", "stopping"), ("queue_full", "queue_full")):
        results = [{"status": 503, "code": code} for code in codes]
        distribute([call], "/v1/halves", GatewayReply(200, json.dumps({"results": results}).encode()))
        assert call.after(0) is not None
    results = [{"status": 422, "code": "unfit"}] * 2
    distribute([call], "/v1/halves", GatewayReply(200, json.dumps({"results": results}).encode()))
    assert call.after(0) is None
    assert [isinstance(one, GatewayError) and one.refused for one in call.results] == [False, False]
