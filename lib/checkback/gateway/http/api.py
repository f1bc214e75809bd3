"""The HTTP API: routes, their OpenAPI description, and a problem for every error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import orjson
from fastapi import APIRouter, Body, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.exceptions import HTTPException

from checkback import __version__
from checkback.gateway.http import models
from checkback.gateway.http.message_routes import message_routes
from checkback.gateway.http.middleware import RequestMiddleware
from checkback.gateway.journal.flusher import behind_s
from checkback.gateway.problems import CODES, Problem
from checkback.messages.limits import GROUP_MAX, TRANSACTION_ID_MAX

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from checkback.gateway.metrics import Metrics
    from checkback.gateway.service import GatewayService
    from checkback.settings import Gateway

_HALF = {
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "real_topic": "payments",
    "tags": "created",
    "keys": "4711",
    "properties": {"region": "eu"},
    "body": "eyJhbW91bnQiOiA0Mn0=",
}
_OP = {
    "queue_id": 0,
    "half_offset": 12,
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "state": "COMMIT",
}
_STORED = {"transaction_id": "order-4711", "queue_id": 0, "queue_offset": 12}
_ENDED = {**_STORED, "state": "COMMIT", "repeated": False}
_ALWAYS = (400, 401, 408, 413, 415, 421, 431, 500, 503)


class _Text(PathConvertor):
    """Any text: that of ``path`` has no line breaks, and drops one at the end."""

    regex = r"[\s\S]*"


register_url_convertor("text", _Text())


def _example(value: dict[str, Any]) -> Any:
    return Body(openapi_examples={"example": {"value": value}})


def _responses(model: type[Any], example: dict[str, Any], *statuses: int) -> dict[int | str, dict[str, Any]]:
    """The responses of a route: its model, and for each error status a problem with its possible codes."""
    content: dict[str, Any] = {"application/json": {"example": example}}
    responses: dict[int | str, dict[str, Any]] = {200: {"model": model, "content": content}}
    for status in sorted({*_ALWAYS, *statuses}):
        codes = [code for code, (of, _) in CODES.items() if of == status]
        responses[status] = {
            "description": ", ".join(codes),
            "content": {
                "application/problem+json": {
                    "schema": {"$ref": "#/components/schemas/Problem"},
                    "examples": {code: {"value": Problem(code, "...").members()} for code in codes},
                }
            },
        }
    return responses


class Answer(Response):
    """A JSON response, serialised by orjson."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Serialise a JSON value."""
        return orjson.dumps(content)


def _answer(answer: dict[str, Any] | Problem) -> Response:
    if isinstance(answer, Problem):
        return Answer(answer.members(), answer.status, answer.headers(), media_type="application/problem+json")
    return Answer(answer)


