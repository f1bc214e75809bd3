"""Half messages of dense bodies (`dense_decoder`): taken in parts, between which other requests are handled."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

from checkback.gateway.health import now_ms
from checkback.gateway.problems import Problem
from checkback.gateway.requests.json_decoder import halves_in_parts

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.problems import Answer
    from checkback.messages.half import Half

    Take = Callable[[Sequence[Half | Problem], Groups], Awaitable[list[Answer]]]

#: bodies that wait to be decoded: of all tokens, and of one
_MOST, _SHARE = 16, 12


class DenseHalves:
    """Takes one body at a time. Belongs to one event loop."""

    def __init__(self, take: Take) -> None:
        """``take`` has taken the messages by the time that it returns; the awaitable is for their answers."""
        self._take = take
        self._one_at_a_time = asyncio.Lock()
        self._waiting: Counter[Groups] = Counter()

    async def taken(self, body: bytes, groups: Groups, committed: bool | None) -> list[Answer] | Problem:
        """The answer to each message, as if each part had come in a request of its own."""
        if self._waiting.total() >= _MOST or (groups is not None and self._waiting[groups] >= _SHARE):
            return Problem("queue_full", "too many bodies of very many values are being decoded; send it again")
        self._waiting[groups] += 1
        try:
            async with self._one_at_a_time:
                parts = halves_in_parts(body, now_ms(), committed)
                if isinstance(parts, Problem):
                    return parts
                answers: list[Awaitable[list[Answer]]] = []
                for halves in parts:
                    answers.append(self._take(halves, groups))
                    await asyncio.sleep(0)
        finally:
            self._waiting[groups] -= 1
            if not self._waiting[groups]:
                del self._waiting[groups]
        del body, parts, halves  # memory that nothing counts
        return [answer for part in answers for answer in await part]
