"""Strict parsing of the gateway's replies. No network."""

from __future__ import annotations

from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple

from checkback.errors import CheckbackError

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    from orjson import loads as _loads
except ImportError:
    from json import loads as _loads  # type: ignore[assignment]  # one of its arguments is what we use

#: maximum bytes read of a reply
MAX_REPLY = 16 << 20
#: retryable statuses of a gateway or proxy
TRY_AGAIN = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
#: codes with which a 503 is a definite refusal by the gateway; a 503 alone proves nothing
_REFUSALS = frozenset(
    {"queue_full", "journal_full", "transactions_rejected", "storage_unavailable", "too_many_connections"}
)
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


class Place(NamedTuple):
    """Where the gateway has stored a half message or message."""

    queue_id: int
    queue_offset: int


@dataclass(frozen=True)
class GatewayReply:
    """A gateway's reply to a request: status, relevant headers, body.

    ``resent``: the request was sent twice, because its connection was closed before any of the reply.
    """

    status: int
    body: bytes = field(repr=False)
    content_type: str = ""
    retry_after: str | None = None
    resent: bool = False

    @property
    def members(self) -> dict[str, Any]:
        """The members of a problem; none if it is not one."""
        return _object(self.body) if self.content_type.partition(";")[0].strip() == _PROBLEM else {}


@dataclass(frozen=True)
class ItemReply:
    """The reply to one message or op of a request: the members of its result."""

    status: int
    members: dict[str, Any] = field(repr=False)
    retry_after: str | None = None


Reply = GatewayReply | ItemReply


def read_results(reply: GatewayReply, url: str, ids: Sequence[str]) -> list[dict[str, Any]]:
    """The results in a 200, one for each of these transactions.

    Raises GatewayError if there are not as many, or one is another's: what came is the reply to another request.
    """
    results = _object(reply.body).get("results")
    if not (isinstance(results, list) and len(results) == len(ids) and all(map(_is_result, results))):
        raise GatewayError(f"the reply has no {len(ids)} results", url, "look at the gateway's URL", reply.status)
    for result, transaction_id in zip(results, ids, strict=True):
        if result["status"] == HTTPStatus.OK and result.get("transaction_id") != transaction_id:
            raise _of_another(url)
    return results


def read_place(result: dict[str, Any], url: str, transaction_id: str) -> Place:
    """The place in a result with status 200. Raises GatewayError if it is another transaction's or has none."""
    queue_id, queue_offset = result.get("queue_id"), result.get("queue_offset")
    if (
        result.get("transaction_id") != transaction_id
        or type(queue_id) is not int
        or type(queue_offset) is not int
        or queue_id < 0
        or queue_offset < 0
    ):
        raise _of_another(url)
    return Place(queue_id, queue_offset)


def refusal(reply: Reply, url: str, lost: bool) -> GatewayError:
    """The error of a reply whose status is not 200. ``lost``: an earlier attempt may have landed."""
    problem, code = reply.members, _code(reply)
    told = problem.get("detail") or problem.get("title")
    words = f"status {reply.status}" + (f" {code}" if code else "") + (f": {told}" if isinstance(told, str) else "")
    said_no = HTTPStatus.BAD_REQUEST <= reply.status < HTTPStatus.INTERNAL_SERVER_ERROR or code in _REFUSALS
    fix = _FIXES.get(HTTPStatus(reply.status), "") if reply.status in _FIXES else ""
    return GatewayError(words[:_LONGEST], url, fix, reply.status, code, refused=said_no and not lost)


def may_have_landed(reply: Reply) -> bool:
    """May the gateway have stored what this retryable reply does not acknowledge?

    A proxy's 502, 503 or 504: the gateway behind it may have accepted the request. "stopping" is also what a gateway
    says that could not learn the outcome of its commit.
    """
    return reply.status != HTTPStatus.TOO_MANY_REQUESTS and _code(reply) not in _REFUSALS


def _of_another(url: str) -> GatewayError:
    what = "the reply is not that of a gateway for this transaction"
    return GatewayError(what, url, "look at the gateway's URL", 200)


def _code(reply: Reply) -> str | None:
    code = reply.members.get("code")
    return code if isinstance(code, str) else None


def _is_result(result: object) -> bool:
    return isinstance(result, dict) and type(result.get("status")) is int


def _object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body; {} if there is none."""
    try:
        fields = _loads(body)
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