def create_app(service: GatewayService, metrics: Metrics, settings: Gateway) -> ASGIApp:
    """The ASGI application of an open service."""
    app = FastAPI(
        title="Checkback gateway",
        version=__version__,
        description="Half messages and ops for Checkback. An answer of 200 means: durable.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.include_router(_messages())
    app.include_router(_questions(service, metrics))
    _describe(app, service.tokens.needed)

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> Response:
        codes = {404: "not_found", 405: "method_not_allowed"}
        answer = _answer(Problem(codes.get(error.status_code, "internal"), "see /openapi.json"))
        answer.headers.update(error.headers or {})
        if answer.headers.get("allow") == "GET":
            answer.headers["allow"] = "GET, HEAD"
        return answer

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        field = str(first["loc"][-1])
        return _answer(Problem("unfit", f"{field}: {first['msg']}", {"field": field}))

    return RequestMiddleware(app, message_routes(service), service.tokens, metrics, settings)


def _messages() -> APIRouter:
    """The routes for messages, for the OpenAPI description only: the middleware dispatches them to `message_routes`.

    A message is thus parsed once, by the same rules as every half message and op.
    """
    router = APIRouter(prefix="/v1", tags=["messages"])

    @router.post("/half", operation_id="sendHalf", responses=_responses(models.Stored, _STORED, 403, 409, 422))
    async def half(message: Annotated[models.HalfMessage, _example(_HALF)]) -> None:
        """Send a half message. Idempotent: a retry gets the same offset, and the message is stored once."""

    @router.post(
        "/halves",
        operation_id="sendHalves",
        responses=_responses(models.StoredResults, {"results": [{"status": 200, **_STORED}]}, 422),
    )
    async def halves(batch: Annotated[models.Halves, _example({"messages": [_HALF]})]) -> None:
        """Send several half messages. Each has its own result, in order; the batch is not atomic."""

    @router.post("/message", operation_id="sendMessage", responses=_responses(models.Stored, _STORED, 403, 409, 422))
    async def message(message: Annotated[models.HalfMessage, _example(_HALF)]) -> None:
        """Send a message without a transaction: it is committed as it is stored. Idempotent, as a half message is."""

    @router.post(
        "/messages",
        operation_id="sendMessages",
        responses=_responses(models.StoredResults, {"results": [{"status": 200, **_STORED}]}, 422),
    )
    async def messages(batch: Annotated[models.Halves, _example({"messages": [_HALF]})]) -> None:
        """Send several messages without a transaction. Each has its own result, in order; the batch is not atomic."""

    @router.post("/op", operation_id="endTransaction", responses=_responses(models.Ended, _ENDED, 403, 404, 409, 422))
    async def op(message: Annotated[models.Op, _example(_OP)]) -> None:
        """End a transaction. The first op stands."""

    @router.post(
        "/ops",
        operation_id="endTransactions",
        responses=_responses(models.EndedResults, {"results": [{"status": 200, **_ENDED}]}, 422),
    )
    async def ops(batch: Annotated[models.Ops, _example({"ops": [_OP]})]) -> None:
        """End several transactions. Each has its own result, in order."""

    return router


def _questions(service: GatewayService, metrics: Metrics) -> APIRouter:
    router = APIRouter()
    described = {**_STORED, "producer_group": "orders", "real_topic": "payments", "state": "PENDING", "reason": None}
    described |= {"check_times": 0, "born_timestamp": 1795227064579, "decided_at": None}

    @router.get(
        "/v1/transactions/{transaction_id:text}",
        operation_id="getTransaction",
        tags=["transactions"],
        responses=_responses(models.Transaction, described, 403, 404, 422),
    )
    async def transaction(
        request: Request,
        transaction_id: Annotated[str, Path(min_length=1, max_length=TRANSACTION_ID_MAX)],
        producer_group: Annotated[str, Query(pattern="^[a-zA-Z0-9_-]+$", max_length=GROUP_MAX)],
    ) -> Response:
        """The state of a transaction."""
        groups = service.tokens.groups(request.headers.get("authorization", "").encode("latin-1"))
        if isinstance(groups, Problem):
            return _answer(groups)
        return _answer(await service.questions.transaction(transaction_id, producer_group, groups))

    @router.get("/healthz", operation_id="getHealth", tags=["operation"], responses={200: {"model": models.Health}})
    async def healthz() -> Response:
        """Liveness: is the process alive?"""
        return Answer({"status": "ok"})

    @router.get(
        "/readyz",
        operation_id="getReadiness",
        tags=["operation"],
        responses=_responses(models.Health, {"status": "ok"}),
    )
    async def readyz() -> Response:
        """Readiness: does the gateway accept messages?"""
        problem = service.unready()
        if problem is not None:
            return _answer(problem)
        journal = service.journal
        behind = {} if journal is None else {"journal_messages": journal.rows, "behind_seconds": behind_s(journal)}
        return Answer({"status": "ok", **behind})

    @router.get("/metrics", operation_id="getMetrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def _describe(app: FastAPI, tokens: bool) -> None:
    """Amend FastAPI's OpenAPI schema: problems instead of its own errors, and the bearer token."""
    described = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema:
            return app.openapi_schema
        schema = described()
        components = schema.setdefault("components", {})
        schemas = components.setdefault("schemas", {})
        schemas.pop("HTTPValidationError", None)
        schemas.pop("ValidationError", None)
        schemas["Problem"] = models.Problem.model_json_schema()
        for model in schemas.values():  # generators take a member with a default for one that is always there
            for member in model.get("properties", {}).values():
                member.pop("default", None)
        if tokens:
            components["securitySchemes"] = {
                "token": HTTPBearer().model.model_dump(exclude_none=True, mode="json", by_alias=True)
            }
            for path, methods in schema["paths"].items():
                if path.startswith("/v1/"):
                    for operation in methods.values():
                        operation["security"] = [{"token": []}]
        app.openapi_schema = schema
        return schema

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation extends it
