"""The HTTP API: who answers what, and a problem for every error."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl

import orjson

from checkback.gateway.health import now_ms
from checkback.gateway.http import decoder
from checkback.gateway.http.cloud_events import halves_of_events
from checkback.gateway.http.decoder import unfit
from checkback.gateway.http.middleware import JSON, RequestMiddleware, reply_of
from checkback.gateway.http.openapi import Question, document
from checkback.gateway.journal.journal_to_tables import behind_s
from checkback.gateway.problems import Problem
from checkback.messages.fields import MessageRejectedError, message_of
from checkback.messages.half import Half
from checkback.messages.names import refuse_group
from checkback.messages.trace_context import remark_of, trace_of_headers, traced

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from checkback.gateway.authentication import Groups
    from checkback.gateway.http.cloud_events import EventHead
    from checkback.gateway.http.middleware import Direct, Event, Headers, Reply, Scope, Signed
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.problems import Answer
    from checkback.gateway.service import GatewayService
    from checkback.messages.op import RemarkedOp
    from checkback.settings import Gateway

    Read = Callable[[bytes, int, Headers], Any]
    Take = Callable[[Sequence[Any], Groups], Awaitable[list[Answer]]]


def message_routes(service: GatewayService) -> dict[str, Direct]:
    """The handlers of POST requests, by path."""
    halves, ops = service.halves.take, service.ops.take
    return {
        "/v1/half": _one(_traced(decoder.half_of_body), halves),
        "/v1/halves": _many(_traced(decoder.halves_of_body), halves),
        "/v1/message": _one(_traced(partial(decoder.half_of_body, committed=True)), halves),
        "/v1/messages": _many(_traced(partial(decoder.halves_of_body, committed=True)), halves),
        "/v1/op": _one(_traced_ops(decoder.op_of_body), ops),
        "/v1/ops": _many(_traced_ops(decoder.ops_of_body), ops),
    }


def _traced(read: Callable[[bytes, int], Any]) -> Read:
    """Messages have the request's trace context, unless they state their own."""

    def read_traced(body: bytes, now: int, headers: Headers) -> Any:
        messages, context = read(body, now), trace_of_headers(headers)
        if not context or isinstance(messages, Problem):
            return messages
        return _with(context, messages) if isinstance(messages, Half) else [_with(context, one) for one in messages]

    return read_traced


def _with(context: Mapping[str, str], half: Half | Problem) -> Half | Problem:
    return half if isinstance(half, Problem) else half._replace(properties=traced(half.properties, context))


def _traced_ops(read: Callable[[bytes, int], Any]) -> Read:
    """Ops have the request's traceparent as their remark, unless they state one."""

    def read_traced(body: bytes, now: int, headers: Headers) -> Any:
        ops, remark = read(body, now), remark_of(trace_of_headers(headers))
        if remark is None or isinstance(ops, Problem):
            return ops
        return _remarked(ops, remark) if isinstance(ops, tuple) else [_remarked(one, remark) for one in ops]

    return read_traced


def _remarked(op: RemarkedOp | Problem, remark: str) -> RemarkedOp | Problem:
    return op if isinstance(op, Problem) or op[1] is not None else (op[0], remark)


def event_routes(service: GatewayService) -> dict[str, Event]:
    """The handlers of POST requests that are CloudEvents, by path."""
    take = service.halves.take
    return {"/v1/half": _events(take, None), "/v1/message": _events(take, True)}


def _events(take: Take, committed: bool | None) -> Event:
    def handle(head: EventHead, body: bytes, groups: Groups, headers: Headers) -> Awaitable[Reply]:
        read = _traced(lambda body, now: halves_of_events(head, body, groups, now, committed))
        found = read(body, now_ms(), headers)
        if isinstance(found, Problem):
            return _at_once(found)
        return _all(take(found, groups)) if isinstance(found, list) else _first(take([found], groups))

    return handle


def _one(read: Read, take: Take) -> Direct:
    def handle(body: bytes, groups: Groups, headers: Headers) -> Awaitable[Reply]:
        message = read(body, now_ms(), headers)
        return _at_once(message) if isinstance(message, Problem) else _first(take([message], groups))

    return handle


def _many(read: Read, take: Take) -> Direct:
    def handle(body: bytes, groups: Groups, headers: Headers) -> Awaitable[Reply]:
        messages = read(body, now_ms(), headers)
        return _at_once(messages) if isinstance(messages, Problem) else _each(take(messages, groups))

    return handle


async def _at_once(problem: Problem) -> Reply:
    return reply_of(problem)


async def _first(answers: Awaitable[list[Answer]]) -> Reply:
    return reply_of((await answers)[0])


async def _each(answers: Awaitable[list[Answer]]) -> Reply:
    return reply_of({"results": _results(await answers)})


