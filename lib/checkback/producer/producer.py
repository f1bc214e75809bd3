"""TransactionProducer: RocketMQ's TransactionMQProducer, over HTTP."""

from __future__ import annotations

import time
from itertools import pairwise
from threading import Lock, current_thread, main_thread
from typing import TYPE_CHECKING, Any

from checkback import tracing
from checkback.errors import CheckbackError
from checkback.producer.accumulator import LOOK_S
from checkback.producer.base_producer import RETRY_POLICY, BaseProducer, one, with_context
from checkback.producer.calls import HALVES, MESSAGES, Call, Route, send_results
from checkback.producer.listener import AsyncTransactionListener, failed, no_listener, refuse_unfit, state_of
from checkback.producer.responses import GatewayError
from checkback.producer.result import SendResult, TransactionSendResult, not_stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import timedelta
    from types import TracebackType

    from checkback.producer.listener import TransactionListener
    from checkback.producer.message import Message
    from checkback.producer.retry import RetryPolicy
    from checkback.producer.senders import OnOpError


class TransactionProducer(BaseProducer):
    """Sends transactional messages for one producer group. Thread-safe: what its threads have is sent together.

    ``gateway_url``: ``http(s)://host:port`` of ``checkback gateway``, or those of several that write the same tables.
    One that fails is left alone until it answers again, and what it has not acknowledged is sent to another: a
    transaction may then have several half messages, see Barrier and docs/producer.md. ``token``: the group's, sent as
    ``Authorization: Bearer``; ``retry_policy``: timeouts and retries; ``ca_file``: PEM CA certificates for https (None:
    the system's); ``connections``: requests under way at a time with half messages, and as many with messages; ops have
    one of their own. One is fastest, except to a gateway far away or with large bodies: further ones split what is sent
    together. ``max_waiting_ops``: with so many ops not yet sent, further transactions wait before they begin.
    ``on_op_error(transaction_id, state, error)`` is called, in another thread, for each op that has not landed, or does
    not count because the transaction has been decided otherwise (``error.code`` is "contradiction"). Redirects are not
    followed; proxies and credentials from the environment are ignored. ``clock``: seconds since the epoch; ``timer``:
    monotonic seconds; ``sleep``: waits between attempts.

    Without a ``listener`` it only sends messages without a transaction.

    Raises SettingsError or MessageRejectedError for an invalid argument, CheckbackError for an unfit listener.
    """

    def __init__(
        self,
        group: str,
        gateway_url: str | Sequence[str],
        listener: TransactionListener | None = None,
        *,
        token: str | None = None,
        retry_policy: RetryPolicy = RETRY_POLICY,
        ca_file: str | None = None,
        connections: int = 1,
        max_waiting_ops: int = 10_000,
        on_op_error: OnOpError | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if isinstance(listener, AsyncTransactionListener):
            raise CheckbackError("is a listener for asyncio", "listener", "use AsyncTransactionProducer")
        if listener is not None:
            refuse_unfit(listener)
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
            pause=sleep,
        )
        self._listener = listener
        self._sleep = sleep

    def start(self) -> TransactionProducer:
        """Begin; the first message does so, too. Raises SettingsError after `close`. Returns itself."""
        self._refuse_closed()
        return self

    def __enter__(self) -> TransactionProducer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def flush(self, timeout: timedelta | None = None) -> bool:
        """Wait until each op of the transactions that have returned has landed, or was reported to ``on_op_error``.

        ``timeout``: None = the retry policy's total. False if that was not enough.
        """
        return self._senders.flush(self._in_time(timeout))

    def close(self, timeout: timedelta | None = None) -> None:
        """Flush, report the ops that have not landed to ``on_op_error``, and close the connections.

        Called in ``on_op_error`` it returns at once, and closes behind. It may be called again.
        """
        self._senders.close(self._in_time(timeout))

    def send(self, message: Message) -> SendResult:
        """Send a message without a transaction: it is committed as it is stored (RocketMQ: DefaultMQProducer.send).

        Idempotent by its transaction id. Raises MessageRejectedError for an invalid message, before anything is sent.
        """
        if tracing.loaded():
            with tracing.sending([message]) as context:
                return self._send(with_context([message], context)[0])
        return self._send(message)

    def _send(self, message: Message) -> SendResult:
        call = self._call(message)
        self._post(MESSAGES, call)
        return send_results(call)[0]

    def send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        """Send messages without a transaction, up to 1,000 or 4 MiB in one request; one result for each, in order.

        Each is stored or refused on its own; topics may differ, as may delays, which RocketMQ's batches must not have.
        After a request without an answer the rest is not sent. Raises MessageRejectedError for an invalid message,
        before anything is sent.
        """
        if not tracing.loaded():
            return self._send_batch(messages)
        given = list(messages)
        with tracing.sending(given) as context:
            return self._send_batch(with_context(given, context))

    def _send_batch(self, messages: Iterable[Message]) -> list[SendResult]:
        results: list[SendResult] = []
        for call in self._requests(messages, results):
            self._post(MESSAGES, call)
        return results

    def send_in_transaction(self, message: Message, arg: Any = None) -> TransactionSendResult:
        """Send a half message, run the local transaction, and hand over its op.

        As DefaultMQProducerImpl.sendMessageInTransaction:
        Step 1: send the half message. If it is not stored, the local transaction does not run, and the result has the
        error (``raise_for_status`` raises it).
        Step 2: run the listener's local transaction with ``arg``. An exception or None means UNKNOWN.
        Step 3: hand over the op, unless UNKNOWN. It is sent behind; if it does not land, ``on_op_error`` is told, and
        the check-back resolves the transaction.

        Raises MessageRejectedError for an invalid message, before anything is sent, and CheckbackError without a
        listener.
        """
        if tracing.loaded():
            with tracing.sending([message]) as context:
                return self._send_in_transaction(with_context([message], context)[0], arg)
        return self._send_in_transaction(message, arg)

    def _send_in_transaction(self, message: Message, arg: Any) -> TransactionSendResult:
        listener = self._listener
        if listener is None:
            raise no_listener()
        call = self._call(message)
        ((transaction_id, _),) = call.messages
        # Step 1
        outstanding = self._senders.outstanding
        if outstanding.full and not outstanding.wait_for_room(call.attempts.left(self._timer())):
            return not_stored(transaction_id, self._no_room())
        self._post(HALVES, call)
        place = one(call)
        if isinstance(place, GatewayError):
            return not_stored(transaction_id, place)
        # Step 2
        local_error: Exception | None = None
        try:
            returned = listener.execute_local_transaction(message.stored_at(*place, self._group, transaction_id), arg)
            state = state_of(returned, transaction_id, call.trace)
        except Exception as error:  # noqa: BLE001 - as in RocketMQ: any error is resolved by the check-back
            state, local_error = failed(error, transaction_id, "execute_local_transaction", call.trace), error
        # Step 3
        return self._end(call, place, state, local_error)

    def _post(self, route: Route, call: Call) -> None:
        """Make attempts until each message has its result."""
        while True:
            call.waiter = waiter = _Waiter()
            try:
                if not self._senders.add(route, call):
                    self._closed(call)
                    return
                with self._senders.waits(route):
                    in_time = waiter.wait(call.attempts.left(self._timer()))
            except BaseException:  # KeyboardInterrupt: it is not sent any more, if it is not too late
                waiter.give_up()
                self._senders.withdraw(route, call)
                raise
            if not in_time:
                self._too_late(route, call)
                return
            wait = call.after(self._timer())
            if wait is None:
                return
            self._sleep(wait)


