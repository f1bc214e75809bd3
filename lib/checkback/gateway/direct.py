"""The routes for messages: a request's body in, its answer out, without the layers of a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from checkback.gateway import bodies
from checkback.gateway.condition import now_ms
from checkback.gateway.guard import JSON, PROBLEM_JSON
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from checkback.gateway.door import Door
    from checkback.gateway.guard import Direct
    from checkback.gateway.problems import Answer
    from checkback.gateway.tokens import Groups, Tokens

    Read = Callable[[bytes, int], Any]
    Take = Callable[[Sequence[Any], Groups], Awaitable[list[Answer]]]


def direct(door: Door) -> dict[str, Direct]:
    """What answers a POST, by path."""
    return {
        "/v1/half": _one(door.tokens, bodies.half_of_body, door.halves.take),
        "/v1/halves": _many(door.tokens, bodies.halves_of_body, door.halves.take),
        "/v1/op": _one(door.tokens, bodies.op_of_body, door.ops.take),
        "/v1/ops": _many(door.tokens, bodies.ops_of_body, door.ops.take),
    }


def _one(tokens: Tokens, read: Read, take: Take) -> Direct:
    async def handle(authorization: bytes, body: bytes) -> Any:
        groups = tokens.groups(authorization)
        message = groups if isinstance(groups, Problem) else read(body, now_ms())
        if isinstance(groups, Problem) or isinstance(message, Problem):
            return _answered(message)
        return _answered((await take([message], groups))[0])

    return handle


def _many(tokens: Tokens, read: Read, take: Take) -> Direct:
    async def handle(authorization: bytes, body: bytes) -> Any:
        groups = tokens.groups(authorization)
        messages = groups if isinstance(groups, Problem) else read(body, now_ms())
        if isinstance(groups, Problem) or isinstance(messages, Problem):
            return _answered(messages)
        answers = await take(messages, groups)
        results = [one.members() if isinstance(one, Problem) else {"status": 200, **one} for one in answers]
        return _answered({"results": results})

    return handle


def _answered(answer: object) -> tuple[int, bytes, bytes, Mapping[str, str] | None]:
    if isinstance(answer, Problem):
        return answer.status, orjson.dumps(answer.members()), PROBLEM_JSON, answer.headers()
    return 200, orjson.dumps(answer), JSON, None
