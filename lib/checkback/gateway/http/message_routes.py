"""The routes for messages: request body in, answer out."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from checkback.gateway.health import now_ms
from checkback.gateway.http import decoder
from checkback.gateway.http.middleware import reply_of
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.http.middleware import Direct, Reply
    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService

    Read = Callable[[bytes, int], Any]
    Take = Callable[[Sequence[Any], Groups], Awaitable[list[Answer]]]


def message_routes(service: GatewayService) -> dict[str, Direct]:
    """The handlers of POST requests, by path."""
    halves, ops = service.halves.take, service.ops.take
    return {
        "/v1/half": _one(decoder.half_of_body, halves),
        "/v1/halves": _many(decoder.halves_of_body, halves),
        "/v1/message": _one(partial(decoder.half_of_body, committed=True), halves),
        "/v1/messages": _many(partial(decoder.halves_of_body, committed=True), halves),
        "/v1/op": _one(decoder.op_of_body, ops),
        "/v1/ops": _many(decoder.ops_of_body, ops),
    }


def _one(read: Read, take: Take) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        message = read(body, now_ms())
        return _at_once(message) if isinstance(message, Problem) else _first(take([message], groups))

    return handle


def _many(read: Read, take: Take) -> Direct:
    def handle(body: bytes, groups: Groups) -> Awaitable[Reply]:
        messages = read(body, now_ms())
        return _at_once(messages) if isinstance(messages, Problem) else _each(take(messages, groups))

    return handle


async def _at_once(problem: Problem) -> Reply:
    return reply_of(problem)


async def _first(answers: Awaitable[list[Answer]]) -> Reply:
    return reply_of((await answers)[0])


async def _each(answers: Awaitable[list[Answer]]) -> Reply:
    results = [one.members() if isinstance(one, Problem) else {"status": 200, **one} for one in await answers]
    return reply_of({"results": results})
