"""Around the API: requests refused before their body is parsed, and metrics of every request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import orjson

from checkback import tracing
from checkback.gateway.http.cloud_events import event_head
from checkback.gateway.problems import Problem
from checkback.messages.trace_context import in_trace, trace_of_headers
from checkback.urls import LOOPBACK, host_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence

    from checkback.gateway.authentication import BearerTokens, Groups
    from checkback.gateway.http.cloud_events import EventHead
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.problems import Answer
    from checkback.settings import Gateway

    Scope = Mapping[str, Any]

    Message = MutableMapping[str, Any]
    Receive = Callable[[], Awaitable[Message]]
    Send = Callable[[Message], Awaitable[None]]
    Reply = tuple[int, bytes, bytes, Mapping[str, str] | None]
    Headers = Sequence[tuple[bytes, bytes]]
    Direct = Callable[[bytes, Groups, Headers], Awaitable[Reply]]
    Event = Callable[[EventHead, bytes, Groups, Headers], Awaitable[Reply]]
    Signed = Callable[[bytes, Mapping[str, str]], Awaitable[Reply]]
    Other = Callable[[Scope], Awaitable[tuple[str, Reply]]]


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


#: Most headers of a request; their total size is a setting.
HEADERS_MAX = 64
JSON = b"application/json"
PROBLEM_JSON = b"application/problem+json"
#: ASGI extension of `protocol`: sends a whole response in one write, if it returns True
WHOLE_RESPONSE = "checkback.whole_response"
_NOTHING: Mapping[str, Any] = {}
#: whose the bodies of signed requests are, until they are verified
_NOBODYS: Groups = frozenset()
_log = logging.getLogger("checkback.gateway")


class RequestMiddleware:
    """The ASGI application: limits of requests, the token, the media type, the host; a problem for every failure.

    ``direct``: handlers of POSTs to these paths; ``signed``: of those that verify a signature instead of a token;
    ``events``: of those that are CloudEvents, of any media type; ``other`` answers all other requests. Without tokens,
    only requests whose Host is this machine are accepted: this stops DNS rebinding, and a browser's forms are neither
    JSON nor events.
    """

    def __init__(
        self,
        other: Other,
        direct: Mapping[str, Direct],
        tokens: BearerTokens,
        metrics: Metrics,
        settings: Gateway,
        signed: Mapping[str, Signed] | None = None,
        events: Mapping[str, Event] | None = None,
    ) -> None:
        self._other = other
        self._direct = direct
        self._signed = signed or {}
        self._events = events or {}
        self._tokens = tokens
        self._metrics = metrics
        self._max_body = settings.max_body
        self._max_headers = settings.max_headers
        #: In-flight requests beyond the number of connections belong to disconnected clients.
        self._max_in_flight = settings.max_connections
        self._in_flight = 0
        self._receiving = BodyBuffers(settings.max_body, settings.max_receiving, settings.timeout.total_seconds())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a valid request on; refuse the others, by their headers alone where possible."""
        if scope["type"] != "http":
            return
        sent, incoming = _Sent(send, scope), RequestStream(receive)
        route, is_event = self._route(scope) if scope["method"] == "POST" else (None, False)
        name = scope["path"] if route is not None else "other"
        try:
            problem = self._unfit_head(scope, route is not None, is_event)
            if problem is None and route is not None and tracing.loaded():
                with tracing.receiving(scope["path"], trace_of_headers(scope["headers"])) as span:
                    problem = await self._directly(route, scope, incoming, sent)
                    span.set_attribute("http.response.status_code", sent.status or (problem.status if problem else 499))
            elif problem is None and route is not None:
                problem = await self._directly(route, scope, incoming, sent)
            elif problem is None:
                name, reply = await self._other(scope)
                await sent.answer(*reply)
            if problem is not None:
                await sent.refuse(problem, lambda: self._receiving.rest(incoming))
        except Exception as error:  # noqa: BLE001 - the client gets a problem, the log the reason without the request
            trace = in_trace(trace_of_headers(scope["headers"]))
            debug = _log.isEnabledFor(logging.DEBUG)
            _log.error("a request failed: %s", type(error).__name__, exc_info=debug, extra=trace)
            if not sent.status:
                problem = Problem("internal", "an error of the gateway; its log says more")
                await sent.answer(500, orjson.dumps(problem.members()), PROBLEM_JSON)
        finally:
            self._metrics.answered(name, sent.status, sent.seconds())

    def _route(self, scope: Scope) -> tuple[Direct | None, bool]:
        """The handler of a POST, and whether it is of events."""
        signed, event = self._signed.get(scope["path"]), self._events.get(scope["path"])
        if event is not None:
            head = event_head(scope["headers"], scope.get("query_string") or b"")
            if head is not None:
                return partial(event, head), True
        if signed is None:
            return self._direct.get(scope["path"]), False
        decoded = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        return (lambda body, _, __: signed(body, decoded)), False

    async def _directly(self, direct: Direct, scope: Scope, incoming: RequestStream, sent: _Sent) -> Problem | None:
        """Answer, or return the problem; checks that need only the headers come before the body is read."""
        unnamed = scope["path"] in self._signed
        groups = _NOBODYS if unnamed else self._tokens.groups(_header(scope, b"authorization"))
        if isinstance(groups, Problem):
            return groups
        if self._in_flight >= self._max_in_flight:
            return Problem("queue_full", f"{self._in_flight} requests wait to be answered; send it again")
        self._in_flight += 1
        try:
            body = await self._receiving.body(incoming, groups)
            if isinstance(body, Problem):
                return body
            if body is not None:  # else the client has disconnected
                reply = direct(body, groups, scope["headers"])
                del body
                await sent.answer(*await reply)
            return None
        finally:
            self._in_flight -= 1

    def _unfit_head(self, scope: Scope, takes_body: bool, is_event: bool) -> Problem | None:
        """The problem of the headers; None = they fit. ``takes_body``: JSON, or if ``is_event`` any media type."""
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        kind = encoding = b""
        hosts: list[str] = []
        for name, value in headers:
            size += len(name) + len(value) + 4
            if name == b"content-type":
                kind = value
            elif name == b"content-length" and int(value) > self._max_body:
                return too_large(self._max_body)
            elif name == b"host":
                hosts.append(host_of(value.decode("latin-1")))
            elif name == b"content-encoding" and value.strip().lower() != b"identity":
                encoding = value
        if len(headers) > HEADERS_MAX or size > self._max_headers:
            limits = f"at most {HEADERS_MAX} of them, {self._max_headers} bytes with the path"
            return Problem("headers_too_large", limits)
        if not self._tokens.needed and (len(hosts) != 1 or hosts[0] not in LOOPBACK):
            return Problem("wrong_host", "without tokens only requests for localhost are taken")
        return _unfit_kind(JSON if is_event else kind, encoding) if takes_body else None


