"""Around the API: what is refused before a body is parsed, and what is counted of every request."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

import orjson

from checkback.gateway.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from checkback.gateway.metrics import Metrics

    #: (authorization, body) -> (status, body, media type, further headers)
    Direct = Callable[[bytes, bytes], Awaitable[tuple[int, bytes, bytes, Mapping[str, str] | None]]]

#: Headers of one request; the bytes of all are a setting.
HEADERS_MAX = 64
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
JSON = b"application/json"
PROBLEM_JSON = b"application/problem+json"
_log = logging.getLogger("checkback.gateway")


class Guard:
    """ASGI middleware: limits on headers and body, the media type, the host, metrics, and a problem for every failure.

    ``direct``: what answers a POST to these paths at once. The layers of ``app`` would take longer than the answer.
    ``loopback_only``: without tokens, only requests for this machine are taken. A page in a browser that reaches the
    port under another name (DNS rebinding) is for another host, and its forms are no JSON.
    """

    def __init__(
        self,
        app: ASGIApp,
        direct: Mapping[str, Direct],
        metrics: Metrics,
        max_body: int,
        max_headers: int,
        loopback_only: bool,
    ) -> None:
        self._app = app
        self._direct = direct
        self._metrics = metrics
        self._max_body = max_body
        self._max_headers = max_headers
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a fit request on, with its whole body; answer the others."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        sent = _Sent(send)
        direct = self._direct.get(scope["path"]) if scope["method"] == "POST" else None
        try:
            body = self._unfit_head(scope, json=direct is not None) or await self._body(receive)
            if body is None:
                return  # the client has gone
            if isinstance(body, Problem):
                await sent.answer(body.status, orjson.dumps(body.members()), PROBLEM_JSON, body.headers(), close=True)
            elif direct is not None:
                await sent.answer(*await direct(_header(scope, b"authorization"), body))
            else:
                await self._app(scope, _received(body), sent)
        except Exception as error:  # noqa: BLE001 - the client gets a problem, the log the reason without the request
            _log.error("a request failed: %s", type(error).__name__, exc_info=_log.isEnabledFor(logging.DEBUG))
            if not sent.status:
                problem = Problem("internal", "an error of the gateway; its log says more")
                await sent.answer(500, orjson.dumps(problem.members()), PROBLEM_JSON)
        finally:
            route = scope["path"] if direct is not None else getattr(scope.get("route"), "path_format", "other")
            self._metrics.answered(route, sent.status, time.perf_counter() - began)

    def _unfit_head(self, scope: Scope, json: bool) -> Problem | None:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        size = len(scope.get("raw_path") or b"") + len(scope.get("query_string") or b"")
        kind = host = b""
        for name, value in headers:
            size += len(name) + len(value) + 4
            if name == b"content-type":
                kind = value
            elif name == b"content-length" and int(value) > self._max_body:
                return self._too_large()
            elif name == b"host":
                host = value
        if len(headers) > HEADERS_MAX or size > self._max_headers:
            limits = f"at most {HEADERS_MAX} of them, {self._max_headers} bytes with the path"
            return Problem("headers_too_large", limits)
        if self._loopback_only and _name_of(host) not in LOOPBACK:
            return Problem("wrong_host", "without tokens only requests for localhost are taken")
        if json and kind.partition(b";")[0].strip().lower() != b"application/json":
            return Problem("unsupported_media_type", "send Content-Type: application/json")
        return None

    async def _body(self, receive: Receive) -> bytes | Problem | None:
        parts: list[bytes] = []
        size = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            part = message.get("body", b"")
            parts.append(part)
            size += len(part)
            more = message.get("more_body", False)
            if size > self._max_body:
                return self._too_large()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _too_large(self) -> Problem:
        return Problem("body_too_large", f"more than {self._max_body} bytes (gateway.max_body)")


def _received(body: bytes) -> Receive:
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    return receive


def _name_of(host: bytes) -> str:
    name = host.decode("latin-1").lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0]


def _header(scope: Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


class _Sent:
    """Passes an answer on, and keeps its status; 0 = there was none."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def answer(
        self, status: int, body: bytes, kind: bytes, more: Mapping[str, str] | None = None, close: bool = False
    ) -> None:
        """Send a whole answer; ``close`` when the rest of the request is not read."""
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body))]
        if more:
            headers += [(name.encode(), value.encode()) for name, value in more.items()]
        if close:
            headers.append((b"connection", b"close"))
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
