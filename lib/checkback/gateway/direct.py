"""The routes for messages: a request's body in, its answer out, without the layers of a framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from checkback.gateway import bodies
from checkback.gateway.guard import JSON, PROBLEM_JSON
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from checkback.gateway.door import Door
    from checkback.gateway.guard import Direct
    from checkback.gateway.problems import Answer
    from checkback.gateway.tokens import Groups, Tokens

    Take = Callable[[Sequence[object], Groups], Awaitable[list[Answer]]]


def direct(door: Door) -> dict[str, Direct]:
    """What answers a POST, by path."""
    return {
        "/v1/half": _one(door.tokens, door.halves.take),
        "/v1/halves": _many(door.tokens, door.halves.take, "messages"),
        "/v1/op": _one(door.tokens, door.ops.take),
        "/v1/ops": _many(door.tokens, door.ops.take, "ops"),
    }


def _one(tokens: Tokens, take: Take) -> Direct:
    async def handle(authorization: bytes, body: bytes) -> Any:
        groups = tokens.groups(authorization)
        fields = groups if isinstance(groups, Problem) else bodies.object_of(body)
        if isinstance(groups, Problem) or isinstance(fields, Problem):
            return _answered(fields)
        return _answered((await take([fields], groups))[0])

    return handle


def _many(tokens: Tokens, take: Take, name: str) -> Direct:
    async def handle(authorization: bytes, body: bytes) -> Any:
        groups = tokens.groups(authorization)
        items = groups if isinstance(groups, Problem) else bodies.items_of(body, name)
        if isinstance(groups, Problem) or isinstance(items, Problem):
            return _answered(items)
        answers = await take(items, groups)
        results = [one.members() if isinstance(one, Problem) else {"status": 200, **one} for one in answers]
        return _answered({"results": results})

    return handle


def _answered(answer: object) -> tuple[int, bytes, bytes, Mapping[str, str] | None]:
    if isinstance(answer, Problem):
        return answer.status, orjson.dumps(answer.members()), PROBLEM_JSON, answer.headers()
    return 200, orjson.dumps(answer), JSON, None
