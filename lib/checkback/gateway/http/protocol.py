"""uvicorn's HTTP protocol with the limits it lacks: read and write timeouts, head size, number of connections."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson
from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from checkback.gateway.http.middleware import WHOLE_RESPONSE
from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from asyncio.events import TimerHandle
    from collections import deque
    from collections.abc import Sequence

#: requests of a connection that wait for the answer to an earlier one; one more closes it
MAX_PIPELINED = 32


class _PipelineFlow(FlowControl):
    """Nothing is read while requests wait: uvicorn reads on with each answer, and more come than are answered."""

    def __init__(self, transport: asyncio.Transport, pipeline: deque[Any]) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """As uvicorn's."""
        if not self._pipeline:
            super().resume_reading()


class LimitedProtocol(HttpToolsProtocol):
    """A connection. A timer runs from a request's first byte (of the first one: from the connect) to its last.

    Trailers are dropped: they are not headers of the request. ``Upgrade`` is ignored (RFC 9110, 7.8).
    """

    timeout_s = 10.0
    max_head = 64 << 10
    max_connections = 2000
    #: the setting of max_connections; empty = there is none
    setting = ""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._timer: TimerHandle | None = None
        self._unread: TimerHandle | None = None
        self._head: int | None = 0
        #: bytes since a chunk header not followed by a body: trailers
        self._trailers: int | None = None
        self._plain_head = b""
        #: bytes still dropped before or after the last response; None = more requests may come
        self._draining: float | None = None
        #: the request that is being answered: uvicorn's `cycle` is the last one received
        self._running: RequestResponseCycle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """As uvicorn's."""
        super().connection_made(transport)
        self.flow = _PipelineFlow(transport, self.pipeline)
        self._start()
        if len(self.connections) > self.max_connections:
            named = f" ({self.setting})" if self.setting else ""
            self._refuse(Problem("too_many_connections", f"{self.max_connections} are open{named}"))

    def connection_lost(self, exc: Exception | None) -> None:
        """As uvicorn's; the request that is being answered learns of it, too."""
        self._stop()
        self._stop_unread()
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """A client that sends no more may still wait for its answers: uvicorn's drops them."""
        if not self._answers_first():
            return False
        self._draining = 0
        return True

    def pause_writing(self) -> None:
        """As uvicorn's; a client that does not read its responses times out."""
        super().pause_writing()
        self._start_unread()

    def resume_writing(self) -> None:
        """As uvicorn's."""
        self._stop_unread()
        super().resume_writing()

    def on_response_complete(self) -> None:
        """As uvicorn's."""
        self._running = self.pipeline[-1][0] if self.pipeline else None
        super().on_response_complete()
        if self.transport.is_closing():
            self._start_unread()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's."""
        super().timeout_keep_alive_handler()
        self._start_unread()

    def data_received(self, data: bytes) -> None:
        """As uvicorn's; a head or trailers over the limit are answered 431."""
        if self._draining is not None:
            self._draining -= len(data)
            if self._draining < 0:
                self.transport.abort()
            return
        if self._timer is None:
            self._start()
        # Counted before parsing: a head that ends or begins within these bytes is not charged for all of them.
        if self._head is not None:
            self._head += len(data)
        if self._trailers is not None:
            self._trailers += len(data)
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._parse(data)
        except HttpParserError:
            self.send_400_response("")
            return
        if (self._head or 0) > self.max_head or (self._trailers or 0) > self.max_head:
            self._refuse(Problem("headers_too_large", f"more than {self.max_head} bytes"), receiving=True)

    def _parse(self, data: bytes) -> bytes:
        """Parse the received bytes and return those left over. Raises HttpParserError.

        At a head with an Upgrade httptools ends the message, whatever body follows, and may parse no further one:
        a new parser reads the head again, without the Upgrade, and continues after it.
        """
        try:
            self.parser.feed_data(data)
        except HttpParserUpgrade as offered:
            self.parser = HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
            self.parser.feed_data(self._plain_head)
            return data[offered.args[0] :]
        return b""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - the same for everything that is not HTTP
        """Instead of uvicorn's: a problem, as for all errors."""
        self._refuse(Problem("malformed", "no HTTP request"), receiving=True)

    def on_message_begin(self) -> None:
        """As uvicorn's; a pipelined request may begin in the bytes in which the previous one ended.

        Raises HttpParserError for one too many: the connection is closed.
        """
        if len(self.pipeline) >= MAX_PIPELINED:
            raise HttpParserError("too many requests at once")
        if self._timer is None:
            self._start()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """As uvicorn's, except for trailers."""
        if self._head is not None:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """As uvicorn's, except for a head that `_parse` reads again."""
        if self.parser.should_upgrade():
            self._plain_head = self._without_upgrade()
            return
        self._head = None
        super().on_headers_complete()
        if not self.pipeline:
            self._running = self.cycle
        # Before the request's task runs, for the first time.
        self.scope["extensions"] = {WHOLE_RESPONSE: partial(self._respond, self.cycle)}  # type: ignore[dict-item]

    def _respond(self, cycle: Any, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send the whole response of a request; False if it must be sent as ASGI messages.

        In one write, and without what uvicorn does for headers of any application: a fifth of a request's time.
        """
        if cycle.disconnected or cycle.response_started or self.flow.write_paused:
            return False
        parts = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            parts += (name, b": ", value, b"\r\n")
        parts.append(b"content-length: %d\r\n" % len(body))
        parts.append(b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n")
        parts.append(body)
        cycle.response_started = cycle.response_complete = True
        self.transport.write(b"".join(parts))
        cycle.message_event.set()
        # It refers to the cycle: a request would be left to the garbage collector, which stops everything for long.
        del cycle.scope["extensions"]
        if not cycle.keep_alive:
            if self._draining:
                self._drain()
            else:
                self.transport.close()
        cycle.on_response()
        return True

    def on_chunk_header(self) -> None:
        """Trailers follow, unless a body does."""
        self._trailers = 0

    def on_body(self, body: bytes) -> None:
        """As uvicorn's."""
        self._trailers = None
        super().on_body(body)

    def on_message_complete(self) -> None:
        """As uvicorn's."""
        if self.parser.should_upgrade():
            return
        self._stop()
        self._head = 0
        self._trailers = None
        super().on_message_complete()

    def _without_upgrade(self) -> bytes:
        """The head without its Upgrade header. Raises HttpParserError for a tunnel (CONNECT)."""
        headers = [(name, value) for name, value in self.headers if name != b"upgrade"]
        if len(headers) == len(self.headers):
            raise HttpParserError("there is none to ignore")
        version = self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, version)]
        lines += [b"%s: %s" % header for header in headers]
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _start(self) -> None:
        self._timer = self.loop.call_later(self.timeout_s, self._late)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _start_unread(self) -> None:
        """Start the write timeout: closing a connection waits for the client to read, too."""
        self._stop_unread()
        self._unread = self.loop.call_later(self.timeout_s, self.transport.abort)

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _late(self) -> None:
        if self.flow.read_paused:
            # It is not read until the previous pipelined request is answered, which is not this client's fault.
            self._start()
            return
        self._refuse(Problem("too_slow", f"not all of it came within {self.timeout_s:g} seconds"))

    def _refuse(self, problem: Problem, *, receiving: bool = False) -> None:
        """Answer and close; ``receiving``: more of the request may be on its way.

        Only closes if the request was answered before all of it arrived. Requests before it are answered first, and the
        connection is closed after that: the client would take this for the answer to one of them.
        """
        self._stop()
        if self.transport.is_closing() or self._answers_first():
            return
        cycle = self.cycle
        if cycle is None or self._head is not None or not cycle.response_started:
            body = orjson.dumps(problem.members())
            head = f"HTTP/1.1 {problem.status} \r\ncontent-type: application/problem+json\r\n"
            head += f"content-length: {len(body)}\r\nconnection: close\r\n"
            head += "".join(f"{name}: {value}\r\n" for name, value in problem.headers().items()) + "\r\n"
            self.transport.write(head.encode() + body)
            if receiving and self.transport.can_write_eof():
                self._drain()
                return
        self.transport.close()
        self._start_unread()

    def _answers_first(self) -> bool:
        """Close after the answers to the requests of which all has arrived; False if there are none to wait for.

        What else came, or comes until then, is dropped: their messages are stored, which only an answer tells.
        """
        if self.pipeline and self._head is None:
            self.pipeline.popleft()
            self.cycle = self.pipeline[0][0] if self.pipeline else self._running  # type: ignore[assignment]
            self._head = 0
        # Unless a head is being received, the cycle is that of the request whose body is.
        if self._head is None or self.cycle is None or self.cycle.response_complete:
            return False
        self._stop()
        self.cycle.keep_alive = False
        self._draining = math.inf
        FlowControl.resume_reading(self.flow)
        return True

    def _drain(self) -> None:
        """Close after the client does, or after the timeout or as many bytes as a head may have.

        A close with unread bytes resets the connection, and the client may lose the response (RFC 9112, 9.6).
        """
        self._draining = self._draining or self.max_head
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._start_unread()


def limited(timeout_s: float, max_head: int, max_connections: int, setting: str = "") -> type[LimitedProtocol]:
    """The protocol with these limits, for a server's configuration."""
    limits = {"timeout_s": timeout_s, "max_head": max_head, "max_connections": max_connections, "setting": setting}
    return type("Protocol", (LimitedProtocol,), limits)
