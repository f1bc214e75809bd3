"""The routes for messages: request body in, answer out, bypassing the framework's layers."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from checkback.gateway.health import now_ms
from checkback.gateway.http.dense_halves import DenseHalves
from checkback.gateway.http.middleware import ARROW, JSON, PROBLEM_JSON
from checkback.gateway.problems import Problem
from checkback.gateway.requests import json_decoder
from checkback.gateway.requests.arrow_answers import ended_answers, stored_answers
from checkback.gateway.requests.arrow_decoder import halves_of_stream, ops_of_stream

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import pyarrow as pa

    from checkback.gateway.authentication import Groups
    from checkback.gateway.http.middleware import Direct, Reply, Route
    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService

    Read = Callable[[bytes, int], Any]
    Take = Callable[[Sequence[Any], Groups], Awaitable[list[Answer]]]

T = TypeVar("T")


def message_routes(service: GatewayService, max_body: int) -> dict[str, Route]:
    """The handlers of POST requests, by path and media type. ``max_body``: bytes of a decoded Arrow stream, too."""
    halves, ops = service.halves.take, service.ops.take
    dense = DenseHalves(halves)
    return {
        "/v1/half": {JSON: _one(json_decoder.half_of_body, halves)},
        "/v1/halves": {JSON: _halves(halves, dense), ARROW: _half_columns(service, max_body)},
        "/v1/message": {JSON: _one(partial(json_decoder.half_of_body, committed=True), halves)},
        "/v1/messages": {
            JSON: _halves(halves, dense, committed=True),
            ARROW: _half_columns(service, max_body, committed=True),
        },
        "/v1/op": {JSON: _one(json_decoder.op_of_body, ops)},
        "/v1/ops": {JSON: _ops(ops), ARROW: _op_columns(service, max_body)},
    }


def _one(read: Read, take: Take) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        message = read(body, now_ms())
        return _at_once(message) if isinstance(message, Problem) else _first(take([message], groups))

    return handle


def _halves(take: Take, dense: DenseHalves, committed: bool | None = None) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        messages = json_decoder.halves_of_body(body, now_ms(), committed)
        if messages is None:
            return _each(dense.taken(body, groups, committed))
        return _at_once(messages) if isinstance(messages, Problem) else _each(take(messages, groups))

    return handle


def _ops(take: Take) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        messages = json_decoder.ops_of_body(body, now_ms())
        return _at_once(messages) if isinstance(messages, Problem) else _each(take(messages, groups))

    return handle


def _half_columns(service: GatewayService, most: int, committed: bool | None = None) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        columns = halves_of_stream(body, now_ms(), most, committed)
        if isinstance(columns, Problem):
            return _at_once(columns)
        return _in_rows(service.halves.take_columns(columns, groups), columns.transaction_ids, stored_answers)

    return handle


def _op_columns(service: GatewayService, most: int) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        columns = ops_of_stream(body, now_ms(), most)
        if isinstance(columns, Problem):
            return _at_once(columns)
        return _in_rows(service.ops.take_columns(columns, groups), columns.transaction_ids, ended_answers)

    return handle


async def _in_rows(answers: Awaitable[T], ids: pa.Array, encode: Callable[[T, pa.Array], bytes]) -> Reply:
    return 200, encode(await answers, ids), ARROW, None


async def _at_once(problem: Problem) -> Reply:
    return _answered(problem)


async def _first(answers: Awaitable[list[Answer]]) -> Reply:
    return _answered((await answers)[0])


async def _each(answers: Awaitable[list[Answer] | Problem]) -> Reply:
    found = await answers
    if isinstance(found, Problem):
        return _answered(found)
    results = [one.members() if isinstance(one, Problem) else {"status": 200, **one} for one in found]
    return _answered({"results": results})


def _answered(answer: object) -> Reply:
    if isinstance(answer, Problem):
        return answer.status, orjson.dumps(answer.members()), PROBLEM_JSON, answer.headers()
    return 200, orjson.dumps(answer), JSON, None
