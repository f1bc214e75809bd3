"""Bodies of very many values: refused before any of them becomes an object, each of which holds the event loop."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest

from checkback.gateway.http import decoder
from checkback.gateway.problems import Problem
from checkback.messages.limits import PROPERTIES_MAX
from checkback.producer.calls import MESSAGES, Call, batches, request_body
from checkback.producer.message import Message
from gateway.process import half, op

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_795_227_064_579
READ = (
    *(decoder.half_of_body, decoder.halves_of_body),
    *(decoder.op_of_body, decoder.ops_of_body),
)
_MESSAGE = json.dumps(half())[1:-1].encode()
_SIZE = 2 << 20


def _filled(head: bytes, value: bytes, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + b",".join([value] * (_SIZE // (len(value) + 1))) + tail


def _named(head: bytes, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + b",".join(b'"%x":""' % number for number in range(_SIZE // 9)) + tail


@pytest.mark.parametrize("read", READ)
@pytest.mark.parametrize(
    "made",
    [
        _filled(b"{" + _MESSAGE + b',"delay":[', b"[]", b"]}"),
        _filled(b'{"keys":{"a":[', b"1", b"]}}"),
        _named(b"{" + _MESSAGE + b',"properties":{', b"}}"),
        _named(b"{", b"}"),
        _filled(b'{"messages":[', b"{}", b"]}"),
        _filled(b'{"ops":[', b"1", b"]}"),
        _filled(b'{"tags":"\xff","delay":[', b"[]", b"]}"),
        lambda: b'{"delay":' + b"[" * _SIZE,
        lambda: b'{"delay":' + b'{"a":' * _SIZE,
    ],
)
def test_refused_without_an_object_for_each_value(read: Any, made: Callable[[], bytes]) -> None:
    body = made()
    tracemalloc.start()
    try:
        problem = read(body, NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(problem, Problem)
    assert (problem.status, problem.detail) == (422, "over 50,000 values in one body: divide it")
    # some bytes for each byte, as it is searched; an object for each value would be many times that
    assert peak < 3 * len(body)


def test_fewer_values_are_read_whatever_their_size() -> None:
    for count, extra in ((1000, 30), (1, 1000)):
        messages = [half(f"t-{n}", properties={f"{p:x}": "" for p in range(extra)}) for n in range(count)]
        found = decoder.halves_of_body(json.dumps({"messages": messages}).encode(), NOW)
        assert not isinstance(found, Problem)
        assert not any(isinstance(one, Problem) for one in found)
    ops = json.dumps({"ops": [op(number, "t" * 500) for number in range(1000)]}).encode()
    assert not isinstance(decoder.ops_of_body(ops, NOW), Problem)


def test_requests_of_the_sdk_have_fewer() -> None:
    """It divides messages of many properties into more requests; usual ones are a thousand a request."""
    for properties, most in (({f"{n:x}": "," for n in range(200)}, 120), ({"region": "eu"}, 1000)):
        messages = [Message(topic="payments", body=b"{}", properties=properties) for _ in range(1000)]
        found = [batch.messages for batch in batches("orders", messages, NOW, lambda _: None)]
        assert max(map(len, found)) <= most
        assert sum(map(len, found)) == 1000
        for batch in found:
            calls = [Call([one], None) for one in batch]  # type: ignore[arg-type]  # nothing is sent
            assert sum(call.size for call in calls) <= 4 << 20
            body = request_body(MESSAGES, calls)
            assert not isinstance(decoder.halves_of_body(body, NOW), Problem)
    assert len(found) == 1


@pytest.mark.parametrize("properties", [{"a": "," * (PROPERTIES_MAX - 9)}, {f"{n:x}": "" for n in range(5000)}])
def test_a_message_alone_is_never_too_much(properties: dict[str, str]) -> None:
    body = json.dumps(half(properties=properties, body="A" * (1 << 20))).encode()
    assert not isinstance(decoder.half_of_body(body, NOW), Problem)
