"""`/openapi.json`: the routes, and the bodies of requests and responses, from the Structs by which they are decoded."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from checkback import __version__
from checkback.gateway.http.decoder import Halves, Op, Ops
from checkback.gateway.problems import CODES
from checkback.gateway.problems import Problem as Refusal
from checkback.messages.columns import Born, Group, Offset, QueueId, Topic, TransactionId
from checkback.messages.half import HalfMessage
from checkback.messages.limits import INT_MAX, LONG_MAX

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
    "queue_offset": 12,
    "transaction_id": "order-4711",
    "producer_group": "orders",
    "state": "COMMIT",
}
_STORED = {"transaction_id": "order-4711", "queue_id": 0, "queue_offset": 12}
_ENDED = {**_STORED, "state": "COMMIT", "repeated": False}
_TRANSACTION = {**_STORED, "producer_group": "orders", "real_topic": "payments", "state": "PENDING", "reason": None}
_TRANSACTION |= {"check_times": 0, "born_timestamp": 1795227064579, "decided_at": None}
_TRANSACTION |= {"deliver_at": None, "delivered_at": None}
#: statuses of every route that is not /healthz or /metrics
_ALWAYS = (400, 401, 408, 413, 415, 421, 431, 500, 503)
_EVENTS = "CloudEvents are taken, too, with real_topic and producer_group in the query."
_SCHEMAS = "#/components/schemas/"


class Problem(Struct):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    code: Annotated[str, Meta(description="what a program branches on")]


class Stored(Struct):
    """The half message is in the table."""

    transaction_id: TransactionId
    queue_id: QueueId
    queue_offset: Offset


class Ended(Struct):
    """The op is in the table."""

    transaction_id: TransactionId
    queue_id: QueueId
    queue_offset: Offset
    state: Literal["COMMIT", "ROLLBACK"]
    repeated: Annotated[bool, Meta(description="it had come before; nothing new was stored")]


# These two are named before Problem: of several schemas Java's client takes the first by name that fits, and a Problem
# fits whatever comes, where these have their status.
class OneStored(Stored):
    """One of several half messages is in the table."""

    status: Literal[200]


class OneEnded(Ended):
    """One of several ops is in the table."""

    status: Literal[200]


def _each(result: str) -> Meta:
    """Items that are that schema of `_RESULTS`: msgspec has no unions of Structs without a tag."""
    return Meta(extra_json_schema={"items": {"$ref": _SCHEMAS + result}})


class StoredResults(Struct):
    """The result of each half message, in order."""

    results: Annotated[list[Any], _each("StoredResult")]


class EndedResults(Struct):
    """The result of each op, in order."""

    results: Annotated[list[Any], _each("EndedResult")]


class Transaction(Struct):
    """The state of a transaction."""

    transaction_id: TransactionId
    producer_group: Group
    real_topic: Topic
    queue_id: QueueId
    queue_offset: Offset
    state: Annotated[
        Literal["PENDING", "COMMIT", "ROLLBACK", "DISCARD", "CANCEL"],
        Meta(description="the last decision; before it the first op, or PENDING"),
    ]
    reason: Annotated[str | None, Meta(description="CHECK_MAX or EXPIRED for a DISCARD")]
    check_times: Annotated[int, Meta(description="checks sent so far")]
    born_timestamp: Born
    decided_at: Annotated[int | None, Meta(description="ms since the epoch; null = not decided yet")]
    deliver_at: Annotated[
        int | None, Meta(description="of a COMMIT with a delay: when it is delivered, ms since the epoch")
    ]
    delivered_at: Annotated[int | None, Meta(description="when it was delivered then; null = not yet")]


class Health(Struct):
    """The health of the gateway, and how far its commits to the tables are behind its journal."""

    status: Literal["ok"]
    journal_messages: Annotated[int, Meta(description="acknowledged and not in the tables yet")] = 0
    behind_seconds: Annotated[float, Meta(description="age of the oldest of them")] = 0.0


class Question(Struct):
    """What `GET /v1/transactions` is asked."""

    transaction_id: TransactionId
    producer_group: Group
    queue_id: QueueId | None = None
    queue_offset: Offset | None = None


_DESCRIBED = (
    *(HalfMessage, Halves, Op, Ops, Stored, OneStored, StoredResults, Ended, OneEnded, EndedResults),
    *(Transaction, Health, Problem),
)
#: name -> description and, besides a problem with another status, what the result of one of several is
_RESULTS: dict[str, tuple[str, type[Struct]]] = {
    "StoredResult": ("The result of one of several half messages", OneStored),
    "EndedResult": ("The result of one of several ops", OneEnded),
}


def document(tokens: bool) -> dict[str, Any]:
    """The OpenAPI document. ``tokens``: requests need a bearer token."""
    _, schemas = msgspec.json.schema_components(_DESCRIBED, ref_template=_SCHEMAS + "{name}")
    for schema in schemas.values():
        for member in schema["properties"].values():
            _as_generators_need(member)
    for name, (text, one) in _RESULTS.items():
        schemas[name] = {"description": text, "anyOf": [_ref(one), _ref(Problem)]}
    schemas["Problem"]["additionalProperties"] = True
    paths = _paths()
    components: dict[str, Any] = {"schemas": schemas}
    if tokens:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in paths.items():
            if path.startswith("/v1/"):
                for operation in methods.values():
                    operation["security"] = [{"token": []}]
    about = "Half messages and ops for Checkback. An answer of 200 means: durable."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Checkback gateway", "description": about, "version": __version__},
        "paths": paths,
        "components": components,
    }


def _as_generators_need(member: dict[str, Any]) -> None:
    """A default is left out, which they take for a member that is always there; types and widths are said.

    Without a type they take values for anything, and an integer without a format has 32 bits in Java.
    """
    member.pop("default", None)
    for each in member.get("anyOf", (member,)):
        if each.get("type") == "integer":
            each["format"] = "int32" if each.get("maximum", LONG_MAX) <= INT_MAX else "int64"
        elif each.get("type") == "number":
            each["format"] = "double"
    values = member.get("enum")
    if values:
        member["type"] = "string" if isinstance(values[0], str) else "integer"
        if len(values) == 1:
            member["const"] = member.pop("enum")[0]


def _paths() -> dict[str, dict[str, dict[str, Any]]]:
    one, each, many = (403, 409, 422), (422,), "Each has its own result, in order"
    half, halves = (HalfMessage, _HALF), (Halves, {"messages": [_HALF]})
    stored, ended = (Stored, _STORED), (Ended, _ENDED)
    all_stored = (StoredResults, {"results": [{"status": 200, **_STORED}]})
    all_ended = (EndedResults, {"results": [{"status": 200, **_ENDED}]})
    return {
        "/v1/half": _post(
            "sendHalf",
            "Send a half message. Idempotent: a retry gets the same offset, and the message is stored once. " + _EVENTS,
            half,
            _responses(*stored, *one),
        ),
        "/v1/halves": _post(
            "sendHalves",
            f"Send several half messages. {many}; the batch is not atomic.",
            halves,
            _responses(*all_stored, *each),
        ),
        "/v1/message": _post(
            "sendMessage",
            "Send a message without a transaction: it is committed as it is stored. Idempotent, as a half message is. "
            + _EVENTS,
            half,
            _responses(*stored, *one),
        ),
        "/v1/messages": _post(
            "sendMessages",
            f"Send several messages without a transaction. {many}; the batch is not atomic.",
            halves,
            _responses(*all_stored, *each),
        ),
        "/v1/op": _post(
            "endTransaction", "End a transaction. The first op stands.", (Op, _OP), _responses(*ended, 404, *one)
        ),
        "/v1/ops": _post(
            "endTransactions",
            f"End several transactions. {many}.",
            (Ops, {"ops": [_OP]}),
            _responses(*all_ended, *each),
        ),
        "/v1/transactions/{transaction_id}": _get(
            "transactions",
            "getTransaction",
            "The state of a transaction.",
            _responses(Transaction, _TRANSACTION, 403, 404, 422),
            [
                _parameter("transaction_id", "path"),
                *(_parameter(name, "query") for name in ("producer_group", "queue_id", "queue_offset")),
            ],
        ),
        "/healthz": _get("operation", "getHealth", "Liveness: is the process alive?", {"200": _json(Health)}),
        "/readyz": _get(
            "operation",
            "getReadiness",
            "Readiness: does the gateway accept messages?",
            _responses(Health, {"status": "ok"}),
        ),
        "/metrics": _get(
            "operation",
            "getMetrics",
            "Metrics in the Prometheus text format.",
            {"200": {"description": "the metrics", "content": {"text/plain": {"schema": {"type": "string"}}}}},
        ),
    }


def _post(name: str, text: str, body: tuple[type[Struct], Any], responses: dict[str, Any]) -> dict[str, dict[str, Any]]:
    model, example = body
    content = {"schema": _ref(model), "examples": {"example": {"value": example}}}
    request = {"content": {"application/json": content}, "required": True}
    described = {"operationId": name, "description": text, "requestBody": request, "responses": responses}
    return {"post": {"tags": ["messages"], **described}}


def _get(
    tag: str, name: str, text: str, responses: dict[str, Any], parameters: list[dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    described = {"tags": [tag], "operationId": name, "description": text, "responses": responses}
    return {"get": described | ({"parameters": parameters} if parameters else {})}


def _parameter(name: str, place: str) -> dict[str, Any]:
    stated = msgspec.json.schema(Question)["$defs"]["Question"]
    schema = stated["properties"][name]
    if name in stated["required"]:
        return {"name": name, "in": place, "required": True, "schema": schema}
    text = "place of the half message, both or neither: then it is not searched for"
    return {"name": name, "in": place, "required": False, "description": text, "schema": schema["anyOf"][0]}


def _ref(model: type[Struct]) -> dict[str, str]:
    return {"$ref": f"{_SCHEMAS}{model.__name__}"}


def _json(model: type[Struct], **more: Any) -> dict[str, Any]:
    found = {"schema": _ref(model), **more}
    return {"description": (model.__doc__ or "").strip(), "content": {"application/json": found}}


def _responses(model: type[Struct], example: dict[str, Any], *statuses: int) -> dict[str, Any]:
    """The responses of a route: its model, and for each error status a problem with its possible codes."""
    responses = {"200": _json(model, example=example)}
    for status in sorted({*_ALWAYS, *statuses}):
        codes = [code for code, (of, _) in CODES.items() if of == status]
        content = {
            "schema": _ref(Problem),
            "examples": {code: {"value": Refusal(code, "...").members()} for code in codes},
        }
        responses[str(status)] = {
            "description": ", ".join(codes),
            "content": {"application/problem+json": content},
        }
    return responses
