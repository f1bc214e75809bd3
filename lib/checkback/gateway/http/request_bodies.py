"""Request bodies being received: a limit for each, and one for all of them over all connections."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, MutableMapping

    from checkback.gateway.authentication import Groups

    #: of ASGI
    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]

#: Bytes of a body that are not counted: for small bodies the limit on connections is enough, and clients that send
#: small messages are never blocked by others' large ones.
FREE = 64 << 10


class RequestStream:
    """The body of a request as the server receives it. Do not read beyond ``ended``."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.ended = False

    async def part(self) -> bytes | None:
        """The next part of the body; None = the client has disconnected."""
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return None if message["type"] == "http.disconnect" else message.get("body", b"")


class BodyBuffers:
    """The bodies being received. Belongs to one event loop.

    Bytes count once received: a large Content-Length without data takes no capacity. With tokens, each gets at most
    half of the capacity, or one body's limit if that is more.
    """

    def __init__(self, max_body: int, max_receiving: int, timeout_s: float) -> None:
        """``timeout_s``: how long the rest of a refused body is drained."""
        self._max_body = max_body
        self._room = max_receiving
        self._timeout_s = timeout_s
        self._share = max(max_body, max_receiving // 2)
        self._held: Counter[Groups] = Counter()

    @property
    def held(self) -> int:
        """Bytes counted now."""
        return self._held.total()

    async def body(self, incoming: RequestStream, groups: Groups) -> bytes | Problem | None:
        """The whole body of a request with the token of ``groups``; None if the client has disconnected."""
        parts: list[bytes] = []
        size = mine = 0
        try:
            while not incoming.ended:
                part = await incoming.part()
                if part is None:
                    return None
                size += len(part)
                if size > self._max_body:
                    return too_large(self._max_body)
                counts = max(0, size - FREE) - mine
                if counts and not self._fits(counts, groups):
                    return _FULL
                self._held[groups] += counts
                mine += counts
                parts.append(part)
        finally:
            self._held[groups] -= mine
            if not self._held[groups]:
                del self._held[groups]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _fits(self, more: int, groups: Groups) -> bool:
        share = self._room if groups is None else self._share
        return self._held.total() + more <= self._room and self._held[groups] + more <= share

    async def rest(self, incoming: RequestStream) -> None:
        """Drain what the client still sends, up to the timeout and one body's limit, so that it reads the response."""
        if not incoming.ended:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._pass(incoming), self._timeout_s)

    async def _pass(self, incoming: RequestStream) -> None:
        left = self._max_body
        while left > 0 and not incoming.ended:
            left -= len(await incoming.part() or b"")


_FULL = Problem("queue_full", "too many bytes are being received (gateway.max_receiving); send it again")


def too_large(max_body: int) -> Problem:
    """The problem for a body over the limit."""
    return Problem("body_too_large", f"more than {max_body} bytes (gateway.max_body)")
