"""AsyncTransactionProducer: TransactionProducer for asyncio."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from checkback import tracing
from checkback.producer.base_producer import RETRY_POLICY, BaseProducer, one, with_context
from checkback.producer.calls import HALVES, MESSAGES, Call, Route, send_results
from checkback.producer.daemon_threads import DaemonThreads, Deadlines, Outcome, ReservedThread, resolve
from checkback.producer.listener import (
    AsyncTransactionListener,
    TransactionListener,
    failed,
    no_listener,
    refuse_unfit,
    state_of,
)
from checkback.producer.responses import GatewayError
from checkback.producer.result import SendResult, TransactionSendResult, not_stored

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from checkback.producer.message import Message
    from checkback.producer.retry import RetryPolicy
    from checkback.producer.senders import OnOpError

_ROOM_S = 0.01


class AsyncTransactionProducer(BaseProducer):
    """TransactionProducer for asyncio: the same arguments and results. Threads send together what its tasks have.

    ``listener``: an AsyncTransactionListener, which runs in the event loop, or a TransactionListener, whose local
    transactions run in threads. ``threads`` bounds those under way: a transaction waits for its thread before its half
    message is sent, within its deadline. A cancelled task hands over no op: the check-back resolves the transaction.
    ``sleep`` waits between attempts of messages, ``pause`` between those of ops, in their thread.
    """

    def __init__(
        self,
        group: str,
        gateway_url: str | Sequence[str],
        listener: AsyncTransactionListener | TransactionListener | None = None,
        *,
        token: str | None = None,
        retry_policy: RetryPolicy = RETRY_POLICY,
        ca_file: str | None = None,
        connections: int = 1,
        max_waiting_ops: int = 10_000,
        threads: int = 32,
        on_op_error: OnOpError | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        if listener is not None:
            refuse_unfit(listener)
        self._threads = DaemonThreads(threads, "checkback-local-transaction")
        super().__init__(
            group,
            gateway_url,
            _wake,
            token=token,
            retry_policy=retry_policy,
            ca_file=ca_file,
            connections=connections,
            max_waiting_ops=max_waiting_ops,
            on_op_error=on_op_error,
            clock=clock,
            timer=timer,
            pause=pause,
        )
        self._listener = listener
        self._sleep = sleep
        #: of the loop that was used last
        self._deadlines: Deadlines | None = None
        # As many as are called: their timeouts count from the call.
        self._endings = DaemonThreads(sys.maxsize, "checkback-flush")

    async def start(self) -> AsyncTransactionProducer:
        """See TransactionProducer.start."""
        self._refuse_closed()
        return self

    async def __aenter__(self) -> AsyncTransactionProducer:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def flush(self, timeout: timedelta | None = None) -> bool:
        """See TransactionProducer.flush."""
        flushed = await self._endings.run(partial(self._senders.flush, self._in_time(timeout)))
        return flushed.value()

    async def close(self, timeout: timedelta | None = None) -> None:
        """See TransactionProducer.close."""
        closed = await self._endings.run(partial(self._senders.close, self._in_time(timeout)))
        closed.value()

    async def send(self, message: Message) -> SendResult:
        """See TransactionProducer.send."""
        if tracing.loaded():
            with tracing.sending([message]) as context:
                return await self._send(with_context([message], context)[0])
        return await self._send(message)

    async def _send(self, message: Message) -> SendResult:
        call = self._call(message)
        await self._post(MESSAGES, call)
        return send_results(call)[0]

    async def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        """See TransactionProducer.send_batch."""
        if not tracing.loaded():
            return await self._send_batch(messages)
        given = list(messages)
        with tracing.sending(given) as context:
            return await self._send_batch(with_context(given, context))

    async def _send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        results: list[SendResult] = []
        for call in self._requests(messages, results):
            await self._post(MESSAGES, call)
        return results

    async def send_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """See TransactionProducer.send_in_transaction; the steps are the same."""
        if tracing.loaded():
            with tracing.sending([message]) as context:
                return await self._send_in_transaction(with_context([message], context)[0], arg)
        return await self._send_in_transaction(message, arg)

    async def _send_in_transaction(self, message: Message, arg: Any) -> TransactionSendResult:
        listener = self._listener
        if listener is None:
            raise no_listener()
        call = self._call(message)
        if isinstance(listener, AsyncTransactionListener):
            awaited = listener.execute_local_transaction

            async def execute(stored: Message) -> Outcome[object]:
                return Outcome(await awaited(stored, arg), None)

            return await self._in_transaction(message, call, execute)
        blocking = listener.execute_local_transaction
        thread: ReservedThread[object] = ReservedThread(self._threads)
        try:
            if not await self._resolved(thread.free, call):
                return not_stored(call.messages[0][0], self._no_thread())
            return await self._in_transaction(message, call, lambda stored: thread.run(partial(blocking, stored, arg)))
        finally:
            thread.release()

    async def _in_transaction(
        self, message: Message, call: Call, execute: Callable[[Message], Awaitable[Outcome[object]]]
    ) -> TransactionSendResult:
        ((transaction_id, _),) = call.messages
        # Step 1
        while self._senders.outstanding.full:
            if self._timer() >= call.attempts.until:
                return not_stored(transaction_id, self._no_room())
            await asyncio.sleep(_ROOM_S)
        await self._post(HALVES, call)
        place = one(call)
        if isinstance(place, GatewayError):
            return not_stored(transaction_id, place)
        # Step 2
        local_error: Exception | None = None
        try:
            executed = await execute(message.stored_at(*place, self._group, transaction_id))
            state = state_of(executed.value(), transaction_id, call.trace)
        except Exception as error:  # noqa: BLE001 - as in RocketMQ: any error is resolved by the check-back
            state, local_error = failed(error, transaction_id, "execute_local_transaction", call.trace), error
        # Step 3
        return self._end(call, place, state, local_error)

    async def _post(self, route: Route, call: Call) -> None:
        """Make attempts until each message has its result."""
        loop = asyncio.get_running_loop()
        while True:
            call.waiter = ended = loop.create_future()
            if not self._senders.add(route, call):
                self._closed(call)
                return
            try:
                answered = await self._resolved(ended, call)
            except BaseException:  # cancelled: it is not sent any more, if it is not too late
                self._senders.withdraw(route, call)
                raise
            if not answered:
                self._too_late(route, call)
                return
            wait = call.after(self._timer())
            if wait is None:
                return
            await self._sleep(wait)

    async def _resolved(self, future: asyncio.Future[bool], call: Call) -> bool:
        """Wait for the future; False if the call's time is over before."""
        deadlines, loop = self._deadlines, future.get_loop()
        if deadlines is None or deadlines.loop is not loop:
            self._deadlines = deadlines = Deadlines(loop)
        deadlines.add(future, call.attempts.left(self._timer()))
        try:
            return await future
        finally:
            deadlines.remove(future)


def _wake(calls: Sequence[Call]) -> None:
    """In the sender's thread: one call into each loop, however many wait there."""
    waiting: dict[asyncio.AbstractEventLoop, list[asyncio.Future[bool]]] = {}
    for call in calls:
        waiting.setdefault(call.waiter.get_loop(), []).append(call.waiter)
    for loop, futures in waiting.items():
        with suppress(RuntimeError):  # the loop is closed, and with it those who waited
            loop.call_soon_threadsafe(resolve, futures, True)
