"""Problems (RFC 9457): every error response is a JSON object with a description and a code."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

#: code -> (status, title). The codes are a contract: clients branch on them.
CODES: dict[str, tuple[int, str]] = {
    "malformed": (400, "The request is not well-formed, or not of the right shape"),
    "unauthorized": (401, "A valid token is needed"),
    "unknown_group": (403, "The producer group is not known here"),
    "forbidden_group": (403, "The token is another group's"),
    "not_found": (404, "There is no such thing"),
    "unknown_offset": (404, "There is no half message at this offset"),
    "unknown_transaction": (404, "There is no such transaction"),
    "not_connected": (404, "No client of the producer group is connected here"),
    "method_not_allowed": (405, "The method is not allowed here"),
    "too_slow": (408, "The request took too long to arrive"),
    "not_answered": (408, "The producer group's client has not answered in time"),
    "contradiction": (409, "It contradicts what came first"),
    "body_too_large": (413, "The request's body is too large"),
    "unsupported_media_type": (415, "The body's media type is not one of this route, or it is encoded"),
    "wrong_host": (421, "The request is for another host"),
    "unfit": (422, "A field is not fit"),
    "wrong_group": (422, "The half message is another group's"),
    "wrong_transaction_id": (422, "The half message has another transaction id"),
    "headers_too_large": (431, "The request's headers are too large"),
    "internal": (500, "The gateway failed"),
    "queue_full": (503, "The queue is full"),
    "journal_full": (503, "The journal is full"),
    "transactions_rejected": (503, "Half messages are refused for now"),
    "storage_unavailable": (503, "The tables cannot be written or read now"),
    "too_many_connections": (503, "There is no room for another connection"),
    "stopping": (503, "The gateway is stopping"),
}
#: seconds
RETRY_AFTER = 1


@dataclass(frozen=True)
class Problem:
    """An error response.

    ``detail`` never contains a token or a message's body; ``more``: additional members.
    """

    code: str
    detail: str
    more: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> int:
        """The HTTP status."""
        return CODES[self.code][0]

    def members(self) -> dict[str, Any]:
        """The members of the problem's JSON object."""
        status, title = CODES[self.code]
        return {
            "type": f"urn:checkback:problem:{self.code}",
            "title": title,
            "status": status,
            "detail": self.detail,
            "code": self.code,
            **self.more,
        }

    def headers(self) -> dict[str, str]:
        """The response headers for the status."""
        if self.code == "unauthorized":
            return {"www-authenticate": 'Bearer realm="checkback"'}
        return {"retry-after": str(RETRY_AFTER)} if self.status == 503 else {}


#: the answer to a message: the members of a success response, or a problem
Answer = dict[str, Any] | Problem
