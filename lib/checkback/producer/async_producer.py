"""AsyncTransactionProducer: TransactionProducer for asyncio, with httpx."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError
from checkback.producer.gateway_address import HALF, MESSAGE, OP, Address, certificates
from checkback.producer.listener import (
    AsyncTransactionListener,
    LocalTransactionState,
    TransactionListener,
    failed,
    no_listener,
    state_of,
)
from checkback.producer.message import Message, half_json, identified, op_json
from checkback.producer.posts import BatchPost, Post, SinglePost, batches, unsent
from checkback.producer.request_errors import describe
from checkback.producer.responses import GatewayError, GatewayReply
from checkback.producer.result import SendResult, TransactionSendResult, not_sent, not_stored, sent, stored
from checkback.producer.retry import Attempts, Patience

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from types import TracebackType

    import httpx

_PATIENCE = Patience()


class AsyncTransactionProducer:
    """TransactionProducer for asyncio: the same arguments and results; needs httpx (``checkback[producer]``).

    ``listener``: an AsyncTransactionListener, which runs in the event loop, or a TransactionListener, whose methods
    run in a thread. A cancelled task sends no op: the check-back resolves the transaction.
    """

    def __init__(
        self,
        group: str,
        gateway_url: str,
        listener: AsyncTransactionListener | TransactionListener | None = None,
        *,
        token: str | None = None,
        patience: Patience = _PATIENCE,
        ca_file: str | None = None,
        connections: int = 32,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        try:
            import httpx
        except ImportError as error:
            raise CheckbackError("httpx is not installed", "", "pip install 'checkback[producer]'") from error
        self._address = Address(group, gateway_url, token)
        try:
            httpx.URL(gateway_url)
        except httpx.InvalidURL:
            raise SettingsError("is not a gateway's URL", "gateway_url", "write http(s)://host[:port][/path]") from None
        self._listener = listener
        self._patience = patience
        self._clock, self._timer, self._sleep = clock, timer, sleep
        self._lost = (httpx.HTTPError, httpx.StreamError, asyncio.TimeoutError, OSError, UnicodeError)
        certified = certificates(ca_file)

        def client() -> httpx.AsyncClient:
            return httpx.AsyncClient(
                headers=self._address.headers(),
                verify=certified,
                timeout=patience.timeout_s,
                limits=httpx.Limits(max_connections=1),
                follow_redirects=False,
                trust_env=False,
            )

        # One client for each connection, most recently used first: httpx's pool scans all its connections several
        # times a request, which at 64 connections costs more than everything else.
        self._client = client
        self._clients: list[httpx.AsyncClient] = []
        self._connections = asyncio.Semaphore(connections)

    async def __aenter__(self) -> AsyncTransactionProducer:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the keep-alive connections."""
        for client in self._clients:
            await client.aclose()

    async def send(self, message: Message) -> SendResult:
        """Send a message without a transaction: it is committed as it is stored (RocketMQ: DefaultMQProducer.send).

        Idempotent by its transaction id. Raises messages.Rejected for an invalid message, before anything is sent.
        """
        message = identified(message)
        body = half_json(self._address.group, message, self._now_ms())
        try:
            place = await self._place(MESSAGE, body, message.transaction_id)
        except GatewayError as error:
            return not_sent(message.transaction_id, error)
        return sent(message.transaction_id, place)

    async def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
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
                await self._post(post)
                results += post.results()
            except GatewayError as error:
                results += post.results(error)
                silent = error.status is None
        return results

    async def send_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """See TransactionProducer.send_in_transaction; the steps are the same."""
        listener = self._listener
        if listener is None:
            raise no_listener()
        message = identified(message)
        transaction_id = message.transaction_id
        half = half_json(self._address.group, message, self._now_ms())
        # Step 1
        try:
            place = await self._place(HALF, half, transaction_id)
        except GatewayError as error:
            return not_stored(transaction_id, error)
        # Step 2
        local_error: Exception | None = None
        try:
            state = state_of(await _execute(listener, message.stored_at(*place), arg), transaction_id)
        except Exception as error:  # noqa: BLE001 - as in RocketMQ: any error is resolved by the check-back
            state, local_error = failed(error, transaction_id, "execute_local_transaction"), error
        # Step 3
        op_error: GatewayError | None = None
        if state is not LocalTransactionState.UNKNOWN:
            try:
                op = op_json(self._address.group, transaction_id, *place, state.value, self._now_ms())
                await self._post(SinglePost(OP, op, transaction_id))
            except GatewayError as error:
                op_error = error
        return stored(transaction_id, place, state, local_error, op_error)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    async def _place(self, path: str, body: bytes, transaction_id: str) -> tuple[int, int]:
        """POST a half message or message; returns its (queue_id, queue_offset). Raises GatewayError."""
        post = SinglePost(path, body, transaction_id)
        await self._post(post)
        return post.place()

    async def _post(self, post: Post) -> None:
        """POST until a reply is final. Raises GatewayError."""
        url = self._address.url(post.path)
        attempts = Attempts(self._patience, self._timer())
        while True:
            timeout_s = self._patience.timeout_s
            try:
                async with self._connections:
                    timeout_s = attempts.timeout(self._timer())
                    reply = await asyncio.wait_for(self._send(post), timeout_s)
            except self._lost as error:
                wait = attempts.after_failure(self._timer())
                if wait is None:
                    raise GatewayError(describe(error, timeout_s), url, "check that the gateway runs") from error
            else:
                wait = post.after(reply, url, attempts, self._timer())
                if wait is None:
                    return
            await self._sleep(wait)

    async def _send(self, post: Post) -> GatewayReply:
        client = self._clients.pop() if self._clients else self._client()
        try:
            async with client.stream("POST", self._address.url(post.path), content=post.body()) as response:
                content = b""
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > post.most:
                        break
                headers = response.headers
                return GatewayReply(
                    response.status_code, content, headers.get("Content-Type", ""), headers.get("Retry-After")
                )
        finally:
            self._clients.append(client)


async def _execute(
    listener: AsyncTransactionListener | TransactionListener, message: Message, arg: Any
) -> LocalTransactionState | None:
    if isinstance(listener, AsyncTransactionListener):
        return await listener.execute_local_transaction(message, arg)
    return await asyncio.to_thread(listener.execute_local_transaction, message, arg)