async def _all(answers: Awaitable[list[Answer]]) -> Reply:
    """As `_each`, but 200 only if all were taken: a client of CloudEvents looks at nothing else."""
    found = await answers
    results = {"results": _results(found)}
    refused = next((one for one in found if isinstance(one, Problem)), None)
    return reply_of(results if refused is None else replace(refused, more={**refused.more, **results}))


def _results(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    return [one.members() if isinstance(one, Problem) else {"status": 200, **one} for one in answers]


_TRANSACTIONS = "/v1/transactions/"
_NUMBER = re.compile("[0-9]{1,19}")
_METRICS = b"text/plain; version=0.0.4; charset=utf-8"


class MoreRoutes(NamedTuple):
    """Routes about what the gateway serves besides HTTP, by path.

    ``signed``: handlers of POSTs, which verify a signature; ``lists``: answers to GETs, given the token's groups.
    """

    signed: Mapping[str, Signed]
    lists: Mapping[str, Callable[[Groups], dict[str, Any]]]


def create_app(
    service: GatewayService, metrics: Metrics, settings: Gateway, more: MoreRoutes | None = None
) -> RequestMiddleware:
    """The ASGI application of an open service."""
    posts, more = message_routes(service), more or MoreRoutes({}, {})
    other = Questions(service, metrics, posts, more).reply
    return RequestMiddleware(other, posts, service.tokens, metrics, settings, more.signed, event_routes(service))


def place_of(question: Question) -> tuple[int, int] | None:
    """The place that a question names. Raises MessageRejectedError if it names half of one."""
    queue_id, queue_offset = question.queue_id, question.queue_offset
    if queue_id is not None and queue_offset is not None:
        return queue_id, queue_offset
    if queue_id is None and queue_offset is None:
        return None
    raise MessageRejectedError("queue_id, queue_offset: give both or neither")


class Questions:
    """Answers requests without a body, and those that no route takes."""

    def __init__(
        self, service: GatewayService, metrics: Metrics, posts: Mapping[str, Direct], more: MoreRoutes
    ) -> None:
        self._service, self._metrics, self._posts = service, metrics, {*posts, *more.signed}
        self._lists = more.lists
        self._document = orjson.dumps(document(service.tokens.needed))

    async def reply(self, scope: Scope) -> tuple[str, Reply]:
        """The route, as metrics name it, and its reply. HEAD as GET: uvicorn leaves the body out."""
        path = scope["path"]
        route = f"{_TRANSACTIONS}{{transaction_id}}" if path.startswith(_TRANSACTIONS) else path
        known = route in ("/healthz", "/readyz", "/metrics", "/openapi.json", *self._lists) or route is not path
        if not known and path not in self._posts:
            return "other", reply_of(Problem("not_found", "see /openapi.json"))
        if not known or scope["method"] not in ("GET", "HEAD"):
            refusal = reply_of(Problem("method_not_allowed", "see /openapi.json"))
            return route, (*refusal[:3], {"allow": "GET, HEAD" if known else "POST"})
        if path == "/metrics":
            return route, (200, self._metrics.text(), _METRICS, None)
        if path == "/openapi.json":
            return route, (200, self._document, JSON, None)
        if path == "/healthz":
            return route, reply_of({"status": "ok"})
        return route, reply_of(self._readiness() if path == "/readyz" else await self._of_groups(scope))

    def _readiness(self) -> Answer:
        problem = self._service.unready()
        if problem is not None:
            return problem
        journal = self._service.journal
        behind = {} if journal is None else {"journal_messages": journal.rows, "behind_seconds": behind_s(journal)}
        return {"status": "ok", **behind}

    async def _of_groups(self, scope: Scope) -> Answer:
        """The answer to who may act for the groups that it is about."""
        groups = self._service.tokens.groups(dict(scope["headers"]).get(b"authorization", b""))
        if isinstance(groups, Problem):
            return groups
        listed = self._lists.get(scope["path"])
        return await self._transaction(scope, groups) if listed is None else listed(groups)

    async def _transaction(self, scope: Scope, groups: Groups) -> Answer:
        asked: dict[str, Any] = {"transaction_id": scope["path"].removeprefix(_TRANSACTIONS)}
        asked |= dict(parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True))
        for name in ("queue_id", "queue_offset"):
            if _NUMBER.fullmatch(asked.get(name, "")):
                asked[name] = int(asked[name])
        try:
            question = message_of({name: asked[name] for name in Question.__struct_fields__ if name in asked}, Question)
            refuse_group(question.producer_group)
            place = place_of(question)
        except MessageRejectedError as error:
            return unfit(error)
        about = question.transaction_id, question.producer_group
        return await self._service.questions.transaction(*about, groups, place)
