"""Bodies of very many values: answered as others are, without an object for each value, and in parts."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings

from checkback.gateway import half_messages
from checkback.gateway.http.dense_halves import DenseHalves
from checkback.gateway.http.message_routes import message_routes
from checkback.gateway.problems import Problem
from checkback.gateway.requests import dense_decoder, json_decoder
from checkback.gateway.requests.dense_decoder import NAMES, VALUES, is_dense
from gateway.contents import HALF, OP
from gateway.process import half, op, rows
from gateway.services import SlowHistory, code, with_service
from gateway.test_batch_decoder import GOOD_HALF, GOOD_OP, NOW, batches, slowly

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService
    from checkback.messages.half import Half

_MESSAGE = json.dumps(half())[1:-1].encode()
_OP = json.dumps(op(0))[1:-1].encode()
_SIZE = 2 << 20


def _filled(head: bytes, value: bytes, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + b",".join([value] * (_SIZE // (len(value) + 1))) + tail


def _named(head: bytes, tail: bytes) -> Callable[[], bytes]:
    return lambda: head + b",".join(b'"%x":""' % number for number in range(_SIZE // 9)) + tail


def _quickly(name: str, body: bytes) -> Any:
    items = dense_decoder.items_of(body, name)
    if isinstance(items, Problem):
        return items
    if name == "messages":
        return [json_decoder.half(dense_decoder.half_fields(item), NOW) for item in items]
    return [json_decoder.op(dense_decoder.op_fields(item), NOW) for item in items]


def _check_the_same(name: str, body: bytes) -> None:
    expected, found = slowly(name, body), _quickly(name, body)
    if isinstance(expected, Problem) and expected.detail.startswith("not JSON"):
        # a number that is too large is noticed only where it is decoded
        assert "infinity" in expected.detail or (isinstance(found, Problem) and found.code == expected.code)
    else:
        assert found == expected


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(batches("messages", GOOD_HALF, HALF))
def test_half_messages_are_the_same(body: bytes) -> None:
    _check_the_same("messages", body)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(batches("ops", GOOD_OP, OP))
def test_ops_are_the_same(body: bytes) -> None:
    _check_the_same("ops", body)


@pytest.mark.parametrize(
    ("read", "made", "reason"),
    [
        (json_decoder.half_of_body, _filled(b"{" + _MESSAGE + b',"delay":[', b"[]", b"]}"), "delay: not an integer"),
        (json_decoder.half_of_body, _filled(b"{" + _MESSAGE + b',"tags":[', b"{}", b"]}"), "tags: an array, not a "),
        (json_decoder.half_of_body, _filled(b'{"keys":{"a":[', b"1", b"]}}"), "keys: an object, not a string"),
        (json_decoder.half_of_body, _filled(b'{"properties":[', b"[]", b"]}"), "properties: an array, not an object"),
        (json_decoder.half_of_body, _named(b"{" + _MESSAGE + b',"properties":{', b"}}"), "properties: "),
        (json_decoder.half_of_body, _named(b"{", b"}"), "0: no such field"),
        (json_decoder.half_of_body, _filled(b"[", b"[]", b"]"), "not a JSON object"),
        (json_decoder.half_of_body, _filled(b"{" + _MESSAGE + b',"delay":[', b"[]", b"]"), "not JSON: "),
        (json_decoder.half_of_body, _filled(b'{"tags":"\xff","delay":[', b"[]", b"]}"), "not JSON: "),
        (json_decoder.half_of_body, lambda: b'{"delay":' + b"[" * _SIZE + b"}", "not JSON: "),
        (json_decoder.half_of_body, lambda: b'{"delay":' + b'{"a":' * _SIZE + b"}", "not JSON: "),
        (json_decoder.op_of_body, _filled(b"{" + _OP + b',"born_timestamp":[', b"[]", b"]}"), "born_timestamp: an arr"),
        (json_decoder.op_of_body, _named(b"{", b"}"), "0: no such field"),
        (json_decoder.ops_of_body, _filled(b'{"ops":[', b"1", b"]}"), "ops: more than 1000 of them; 1 to 1000 fit in"),
        (json_decoder.ops_of_body, _filled(b'{"ops":{"a":[', b"1", b"]}}"), "ops: not an array"),
        (json_decoder.ops_of_body, _named(b"{", b"}"), "0: no such field"),
        (json_decoder.ops_of_body, _filled(b'{"ops":[],"a":[', b"1", b"]}"), "a: no such field"),
        (json_decoder.ops_of_body, _filled(b"[", b"[]", b"]"), "not a JSON object"),
        (json_decoder.halves_in_parts, _filled(b'{"messages":[', b"[]", b"]}"), "messages: more than 1000 of them; 1 "),
    ],
)
def test_hostile_body_is_refused_without_an_object_for_each_value(
    read: Any, made: Callable[[], bytes], reason: str
) -> None:
    body = made()
    tracemalloc.start()
    try:
        problem = read(body, NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert isinstance(problem, Problem)
    assert problem.detail.startswith(reason)
    # some bytes for each byte, as it is searched; an object for each value would be many times that
    assert peak < 3 * len(body)


def _dense(count: int, **changes: Any) -> tuple[list[dict[str, Any]], bytes]:
    properties = {f"{number:x}": "" for number in range(1000)}
    messages = [half(f"t-{number}", properties=properties, **changes) for number in range(count)]
    return messages, json.dumps({"messages": messages}).encode()


def test_messages_of_many_properties_are_left_to_be_decoded_in_parts() -> None:
    messages, body = _dense(100)
    assert is_dense(body, NAMES)
    assert is_dense(body, VALUES)
    assert json_decoder.halves_of_body(body, NOW) is None
    parts = json_decoder.halves_in_parts(body, NOW)
    assert not isinstance(parts, Problem)
    found = list(parts)
    assert [one for part in found for one in part] == [json_decoder.half(message, NOW) for message in messages]
    assert max(map(len, found)) * len(body) // 100 <= 128 << 10


@pytest.mark.parametrize("journal", [False, True])
def test_other_requests_are_taken_between_the_parts(
    tmp_path: Path, journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages, body = _dense(100)
    messages[50]["tags"] = 1
    body = json.dumps({"messages": messages}).encode()
    # each part is a record of its own
    monkeypatch.setattr(half_messages, "_RECORD", 1)

    async def act(service: GatewayService, _: SlowHistory) -> None:
        routes = message_routes(service)

        async def answer(path: str, sent: bytes) -> Any:
            status, reply, _, _ = await routes[path](sent, None)
            assert status == 200
            return json.loads(reply)

        other_body = json.dumps(half("other")).encode()
        many, other = await asyncio.gather(answer("/v1/messages", body), answer("/v1/half", other_body))
        answers = many["results"]
        refused = answers.pop(50)
        assert (refused["code"], refused["field"]) == ("unfit", "tags")
        assert [answer["transaction_id"] for answer in answers] == [f"t-{n}" for n in range(100) if n != 50]
        assert answers[0]["queue_offset"] < other["queue_offset"] < answers[-1]["queue_offset"]
        places.update({answer["queue_offset"]: answer["transaction_id"] for answer in answers})

    places: dict[int, str] = {}
    kept = {"acknowledge": "journal", "journal": str(tmp_path / "_journal"), "flush": "1h"} if journal else {}
    with_service(tmp_path, act, None, **kept)
    landed = {row["queue_offset"]: row for row in rows(tmp_path, "half")}
    assert len(landed) == 100
    assert {offset: landed[offset]["transaction_id"] for offset in places} == places
    assert all(landed[offset]["committed"] and len(landed[offset]["properties"]) == 1000 for offset in places)


def test_few_wait_to_be_decoded() -> None:
    """Their bodies are in memory meanwhile: 16 of all tokens, 12 of one."""

    async def take(halves: Sequence[Half | Problem], _: object) -> list[Answer]:
        return [half if isinstance(half, Problem) else {"transaction_id": half.transaction_id} for half in halves]

    async def codes(*tokens: str | None) -> list[str | None]:
        dense = DenseHalves(take)
        of = (None if token is None else frozenset({token}) for token in tokens)
        answers = await asyncio.gather(*(dense.taken(body, groups, None) for groups in of))
        assert not dense._waiting
        return [code(answer) if isinstance(answer, Problem) else None for answer in answers]

    _, body = _dense(60)
    assert asyncio.run(codes(*[None] * 17)) == [None] * 16 + ["queue_full"]
    assert asyncio.run(codes(*["a"] * 13, *["b"] * 5)) == [None] * 12 + ["queue_full"] + [None] * 4 + ["queue_full"]
