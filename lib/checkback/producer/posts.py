"""POST requests to the gateway: their bodies, and what a reply means for them. No network, no clock."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Protocol

from checkback.producer.gateway_address import MESSAGES
from checkback.producer.message import half_json, identified
from checkback.producer.responses import (
    MAX_BATCH_REPLY,
    MAX_REPLY,
    TRY_AGAIN,
    GatewayError,
    GatewayReply,
    read_place,
    read_reply,
    read_results,
)
from checkback.producer.result import SendResult, not_sent, sent

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from checkback.producer.message import Message
    from checkback.producer.retry import Attempts

#: messages of one request (the gateway's limit), and bytes above which no further one is added (its limit is 16 MiB)
BATCH_MAX, BATCH_BYTES = 1000, 4 << 20


class Post(Protocol):
    """A request that is sent again until a reply is final."""

    path: str
    #: bytes read of a reply
    most: int

    def body(self) -> bytes:
        """What the next attempt sends."""

    def after(self, reply: GatewayReply, url: str, attempts: Attempts, now: float) -> float | None:
        """Seconds to wait until the next attempt, None after a final reply. Raises GatewayError for a refusal."""


class SinglePost:
    """One half message, message or op. ``fields``: the members of the final reply."""

    most = MAX_REPLY

    def __init__(self, path: str, body: bytes, transaction_id: str) -> None:
        self.path = path
        self._body = body
        self._transaction_id = transaction_id
        self.fields: dict[str, Any] = {}

    def body(self) -> bytes:
        """See Post."""
        return self._body

    def after(self, reply: GatewayReply, url: str, attempts: Attempts, now: float) -> float | None:
        """See Post."""
        wait = attempts.after_reply(reply, now)
        if wait is None:
            self.fields = read_reply(reply, url, self._transaction_id, attempts.lost)
        return wait

    def place(self) -> tuple[int, int]:
        """(queue_id, queue_offset) of the final reply. Raises GatewayError."""
        return read_place(self.fields, self.path)


class BatchPost:
    """Messages without a transaction in one request; those that the gateway has no room for yet are sent again."""

    path = MESSAGES
    most = MAX_BATCH_REPLY

    def __init__(self, messages: list[tuple[str, bytes]]) -> None:
        self._messages = messages
        self._left = list(range(len(messages)))
        self._results: list[SendResult | None] = [None] * len(messages)

    def body(self) -> bytes:
        """See Post."""
        return b'{"messages":[' + b",".join(self._messages[at][1] for at in self._left) + b"]}"

    def after(self, reply: GatewayReply, url: str, attempts: Attempts, now: float) -> float | None:
        """See Post."""
        if reply.status != HTTPStatus.OK:
            wait = attempts.after_reply(reply, now)
            if wait is None:
                read_reply(reply, url, "", attempts.lost)  # raises
            return wait
        items = read_results(reply, url, len(self._left))
        lost = attempts.lost
        not_now = next((item for item in items if item.status in TRY_AGAIN), None)
        wait = None if not_now is None else attempts.after_reply(not_now, now)
        again = []
        for at, item in zip(self._left, items, strict=True):
            if wait is not None and item.status in TRY_AGAIN:
                again.append(at)
            else:
                self._results[at] = _result(self._messages[at][0], item, url, lost)
        self._left = again
        return wait

    def results(self, error: GatewayError | None = None) -> list[SendResult]:
        """The messages' results, in order; ``error``: of those without a final reply."""
        missing = error or GatewayError("no reply", self.path)
        return [
            result or not_sent(message[0], missing)
            for message, result in zip(self._messages, self._results, strict=True)
        ]


def batches(group: str, messages: Iterable[Message], born_ms: int) -> list[list[tuple[str, bytes]]]:
    """The (transaction_id, JSON) of messages, in batches that fit into a request.

    Raises messages.Rejected for an invalid message, before anything is sent.
    """
    return list(_batched([_identified_json(group, message, born_ms) for message in messages]))


def unsent(messages: list[tuple[str, bytes]]) -> list[SendResult]:
    """The results of a batch that was not sent, because the gateway did not answer the batch before it."""
    error = GatewayError("not sent: the batch before it got no answer", MESSAGES, "send it again", refused=True)
    return [not_sent(transaction_id, error) for transaction_id, _ in messages]


def _identified_json(group: str, message: Message, born_ms: int) -> tuple[str, bytes]:
    message = identified(message)
    return message.transaction_id, half_json(group, message, born_ms)


def _batched(messages: list[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    batch: list[tuple[str, bytes]] = []
    size = 0
    for message in messages:
        if batch and (len(batch) == BATCH_MAX or size + len(message[1]) > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += len(message[1])
    if batch:
        yield batch


def _result(transaction_id: str, item: GatewayReply, url: str, lost: bool) -> SendResult:
    try:
        return sent(transaction_id, read_place(read_reply(item, url, transaction_id, lost), url))
    except GatewayError as error:
        return not_sent(transaction_id, error)
