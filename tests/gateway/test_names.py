"""Names that an object has twice: refused, whichever way a body is decoded, and for an item of a list alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from checkback.gateway.problems import Problem
from checkback.gateway.requests import batch_decoder, dense_decoder, json_decoder
from checkback.gateway.requests.names import TWICE
from gateway.test_batch_decoder import GOOD_HALF, GOOD_OP, NOW

_HALF, _OP = (json.dumps(good).encode() for good in (GOOD_HALF, GOOD_OP))
_LARGE = b', "else": [%s]}' % b",".join([b"0"] * 200_000)


def _more(message: bytes, *more: bytes) -> bytes:
    return b", ".join([message[:-1], *more]) + b"}"


TWICE_IN_HALF = [
    [b'"transaction_id": "order-4712"'],
    [b'"transaction_\\u0069d":"order-4712"'],
    [b'"body"\n:\t"AAAA"'],
    [b'"tags": null', b'"tags" : "a"'],
    [b'"tags": "a"', b'"tags": null'],
    [b'"properties": {"a": "1", "a": "2"}'],
    [b'"properties": {"a": "1", "\\u0061": "1"}, "keys": "\\":"'],
    [b'"properties": {"a": "1"}', b'"properties": {}'],
    [b'"delay": 3', b'"delay": 3'],
]
ONCE_IN_HALF = [
    [],
    [b'"tags": null', b'"keys": ":"', b'"else": null'],
    [b'"keys": "\\":\\" :"', b'"properties": {"body": "1", "keys":"2"}'],
    [b'"else": [{"body": 1}, {"body": 1}]', b'"els": {"tags": {"tags": 1}}'],
]


@pytest.mark.parametrize("more", TWICE_IN_HALF)
def test_half_message_with_a_name_twice_is_refused(more: list[bytes]) -> None:
    body = _more(_HALF, *more)
    assert json_decoder.half_of_body(body, NOW) == TWICE
    assert json_decoder.half_of_body(body[:-1] + _LARGE, NOW) == TWICE
    assert batch_decoder.half(body, NOW) is None
    assert json_decoder.half(dense_decoder.half_fields(body), NOW) == TWICE
    many = b'{"messages": [%s, %s, %s]' % (_HALF, body, _HALF)
    taken = json_decoder.halves_of_body(many + b"}", NOW)
    parts = json_decoder.halves_in_parts(many + _LARGE, NOW)
    assert not isinstance(taken, Problem)
    assert not isinstance(parts, Problem)
    good = json_decoder.half_of_body(_HALF, NOW)
    assert list(taken or ()) == [one for part in parts for one in part] == [good, TWICE, good]


@pytest.mark.parametrize("more", ONCE_IN_HALF)
def test_half_message_with_each_name_once_is_taken(more: list[bytes]) -> None:
    """Whatever looks like one in its texts, and in members that are ignored."""
    body = _more(_HALF, *more)
    assert not isinstance(json_decoder.half_of_body(body, NOW), Problem)
    assert batch_decoder.half(body, NOW) is not None
    assert batch_decoder.halves(b'{"messages": [%s]}' % body, NOW) is not None
    assert not isinstance(json_decoder.half(dense_decoder.half_fields(body), NOW), Problem)


@pytest.mark.parametrize("end", [b"}", _LARGE])
def test_op_with_a_name_twice_is_refused(end: bytes) -> None:
    body = _more(_OP, b'"state": "ROLLBACK"')
    assert json_decoder.op_of_body(body[:-1] + end, NOW) == TWICE
    taken: Any = json_decoder.ops_of_body(b'{"ops": [%s, %s]' % (_OP, body) + end, NOW)
    assert taken == [json_decoder.op_of_body(_OP, NOW), TWICE]


@pytest.mark.parametrize("end", [b"}", _LARGE])
@pytest.mark.parametrize("name", [b"messages", b"m\\u0065ssages"])
def test_two_lists_are_refused_as_a_whole(name: bytes, end: bytes) -> None:
    body = b'{"messages": [%s], "%s": [%s]' % (_HALF, name, _HALF) + end
    decode = json_decoder.halves_of_body if end == b"}" else json_decoder.halves_in_parts
    assert decode(body, NOW) == TWICE
