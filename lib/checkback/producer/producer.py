"""TransactionProducer: RocketMQ's TransactionMQProducer, over HTTP."""

from __future__ import annotations

import inspect
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any

import requests
from urllib3 import Timeout
from urllib3.exceptions import HTTPError

from checkback.errors import CheckbackError
from checkback.producer.gateway_address import HALF, MESSAGE, MESSAGES, OP, Address, not_pem
from checkback.producer.listener import LocalTransactionState, TransactionListener, failed, no_listener, state_of
from checkback.producer.message import Message, half_json, identified, op_json
from checkback.producer.posts import BatchPost, Post, SinglePost, batches, unsent
from checkback.producer.request_errors import describe
from checkback.producer.responses import GatewayError, GatewayReply
from checkback.producer.result import SendResult, TransactionSendResult, not_sent, not_stored, sent, stored
from checkback.producer.retry import Attempts, Patience
from checkback.producer.timeouts import DeadlineAdapter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import TracebackType

    from urllib3.response import BaseHTTPResponse

_PATIENCE = Patience()
_LOST = (requests.RequestException, HTTPError, OSError, HTTPException)


class TransactionProducer:
    """Sends transactional messages for one producer group. Thread-safe.

    ``gateway_url``: ``http(s)://host:port`` of ``checkback gateway``; ``token``: the group's, sent as
    ``Authorization: Bearer``; ``patience``: timeouts and retries; ``ca_file``: PEM CA certificates for https (None: the
    system's); ``connections``: maximum keep-alive connections. Redirects are not followed; proxies and credentials from
    the environment are ignored. ``clock``: seconds since the epoch; ``timer``: monotonic seconds; ``sleep``: waits.

    Without a ``listener`` it only sends messages without a transaction.

    Raises SettingsError or messages.Rejected for an invalid argument.
    """

    def __init__(
        self,
        group: str,
        gateway_url: str,
        listener: TransactionListener | None = None,
        *,
        token: str | None = None,
        patience: Patience = _PATIENCE,
        ca_file: str | None = None,
        connections: int = 32,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if listener is not None and inspect.iscoroutinefunction(listener.execute_local_transaction):
            raise CheckbackError("is a listener for asyncio", "listener", "use AsyncTransactionProducer")
        self._address = Address(group, gateway_url, token)
        self._templates = {
            path: requests.Request("POST", self._address.url(path), headers=self._address.headers()).prepare()
            for path in (HALF, MESSAGE, MESSAGES, OP)
        }
        self._listener = listener
        self._patience = patience
        self._clock, self._timer, self._sleep = clock, timer, sleep
        try:
            self._adapter = DeadlineAdapter(ca_file, hosts=1, connections=connections)
        except OSError as error:
            raise not_pem(ca_file, error) from error

    def __enter__(self) -> TransactionProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the keep-alive connections."""
        self._adapter.close()

    def send(self, message: Message) -> SendResult:
        """Send a message without a transaction: it is committed as it is stored (RocketMQ: DefaultMQProducer.send).

        Idempotent by its transaction id. Raises messages.Rejected for an invalid message, before anything is sent.
        """
        message = identified(message)
        body = half_json(self._address.group, message, self._now_ms())
        try:
            place = self._place(MESSAGE, body, message.transaction_id)
        except GatewayError as error:
            return not_sent(message.transaction_id, error)
        return sent(message.transaction_id, place)

    def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send messages without a transaction, up to 1,000 or 4 MiB in one request; one result for each, in order.

        Each is stored or refused on its own; topics may differ, as may delays, which RocketMQ's batches must not have.
        After a request without an answer the rest is not sent. Raises messages.Rejected for an invalid message, before
        anything is sent.
        """
        results: list[SendResult] = []
        silent = False
        for batch in batches(self._address.group, messages, self._now_ms()):
            if silent:
                results += unsent(batch)
                continue
            post = BatchPost(batch)
            try:
                self._post(post)
                results += post.results()
            except GatewayError as error:
                results += post.results(error)
                silent = error.status is None
        return results

    def send_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Send a half message, run the local transaction, and send its op.

        As DefaultMQProducerImpl.sendMessageInTransaction:
        Step 1: send the half message. If it is not stored, the local transaction does not run, and the result has the
        error (``raise_for_status`` raises it).
        Step 2: run the listener's local transaction with ``arg``. An exception or None means UNKNOWN.
        Step 3: send the op, unless UNKNOWN. A failure is only logged: the check-back resolves it.

        Raises messages.Rejected for an invalid message, before anything is sent, and CheckbackError without a listener.
        """
        listener = self._listener
        if listener is None:
            raise no_listener()
        message = identified(message)
        transaction_id = message.transaction_id
        half = half_json(self._address.group, message, self._now_ms())
        # Step 1
        try:
            place = self._place(HALF, half, transaction_id)
        except GatewayError as error:
            return not_stored(transaction_id, error)
        # Step 2
        local_error: Exception | None = None
        try:
            state = state_of(listener.execute_local_transaction(message.stored_at(*place), arg), transaction_id)
        except Exception as error:  # noqa: BLE001 - as in RocketMQ: any error is resolved by the check-back
            state, local_error = failed(error, transaction_id, "execute_local_transaction"), error
        # Step 3
        op_error: GatewayError | None = None
        if state is not LocalTransactionState.UNKNOWN:
            try:
                op = op_json(self._address.group, transaction_id, *place, state.value, self._now_ms())
                self._post(SinglePost(OP, op, transaction_id))
            except GatewayError as error:
                op_error = error
        return stored(transaction_id, place, state, local_error, op_error)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _place(self, path: str, body: bytes, transaction_id: str) -> tuple[int, int]:
        """POST a half message or message; returns its (queue_id, queue_offset). Raises GatewayError."""
        post = SinglePost(path, body, transaction_id)
        self._post(post)
        return post.place()

    def _post(self, post: Post) -> None:
        """POST until a reply is final. Raises GatewayError."""
        url = self._address.url(post.path)
        attempts = Attempts(self._patience, self._timer())
        while True:
            timeout_s = attempts.timeout(self._timer())
            try:
                reply = self._send(post, timeout_s)
            except _LOST as error:
                wait = attempts.after_failure(self._timer())
                if wait is None:
                    raise GatewayError(describe(error, timeout_s), url, "check that the gateway runs") from error
            else:
                wait = post.after(reply, url, attempts, self._timer())
                if wait is None:
                    return
            self._sleep(wait)

    def _send(self, post: Post, timeout_s: float) -> GatewayReply:
        prepared = self._templates[post.path].copy()
        prepared.body = body = post.body()
        prepared.headers["Content-Length"] = str(len(body))
        total = Timeout(total=timeout_s)
        sent = self._adapter.send(prepared, stream=True, timeout=total)  # type: ignore[arg-type]  # requests takes urllib3's Timeout; its stubs do not
        response: BaseHTTPResponse = sent.raw
        try:
            content = _read(response, post.most)
        except BaseException:
            response.close()  # unread bytes would be taken for the next reply
            raise
        finally:
            response.release_conn()
        headers = response.headers
        return GatewayReply(response.status, content, headers.get("Content-Type", ""), headers.get("Retry-After"))


def _read(response: BaseHTTPResponse, most: int) -> bytes:
    body = b""
    while part := response.read(most + 1 - len(body), decode_content=False):
        body += part
        if len(body) > most:
            response.close()
            break
    return body
