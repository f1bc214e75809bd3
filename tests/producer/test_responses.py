"""Whatever the gateway, or something in its place, replies."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.producer import GatewayError
from checkback.producer.responses import MAX_REPLY, GatewayReply, read_place, read_reply

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("transaction_id", "queue_id", "queue_offset", "code", "detail", "title", "status")
BODIES = st.binary(max_size=40) | st.one_of(JSON, st.dictionaries(st.sampled_from(FIELDS), JSON)).map(
    lambda value: json.dumps(value).encode()
)
KINDS = st.sampled_from(["", "application/json", "application/problem+json", "application/problem+json; charset=utf-8"])


def read(reply: GatewayReply, lost: bool) -> tuple[int, int] | GatewayError:
    try:
        return read_place(read_reply(reply, "/v1/half", "t1", lost), "/v1/half")
    except GatewayError as error:
        return error


@given(st.integers(100, 999), BODIES, KINDS, st.booleans())
def test_reply_is_a_place_or_a_gateway_error(status: int, body: bytes, kind: str, lost: bool) -> None:
    outcome = read(GatewayReply(status, body, kind), lost)
    if isinstance(outcome, tuple):
        assert status == 200
        assert min(outcome) >= 0
        assert json.loads(body)["transaction_id"] == "t1"
        return
    assert "\n" not in str(outcome)
    assert len(str(outcome)) < 400
    assert not (outcome.refused and lost)
    assert not (outcome.refused and status < 400)
    copy = pickle.loads(pickle.dumps(outcome))  # noqa: S301 - made here
    assert vars(copy) == vars(outcome)


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
def test_place_is_read(queue_id: int, queue_offset: int) -> None:
    body = json.dumps({"transaction_id": "t1", "queue_id": queue_id, "queue_offset": queue_offset}).encode()
    assert read_place(read_reply(GatewayReply(200, body), "/v1/half", "t1", lost=True), "") == (queue_id, queue_offset)


@pytest.mark.parametrize("field", ["queue_id", "queue_offset"])
@pytest.mark.parametrize("value", [None, True, -1, 1.0, "1"])
def test_place_that_is_none_is_an_error(field: str, value: object) -> None:
    with pytest.raises(GatewayError, match="no queue_id and queue_offset"):
        read_place({"queue_id": 0, "queue_offset": 0, field: value}, "/v1/half")


def test_reply_too_long_is_no_reply() -> None:
    body = b" " * MAX_REPLY + b'{"transaction_id": "t1"}'
    with pytest.raises(GatewayError):
        read_reply(GatewayReply(200, body), "/v1/op", "t1", lost=False)
