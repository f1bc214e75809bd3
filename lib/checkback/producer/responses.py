"""Strict parsing of the gateway's replies. No network."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from checkback.errors import CheckbackError

#: maximum bytes read of a reply, and of a reply to a batch
MAX_REPLY, MAX_BATCH_REPLY = 64 * 1024, 16 << 20
#: retryable statuses of a gateway or proxy
TRY_AGAIN = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE})
#: codes with which a 503 is a definite refusal by the gateway; a 503 alone proves nothing
_REFUSALS = frozenset({"queue_full", "transactions_rejected"})
_FIXES = {
    HTTPStatus.UNAUTHORIZED: "give the producer its group's token",
    HTTPStatus.FORBIDDEN: "name the group in the gateway's settings, producers.GROUP",
    HTTPStatus.NOT_FOUND: "look at the gateway's URL",
}
_LONGEST = 200
_PROBLEM = "application/problem+json"


class GatewayError(CheckbackError):
    """The gateway did not accept a half message or op.

    ``status``: of its last reply, None if there was none; ``code``: its error code. ``refused``: certainly nothing has
    landed; otherwise this or an earlier attempt may have.
    """

    def __init__(
        self,
        what: str,
        where: str = "",
        fix: str = "",
        status: int | None = None,
        code: str | None = None,
        refused: bool = False,
    ) -> None:
        super().__init__(what, where, fix)
        self.args = (what, where, fix, status, code, refused)  # pickle passes these to __init__
        self.status = status
        self.code = code
        self.refused = refused


@dataclass(frozen=True)
class GatewayReply:
    """A gateway's reply: status, relevant headers, at most Post.most + 1 bytes of body."""

    status: int
    body: bytes = field(repr=False)
    content_type: str = ""
    retry_after: str | None = None


def read_reply(reply: GatewayReply, path: str, transaction_id: str, lost: bool) -> dict[str, Any]:
    """The JSON object in a 200 for ``transaction_id``. Raises GatewayError for every other reply.

    ``lost``: an earlier attempt got no reply and may have landed.
    """
    if reply.status != HTTPStatus.OK:
        raise _refusal(reply, path, lost)
    fields = _object(reply.body)
    if fields.get("transaction_id") != transaction_id:
        raise GatewayError(
            "the reply is not that of a gateway for this transaction", path, "look at the gateway's URL", reply.status
        )
    return fields


def read_results(reply: GatewayReply, path: str, number: int) -> list[GatewayReply]:
    """The ``number`` results in a 200 to a batch, each as if it were the reply to a request of its own.

    Raises GatewayError if there are not as many.
    """
    results = _object(reply.body, MAX_BATCH_REPLY).get("results")
    if not (
        isinstance(results, list)
        and len(results) == number
        and all(isinstance(one, dict) and type(one.get("status")) is int for one in results)
    ):
        raise GatewayError(f"the reply has no {number} results", path, "look at the gateway's URL", reply.status)
    return [GatewayReply(one["status"], json.dumps(one).encode(), _PROBLEM) for one in results]


def read_place(fields: dict[str, Any], path: str) -> tuple[int, int]:
    """(queue_id, queue_offset) of the half message. Raises GatewayError if the reply has none."""
    queue_id, queue_offset = fields.get("queue_id"), fields.get("queue_offset")
    if type(queue_id) is not int or type(queue_offset) is not int or queue_id < 0 or queue_offset < 0:
        raise GatewayError("the reply has no queue_id and queue_offset", path, "look at the gateway's URL", 200)
    return queue_id, queue_offset


def may_have_landed(reply: GatewayReply) -> bool:
    """May the gateway have stored what this retryable reply does not acknowledge?

    A proxy's 502: the gateway behind it may have accepted the request. "stopping" is also what a gateway says
    that could not learn the outcome of its commit.
    """
    return reply.status == HTTPStatus.BAD_GATEWAY or _problem(reply)[1] == "stopping"


def _problem(reply: GatewayReply) -> tuple[dict[str, Any], str | None]:
    """A problem's members and its code."""
    problem = _object(reply.body) if reply.content_type.partition(";")[0].strip() == _PROBLEM else {}
    return problem, problem.get("code") if isinstance(problem.get("code"), str) else None


def _refusal(reply: GatewayReply, path: str, lost: bool) -> GatewayError:
    problem, code = _problem(reply)
    told = problem.get("detail") or problem.get("title")
    words = f"status {reply.status}" + (f" {code}" if code else "") + (f": {told}" if isinstance(told, str) else "")
    said_no = HTTPStatus.BAD_REQUEST <= reply.status < HTTPStatus.INTERNAL_SERVER_ERROR or code in _REFUSALS
    fix = _FIXES.get(HTTPStatus(reply.status), "") if reply.status in _FIXES else ""
    return GatewayError(words[:_LONGEST], path, fix, reply.status, code, refused=said_no and not lost)


def _object(body: bytes, most: int = MAX_REPLY) -> dict[str, Any]:
    """The JSON object in a body of at most ``most`` bytes; {} if there is none."""
    if len(body) > most:
        return {}
    try:
        fields = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
