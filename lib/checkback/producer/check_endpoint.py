"""The check endpoint as an ASGI application: verifies a check request, then calls the listener."""

from __future__ import annotations

import asyncio
import base64
import json
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from datetime import timedelta
from functools import partial
from typing import Any

from checkback import tracing
from checkback.check.wire import CheckRequest, Message
from checkback.errors import CheckbackError
from checkback.messages.durations import seconds_of
from checkback.messages.trace_context import trace_of
from checkback.producer.daemon_threads import DaemonThreads, Outcome
from checkback.producer.listener import (
    AsyncTransactionListener,
    LocalTransactionState,
    TransactionListener,
    failed,
    logger,
    refuse_unfit,
    state_of,
)
from checkback.producer.signature_verifier import RefusedError, SignatureVerifier


def read_check(body: bytes) -> CheckRequest:
    """Parse the check in a request's body. Raises RefusedError, 400, if invalid."""
    try:
        fields = dict(json.loads(body.decode("utf-8")).items())
        return CheckRequest(
            queue_id=_integer(fields, "queue_id"),
            queue_offset=_integer(fields, "queue_offset"),
            transaction_id=_text(fields, "transaction_id"),
            producer_group=_text(fields, "producer_group"),
            real_topic=_text(fields, "real_topic"),
            check_times=_integer(fields, "check_times"),
            born_timestamp=None if fields.get("born_timestamp") is None else _integer(fields, "born_timestamp"),
            message=_message(fields) if "body" in fields else None,
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise RefusedError(400, "not a check") from None


def answer_json(check: CheckRequest, state: str, error: str | None = None) -> bytes:
    """The body of a 200. It names the half message: a proxy may confuse answers, and a transaction may have several."""
    queue_id, queue_offset = check.place
    fields = {
        "transaction_id": check.transaction_id,
        "queue_id": queue_id,
        "queue_offset": queue_offset,
        "state": state,
    }
    if error is not None:
        fields["error"] = error
    return json.dumps(fields).encode("ascii")


def problem_json(refused: RefusedError) -> bytes:
    """The body of any other status (RFC 9457)."""
    return json.dumps({"type": "about:blank", "title": refused.title, "status": refused.status}).encode("ascii")


def _message(fields: dict[str, Any]) -> Message:
    """The half message, sent to a group with ``include_body``."""
    properties = fields.get("properties")
    if properties is not None and not isinstance(properties, dict):
        raise TypeError
    return Message(
        body=None if fields["body"] is None else base64.b64decode(_text(fields, "body", least=0), validate=True),
        tags=None if fields.get("tags") is None else _text(fields, "tags", least=0),
        keys=None if fields.get("keys") is None else _text(fields, "keys", least=0),
        properties=properties,
    )


def _text(fields: dict[str, Any], name: str, least: int = 1) -> str:
    value = fields[name]
    if not isinstance(value, str) or len(value) < least:
        raise TypeError
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields[name]
    if type(value) is not int or value < 0:
        raise TypeError
    return value


Listener = TransactionListener | AsyncTransactionListener
# ASGI 3
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

#: maximum bytes of a check without the message's body: ample, as ids and topic have limits
MAX_REQUEST = 64 * 1024
#: stands for any group that uses the secret; not a valid group name
_ANY = ""
#: maximum digits of a Content-Length
_DIGITS = 18


class CheckApp:
    """An ASGI application that answers POST on any path it is mounted on; see ``check_app``."""

    def __init__(
        self,
        listeners: Mapping[str, Listener],
        verifier: SignatureVerifier,
        max_request: int,
        timeout_s: float,
        threads: int,
    ) -> None:
        self._listeners = dict(listeners)
        self._verifier = verifier
        self._max_request = max_request
        self._timeout_s = timeout_s
        # Each group has its own: one whose listener hangs delays no other.
        self._threads = {group: DaemonThreads(threads, f"checkback-check-{group}") for group in self._listeners}

    @property
    def signed(self) -> bool:
        """Are unsigned checks refused?"""
        return self._verifier.signed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI 3 scope."""
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            try:
                status, body = 200, await self._answer(scope, receive)
            except RefusedError as refused:
                # As the gateway's: any client could fill the log. Checkback records the status (check_answers.error).
                logger.debug("a check was refused: %d %s", refused.status, refused.title)
                status, body = refused.status, problem_json(refused)
            await _reply(send, status, body)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1003})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        """The body of a 200. Raises RefusedError for everything else.

        Step 1: read the request, within limits of size and time; without a secret, one of no browser.
        Step 2: verify the signature. An unsigned request is not even parsed.
        Step 3: find the group's listener.
        Step 4: refuse a replayed request.
        Step 5: call the listener.
        """
        # Step 1
        if scope["method"] != "POST":
            raise RefusedError(405, "checks are POSTed")
        headers = _headers(scope)
        if not self.signed:
            _refuse_browsers(headers)
        body = await self._in_time(_read(receive, headers, self._max_request), 408, "the request took too long")
        # Step 2
        signed_for = self._verifier.verify(headers, body)
        # Step 3
        check = read_check(body)
        group = _ANY if _ANY in signed_for else check.producer_group
        if group not in signed_for:
            raise RefusedError(403, "not this service's producer group")
        # Step 4
        self._verifier.take(headers, body)
        # Step 5
        state, error = await self._ask(group, check, trace_of(headers))
        return answer_json(check, state.value, error)

    async def _ask(
        self, group: str, check: CheckRequest, context: Mapping[str, str]
    ) -> tuple[LocalTransactionState, str | None]:
        """What the group's listener says; as in RocketMQ, any error is UNKNOWN, and the next check asks again.

        Also the type of that error, for `check_answers.error`.

        A timeout is a 503, so that the check fails over to another endpoint, which may know.
        """
        # A task of its own: a CancelledError that the listener raises is not a cancellation of this one.
        asked = asyncio.create_task(self._said(group, check, context))
        try:
            ended, _ = await asyncio.wait([asked], timeout=self._timeout_s)
        finally:
            asked.cancel()
        if not ended:
            raise RefusedError(503, "the listener took too long")
        try:
            said = asked.result()
        except asyncio.CancelledError as error:
            said = Outcome(None, error)
        if said.error is not None:
            state = failed(said.error, check.transaction_id, "check_local_transaction", context)
            return state, f"listener raised {type(said.error).__name__}"
        state, returned = state_of(said.returned, check.transaction_id, context), said.returned
        unfit = returned is not None and not isinstance(returned, LocalTransactionState)
        return state, f"listener returned {type(returned).__name__}" if unfit else None

    async def _said(
        self, group: str, check: CheckRequest, context: Mapping[str, str]
    ) -> Outcome[LocalTransactionState | None]:
        listener = self._listeners[group]
        if not isinstance(listener, AsyncTransactionListener):
            look = listener.check_local_transaction
            if tracing.loaded():
                look = tracing.answering(look, group, context)
            return await self._threads[group].run(partial(look, check))
        try:
            awaited = listener.check_local_transaction
            if tracing.loaded():
                awaited = tracing.answering(awaited, group, context)
            return Outcome(await awaited(check), None)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Ctrl-C comes where the main thread happens to be. A SystemExit would end the event loop, for all groups.
            if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
                raise
            return Outcome(None, error)

    async def _in_time(self, work: Any, status: int, title: str) -> Any:
        try:
            return await asyncio.wait_for(work, self._timeout_s)
        except asyncio.TimeoutError:
            raise RefusedError(status, title) from None


def check_app(
    listener: Listener | Mapping[str, Listener],
    *,
    secret: str | Mapping[str, str] | None,
    group: str | None = None,
    max_request: int = MAX_REQUEST,
    timeout: timedelta = timedelta(seconds=4),
    threads: int = 16,
    replays: int = 200_000,
) -> CheckApp:
    """The check endpoint of one listener, or of group -> listener, to mount in FastAPI or Starlette or serve alone.

    A 200 is always a listener's answer, ``{"transaction_id", "queue_id", "queue_offset", "state"}``, with ``error`` if
    the listener has raised one: its type. Requests are refused with problem+json: 401 not signed with the secret or
    more than five minutes off, 403 another group, 409 replayed request, 413 over ``max_request`` bytes, 400 not a
    check, 405, 408, 503 the listener took longer than ``timeout``. Checkback records each as NO_ANSWER and checks
    again.

    ``secret``: that of ``producers.GROUP.secret``, two of them apart by a space, or ``file:PATH``, which is read again
    when it has changed; or group -> secret; None accepts unsigned checks: 403 for those of a
    browser, 415 for what is not application/json. It is for loopback only, where CheckServer keeps it; in a server of
    your own that is yours to do: whoever reaches an unsigned endpoint can have transactions rolled back.
    ``group``: the group of a single listener; without it any group that uses the secret. ``max_request``: increase it
    for a group with ``include_body``. ``threads``: checks of a group that a TransactionListener answers at a time, each
    in a thread; those of an AsyncTransactionListener run in the event loop. ``replays``: requests remembered, see
    ReplayCache.

    Raises SettingsError for an invalid secret, CheckbackError for an unfit listener.
    """
    timeout_s = seconds_of("timeout", timeout)
    listeners = listener if isinstance(listener, Mapping) else {group or _ANY: listener}
    if not listeners:
        raise CheckbackError("there is none", "listener", "give a listener, or {group: listener}")
    for name, each in listeners.items():
        refuse_unfit(each, f"listener of {name}" if name else "listener")
    return CheckApp(listeners, SignatureVerifier(secret, listeners, replays), max_request, timeout_s, threads)


def _headers(scope: Scope) -> dict[str, str]:
    """Headers by lower-case name. Repeated headers are joined, so that no signature matches them."""
    headers: dict[str, str] = {}
    for name, value in scope["headers"]:
        key, text = name.decode("latin-1").lower(), value.decode("latin-1")
        headers[key] = f"{headers[key]},{text}" if key in headers else text
    return headers


def _refuse_browsers(headers: Mapping[str, str]) -> None:
    """Raise RefusedError for what a page in a browser may send to this machine, without being asked for leave."""
    if "origin" in headers or "sec-fetch-site" in headers:  # one of each POST, the other of all requests
        raise RefusedError(403, "without a secret, no browser's request is taken")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RefusedError(415, "a check is application/json")


async def _read(receive: Receive, headers: Mapping[str, str], limit: int) -> bytes:
    """The body. Raises RefusedError, 413 if it exceeds ``limit`` bytes."""
    stated = headers.get("content-length", "0")
    if not stated.isdecimal() or len(stated) > _DIGITS or int(stated) > limit:
        raise RefusedError(413, "the request is too large")
    body, more = b"", True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RefusedError(400, "the request was cut short")
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > limit:
            raise RefusedError(413, "the request is too large")
    return body


async def _reply(send: Send, status: int, body: bytes) -> None:
    kind = b"application/json" if status == 200 else b"application/problem+json"
    headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    if status == 405:
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        event = await receive()
        await send({"type": f"{event['type']}.complete"})
        if event["type"] == "lifespan.shutdown":
            return