class _Waiter:
    """A thread that waits for the end of its attempt, and wakes the next one of the same request.

    One after the other: threads that are woken all at once contend for the GIL, which costs as much as all else.
    The main thread wakes nobody: a signal's handler may keep it, and wait for a call of its own in the same request.
    """

    __slots__ = ("_ended", "_turn", "alone", "behind")

    def __init__(self) -> None:
        self.alone = current_thread() is main_thread()
        self._ended = Lock()
        self._ended.acquire()
        #: the one that it wakes
        self.behind: _Waiter | None = None
        #: Whoever takes its element decides: it is woken, or has given up. list.pop is atomic.
        self._turn = [True]

    def wait(self, timeout_s: float) -> bool:
        """Wait; False if the attempt has not ended in time.

        A signal that another thread gets, or this one just before it waits for the lock, does not end the waiting:
        Ctrl-C is raised at the next look.
        """
        until = time.monotonic() + timeout_s
        while not self._ended.acquire(timeout=min(timeout_s, LOOK_S)):
            timeout_s = until - time.monotonic()
            if timeout_s <= 0:
                return not self.give_up()
        if self.behind is not None:
            self.behind.wake()
        return True

    def give_up(self) -> bool:
        """Wait no more; False if it was woken before: then the next one is woken now."""
        if self._take_turn():
            return True
        if self.behind is not None:
            self.behind.wake()
        return False

    def wake(self) -> None:
        """Wake it, or the first one behind it that has not given up."""
        waiter: _Waiter | None = self
        while waiter is not None:
            if waiter._take_turn():
                waiter._ended.release()
                return
            waiter = waiter.behind

    def _take_turn(self) -> bool:
        try:
            return self._turn.pop()
        except IndexError:
            return False


def _wake(calls: Sequence[Call]) -> None:
    waiters: list[_Waiter] = []
    for waiter in [call.waiter for call in calls]:
        if waiter.alone:
            waiter.wake()
        else:
            waiters.append(waiter)
    for waiter, behind in pairwise(waiters):
        waiter.behind = behind
    if waiters:
        waiters[0].wake()
