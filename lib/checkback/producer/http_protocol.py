"""uvicorn's HTTP protocol with the limits that it lacks: how long a connection may ask for nothing, how many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: h11's own limit, which holds for trailers, too
HEAD_MAX = 64 * 1024


class LimitedConnection(H11Protocol):
    """A connection that is closed unless a whole request head came within ``timeout_s`` of its start or last answer.

    It is closed as well when more than HEAD_MAX bytes came that are no such head. While a request is being answered,
    the application's own limits hold. Of more than ``max_connections`` the newest are closed.

    Always h11, also where httptools is installed: with that, trailers are headers, without a limit, and at a head with
    ``Upgrade``, which a server may ignore (RFC 9110, 7.8), the request ends without its body.
    """

    timeout_s: float
    max_connections: int

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's."""
        super().connection_made(transport)
        self._unanswered = 0
        self._timer = self.loop.call_later(self.timeout_s, self._late)
        if len(self.connections) > self.max_connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """As uvicorn's."""
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last:
            self._unanswered = 0
        elif last is None or last.response_complete:
            self._unanswered += len(data)
            if self._unanswered > HEAD_MAX:
                self.transport.abort()

    def on_response_complete(self) -> None:
        """As uvicorn's."""
        super().on_response_complete()
        self._again()

    def _should_upgrade(self) -> bool:
        """Never, and without the warning of uvicorn's: whoever reaches the port could fill the log with it."""
        return False

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            self._again()

    def _again(self) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(self.timeout_s, self._late)
