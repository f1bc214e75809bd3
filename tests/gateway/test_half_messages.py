"""Half messages of a request that are in flight, or for which there is little room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from checkback.gateway.problems import Problem
from gateway.process import half, rows
from gateway.services import code, half_sent, with_service

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService


def _taken(service: GatewayService, *messages: dict[str, Any]) -> Awaitable[list[Answer]]:
    return service.halves.take([half_sent(message, 1) for message in messages], None)


def test_messages_that_are_on_their_way_are_waited_for(tmp_path: Path) -> None:
    """In a request that was sent twice at once, and one by one meanwhile: each is stored once."""
    sent = [half(f"t-{number}") for number in range(4)]

    async def act(service: GatewayService, _: object) -> None:
        whole, again = _taken(service, *sent[:2]), _taken(service, *sent[:2])
        more = _taken(service, *sent[1:], sent[3], half("t-3", tags="x"))
        single = _taken(service, half("t-1", tags="x"))
        found = await asyncio.gather(whole, again, more, single)
        offsets = [[one.code if isinstance(one, Problem) else one["queue_offset"] for one in each] for each in found]
        assert offsets == [[0, 1], [0, 1], [1, 2, 3, 3, "contradiction"], ["contradiction"]]

    with_service(tmp_path, act)
    assert len(rows(tmp_path, "half")) == 4


def test_request_for_which_there_is_little_room_is_taken_in_part(tmp_path: Path) -> None:
    """Messages that repeat others of it are answered as these are."""
    sent = [half(f"t-{number}") for number in range(40)]

    async def act(service: GatewayService, _: object) -> None:
        found = await _taken(service, *sent, sent[3], sent[30], half("t-3", tags="x"))
        codes = [code(one) for one in found]
        assert codes == [None] * 15 + ["queue_full"] * 25 + [None, "queue_full", "contradiction"]
        assert found[40] == found[3]

    with_service(tmp_path, act, max_waiting=15)
    assert len(rows(tmp_path, "half")) == 15
