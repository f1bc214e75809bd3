"""uvicorn's HTTP protocol with the limits it lacks: idle time, write timeout and number of connections."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import h11
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

#: h11's limit, which includes trailers
HEAD_MAX = 64 * 1024
_log = logging.getLogger("checkback.producer.http")
_log.setLevel(logging.ERROR)


class _PipelineFlow(FlowControl):
    """Nothing is read while a whole request is unanswered: uvicorn reads on with each, and keeps what it gets."""

    def __init__(self, transport: asyncio.Transport, received: h11.Connection) -> None:
        super().__init__(transport)
        self._received = received

    def resume_reading(self) -> None:
        """Like uvicorn's."""
        if self._received.their_state is not h11.DONE:
            super().resume_reading()


class LimitedConnection(H11Protocol):
    """A connection that is closed unless a complete request head arrives within ``timeout_s``.

    The timeout runs from the connection's start or last response. It is also closed after more than HEAD_MAX bytes
    without a complete head, and when what waits to be read by the client stays too much for ``timeout_s``. While a
    request is in progress, the application's limits apply. Above ``max_connections`` new connections are closed.

    Always h11, even if httptools is installed: httptools treats trailers as headers, without a limit, and ends a
    request with ``Upgrade``, which a server may ignore (RFC 9110, 7.8), without its body.
    """

    timeout_s: float
    max_connections: int

    def __init__(self, *arguments: Any, **options: Any) -> None:
        """Like uvicorn's, without its warnings of requests that are not HTTP: any client could fill the log."""
        super().__init__(*arguments, **options)
        self.logger = _log

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Like uvicorn's."""
        super().connection_made(transport)
        self.flow = _PipelineFlow(transport, self.conn)
        self._unanswered = 0
        self._timer = self._unread = self.loop.call_later(self.timeout_s, self._late)
        if len(self.connections) > self.max_connections:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Like uvicorn's."""
        self._timer.cancel()
        self._unread.cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Like uvicorn's, which waits for ever."""
        super().pause_writing()
        self._unread = self.loop.call_later(self.timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Like uvicorn's."""
        self._unread.cancel()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        """Like uvicorn's."""
        last = self.cycle
        super().data_received(data)
        if self.cycle is not last:
            self._unanswered = 0
        elif last is None or last.response_complete:
            self._unanswered += len(data)
            if self._unanswered > HEAD_MAX:
                self.transport.abort()

    def on_response_complete(self) -> None:
        """Like uvicorn's."""
        super().on_response_complete()
        if not self.transport.is_closing():
            self.flow.resume_reading()  # the next request may have begun, and is not whole
        self._again()

    def _should_upgrade(self) -> bool:
        """Never, and without uvicorn's warning, with which any client could fill the log."""
        return False

    def _late(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
        else:
            self._again()

    def _again(self) -> None:
        self._timer.cancel()
        self._timer = self.loop.call_later(self.timeout_s, self._late)
