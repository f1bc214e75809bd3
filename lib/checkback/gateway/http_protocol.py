"""uvicorn's HTTP protocol with the limits that it lacks: times to arrive and to be read, the head, the connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from asyncio.events import TimerHandle


class LimitedProtocol(HttpToolsProtocol):
    """A connection. From a request's first byte (for the first one: from the connect) to its last runs a timer."""

    timeout_s = 10.0
    max_head = 64 << 10
    max_connections = 2000

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: TimerHandle | None = None
        self._unread: TimerHandle | None = None
        self._head: int | None = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's."""
        super().connection_made(transport)
        self._start()
        if len(self.connections) > self.max_connections:
            self._refuse(Problem("too_many_connections", f"{self.max_connections} are open (gateway.max_connections)"))

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's."""
        self._stop()
        self._stop_unread()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """As uvicorn's; a client that does not read its answers is not waited for."""
        super().pause_writing()
        self._start_unread()

    def resume_writing(self) -> None:
        """As uvicorn's."""
        self._stop_unread()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """As uvicorn's."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_unread()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's."""
        super().timeout_keep_alive_handler()
        self._start_unread()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; a head that grows too large before it ends is answered 431."""
        if self._timer is None:
            self._start()
        super().data_received(data)
        if self._head is not None and self._timer is not None:
            self._head += len(data)
            if self._head > self.max_head:
                self._refuse(Problem("headers_too_large", f"more than {self.max_head} bytes"))

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - it is the same for all that is no HTTP
        """Instead of uvicorn's: a problem, as all errors."""
        self._refuse(Problem("malformed", "no HTTP request"))

    def on_message_begin(self) -> None:
        """As uvicorn's; a request may begin in the bytes that the one before it ended in."""
        if self._timer is None:
            self._start()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """As uvicorn's."""
        self._head = None
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """As uvicorn's."""
        self._stop()
        self._head = 0
        super().on_message_complete()

    def _start(self) -> None:
        self._timer = self.loop.call_later(self.timeout_s, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_unread(self) -> None:
        """From now on what was sent must be taken: to close a connection waits for that, too."""
        self._stop_unread()
        self._unread = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _late(self) -> None:
        if self.pipeline:
            # Nothing of it is read before the one ahead of it is answered, which is not this client's fault.
            self._start()
            return
        self._refuse(Problem("too_slow", f"not all of it came within {self.timeout_s:g} seconds"))

    def _refuse(self, problem: Problem) -> None:
        """Answer and close.

        A connection is only closed when its request is answered already, before all of it came, and when the one
        ahead of it is not answered yet: its client would take this for that one's answer.
        """
        self._stop()
        if self.transport.is_closing():
            return
        # Without a head under way the cycle is that of the request that is still coming.
        cycle = self.cycle
        if not self.pipeline and (
            cycle is None or (not cycle.response_started if self._head is None else cycle.response_complete)
        ):
            body = orjson.dumps(problem.members())
            head = f"HTTP/1.1 {problem.status} \r\ncontent-type: application/problem+json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in problem.headers().items()) + "\r\n"
            self.transport.write(head.encode() + body)
        self.transport.close()
        self._start_unread()
