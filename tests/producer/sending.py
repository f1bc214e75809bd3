"""One way to call both producers: what holds for the one holds for the other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from checkback.producer import (
    AsyncTransactionListener,
    AsyncTransactionProducer,
    CheckRequest,
    GatewayError,
    LocalTransactionState,
    Message,
    RetryPolicy,
    SendResult,
    TransactionListener,
    TransactionProducer,
    TransactionSendResult,
)

MESSAGE = Message(
    topic="payments",
    body=b"\x00amount 42\xff",
    tags="created",
    keys="4711",
    properties={"region": "eu"},
    check_immunity=timedelta(seconds=30),
    real_queue_id=2,
)
BORN = 1_795_227_064.579
#: attempts for which RetryPolicy has time: waits of 0, 0.2, 0.4, 0.8, 1.6 s, up to 0.4 s of jitter, and five of 2 s
TRIES = 11
Returned = object
Lost = list[tuple[str, LocalTransactionState, GatewayError]]
Local = Callable[[Message, Any], Any]


def message(number: int) -> Message:
    """One of several."""
    return Message("payments", b"%d" % number, transaction_id=f"t{number}")


class Listener(TransactionListener):
    """Says what ``local`` returns, and remembers the calls."""

    def __init__(self, local: Local) -> None:
        self.calls: list[tuple[Message, Any]] = []
        self.checks: list[CheckRequest] = []
        self._local = local

    def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        self.calls.append((message, arg))
        state: LocalTransactionState | None = self._local(message, arg)
        return state

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        self.checks.append(check)
        return LocalTransactionState.UNKNOWN


class AsyncListener(AsyncTransactionListener):
    """The same for asyncio."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def execute_local_transaction(self, message: Message, arg: Any) -> LocalTransactionState | None:
        await asyncio.sleep(0)
        return self._listener.execute_local_transaction(message, arg)

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        await asyncio.sleep(0)
        return self._listener.check_local_transaction(check)


@dataclass
class Sender:
    """Sends one message and ends; ``slept`` are the waits, its only time, ``lost`` the ops that did not land."""

    kind: str
    slept: list[float] = field(default_factory=list)
    lost: Lost = field(default_factory=list)

    def send(
        self,
        url: str,
        local: Local,
        message: Message = MESSAGE,
        arg: Any = None,
        *,
        group: str = "orders",
        token: str | None = None,
        retry_policy: RetryPolicy | None = None,
    ) -> tuple[TransactionSendResult, Listener]:
        """(the result, the listener)."""
        listener = Listener(local)
        options: dict[str, Any] = {"token": token, "clock": lambda: BORN, **self._time(retry_policy or RetryPolicy())}
        options["on_op_error"] = lambda *lost: self.lost.append(lost)
        if self.kind == "sync":
            with TransactionProducer(group, url, listener, sleep=self.slept.append, **options) as producer:
                return producer.send_in_transaction(message, arg), listener
        return asyncio.run(self._send(group, url, listener, message, arg, options)), listener

    async def _send(
        self, group: str, url: str, listener: Listener, message: Message, arg: Any, options: dict[str, Any]
    ) -> TransactionSendResult:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        own = AsyncListener(listener) if self.kind == "async" else listener
        async with AsyncTransactionProducer(
            group, url, own, sleep=sleep, pause=self.slept.append, **options
        ) as producer:
            return await producer.send_in_transaction(message, arg)

    def _time(self, retry_policy: RetryPolicy) -> dict[str, Any]:
        return {"retry_policy": retry_policy, "timer": lambda: sum(self.slept)}

    def send_batch(self, url: str, messages: Sequence[Message], *, token: str | None = None) -> list[SendResult]:
        """The results of messages without a transaction, sent by a producer without a listener."""
        if self.kind == "sync":
            with TransactionProducer(
                "orders", url, token=token, sleep=self.slept.append, **self._time(RetryPolicy())
            ) as producer:
                return producer.send_batch(messages) if len(messages) != 1 else [producer.send(messages[0])]
        return asyncio.run(self._send_batch(url, messages, token))

    async def _send_batch(self, url: str, messages: Sequence[Message], token: str | None) -> list[SendResult]:
        async def sleep(seconds: float) -> None:
            self.slept.append(seconds)

        options = self._time(RetryPolicy())
        async with AsyncTransactionProducer("orders", url, token=token, sleep=sleep, **options) as producer:
            return await producer.send_batch(messages) if len(messages) != 1 else [await producer.send(messages[0])]


#: "async, thread": a TransactionListener with AsyncTransactionProducer
SENDERS = ("sync", "async", "async, thread")