def _unfit_kind(kind: bytes, encoding: bytes) -> Problem | None:
    if encoding:
        return Problem("unsupported_media_type", "no Content-Encoding is taken: send the body as it is")
    if kind != JSON and kind.partition(b";")[0].strip().lower() != JSON:
        return Problem("unsupported_media_type", f"send Content-Type: {JSON.decode()}")
    return None


def reply_of(answer: Answer) -> Reply:
    """The reply with a JSON object, or a problem."""
    if isinstance(answer, Problem):
        return answer.status, orjson.dumps(answer.members()), PROBLEM_JSON, answer.headers()
    return 200, orjson.dumps(answer), JSON, None


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


class _Sent:
    """Forwards a response, and records its status (0 = none yet) and when it was sent."""

    def __init__(self, send: Send, scope: Scope) -> None:
        self._send = send
        # It would write the body of an answer to HEAD, too.
        self._whole = None if scope["method"] == "HEAD" else scope.get("extensions", _NOTHING).get(WHOLE_RESPONSE)
        self._began = time.perf_counter()
        self._answered: float | None = None
        self.status = 0

    def seconds(self) -> float:
        """From the request's headers to the response, or until now."""
        return (self._answered or time.perf_counter()) - self._began

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._answered = time.perf_counter()
        await self._send(message)

    async def answer(self, status: int, body: bytes, kind: bytes, more: Mapping[str, str] | None = None) -> None:
        """Send a complete response."""
        headers = _headers(kind, more)
        if self._whole is not None and self._whole(status, headers, body):
            self.status = status
            self._answered = time.perf_counter()
            return
        await self(_head(status, body, kind, more))
        await self._send({"type": "http.response.body", "body": body})

    async def refuse(self, problem: Problem, rest: Callable[[], Awaitable[None]]) -> None:
        """Send the problem at once, and end the response when the ``rest`` of the request is drained.

        If the connection were closed earlier, a client still sending would see a connection reset.
        """
        body = orjson.dumps(problem.members())
        await self(_head(problem.status, body, PROBLEM_JSON, {**problem.headers(), "connection": "close"}))
        await self._send({"type": "http.response.body", "body": body, "more_body": True})
        await rest()
        await self._send({"type": "http.response.body", "body": b""})


def _head(status: int, body: bytes, kind: bytes, more: Mapping[str, str] | None) -> Message:
    headers = [*_headers(kind, more), (b"content-length", b"%d" % len(body))]
    return {"type": "http.response.start", "status": status, "headers": headers}


def _headers(kind: bytes, more: Mapping[str, str] | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-type", kind)]
    if more:
        headers += [(name.encode(), value.encode()) for name, value in more.items()]
    return headers
