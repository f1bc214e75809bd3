"""The threads that send what callers have: one for half messages, one for messages, one for ops.

Each sends what has accumulated while it sent the request before. The threads begin with the first call, and end with
`Senders.close`, or with the interpreter: what still waits then is sent within a bound, and the rest is reported. A
forked child has threads, connections and calls of its own: what the parent had waiting is the parent's.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from contextlib import nullcontext, suppress
from http import HTTPStatus
from operator import attrgetter
from typing import TYPE_CHECKING, Generic

from checkback import tracing
from checkback.errors import CheckbackError
from checkback.messages.trace_context import NO_CONTEXT, in_trace
from checkback.producer.accumulator import Accumulator, C, Outstanding
from checkback.producer.calls import HALVES, MESSAGES, OPS, Call, NoReply, Op, Route, distribute, request_body
from checkback.producer.connection import Connection
from checkback.producer.gateway_address import PROBE, PROBE_S, Gateway
from checkback.producer.listener import logger
from checkback.producer.message import queue_of
from checkback.producer.responses import TRY_AGAIN, GatewayError, GatewayReply, may_have_landed
from checkback.producer.retry import Attempts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Any

    from checkback.producer.gateway_address import Address
    from checkback.producer.listener import LocalTransactionState
    from checkback.producer.message import Message
    from checkback.producer.retry import RetryPolicy

    #: is told of an op that has not landed: transaction id, COMMIT or ROLLBACK, why
    OnOpError = Callable[[str, LocalTransactionState, GatewayError], None]

#: most seconds that the end of the interpreter waits for what is not sent
_EXIT_S = 5.0
#: seconds for which ops gather: nobody waits for them, and a request has a cost, whatever it carries
_LINGER_S = 0.005
#: seconds between two looks at a gateway that is left alone
_MOMENT_S = 0.1
#: An op that is handed over so long (s) after its half message was, may land after a check has decided otherwise: the
#: first check is due after transaction.timeout (6 s), or after the message's own check_immunity.
LATE_S = 1.0
#: It is sent again after one to two times this (s): by then the gateway has read what it may contradict.
AGAIN_S = 15.0
#: refusals of a whole request that may be meant for one of its messages: malformed, too large, unfit
_OF_ONE = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY})
_until = attrgetter("until")
_NO_SPAN = nullcontext(NO_CONTEXT)
_CLOSED = GatewayError("the producer is closed", fix="the check-back resolves it", refused=True)


class _Sender(Generic[C]):
    """Threads that send what accumulates for one route: one for each connection.

    ``ended``: is called with the calls of a request. ``paused``: now and then, while a gateway is left alone.
    ``linger_s``: see `Accumulator`.
    """

    def __init__(
        self,
        route: Route,
        connections: Sequence[tuple[Gateway, Connection]],
        send: Callable[[Route, Gateway, Connection, Sequence[Call]], None],
        ended: Callable[[Sequence[C]], None],
        paused: Callable[[], None] | None = None,
        linger_s: float = 0.0,
    ) -> None:
        self.route = route
        self.connections = connections
        self._send, self._ended, self._paused = send, ended, paused
        self._linger_s = linger_s
        self.begin()

    def begin(self) -> None:
        """Start over, without calls and threads."""
        self.waiting: Accumulator[C] = Accumulator(self._linger_s)
        self._threads: list[threading.Thread] = []
        #: Those that no thread has. Each takes its own: whoever starts it may be interrupted before it knows.
        self._idle = list(self.connections)
        self._starting = threading.RLock()  # as in `Accumulator`

    def add(self, call: C) -> bool:
        """Have a call sent; False if the sender is closed."""
        if self._idle:
            self._start()
        return self.waiting.add(call)

    def join(self, until: float) -> None:
        """Wait for the threads' end, until then (monotonic s)."""
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def is_here(self) -> bool:
        """Is this one of its threads?"""
        return threading.current_thread() in self._threads

    def _start(self) -> None:
        with self._starting:
            if not self._threads:
                _end_with_the_process()
            for _ in range(len(self._idle)):  # one may have failed to start before
                name = f"checkback{self.route.path.replace('/', '-')}"
                try:
                    threading.Thread(target=self._run, name=name, daemon=True).start()
                except RuntimeError as error:  # no memory, or the interpreter ends
                    raise CheckbackError(f"no thread can be started: {error}", "producer") from error

    def _run(self) -> None:
        try:
            gateway, connection = self._idle.pop(0)
        except IndexError:
            return
        self._threads.append(threading.current_thread())
        waiting = self.waiting
        try:
            while True:
                if gateway.is_left_alone():
                    if self._wait(waiting, gateway, connection):
                        return
                elif not (calls := waiting.take(gateway.url)):
                    return
                else:
                    try:
                        if gateway.is_left_alone():  # since then
                            waiting.put_back(calls)
                        else:
                            self._send(self.route, gateway, connection, calls)
                            self._end(calls)
                    finally:
                        waiting.done()
        finally:
            connection.close()

    def _end(self, calls: Sequence[C]) -> None:
        try:
            self._ended(calls)
        except BaseException as error:  # noqa: BLE001 - a caller's sleep or clock; the thread must go on
            logger.error("the end of a request failed: %s", type(error).__name__, exc_info=error)

    def _wait(self, waiting: Accumulator[C], gateway: Gateway, connection: Connection) -> bool:
        """Leave a gateway alone for a moment, or probe it; True: there is nothing to send any more."""
        waiting.free(gateway.url)  # others have its calls
        if self._paused is not None:
            self._paused()
        turn = gateway.probe_due()
        if turn is None:
            return waiting.finished(_MOMENT_S)
        if connection.answers(PROBE, PROBE_S):
            gateway.answered(turn)
        else:
            gateway.failed(turn)
        return False


class Senders:
    """Sends calls of one producer, to any of its gateways that answers.

    ``wake``: tells the callers of these calls that their attempt has ended; ``sleep``: waits between attempts of ops;
    ``on_op_error``: is told, in the sender's thread, of each op that has not landed; ``max_waiting_ops``: more than
    that wait at most, by as many as there are callers.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        curl_options: Mapping[int, Any],
        retry_policy: RetryPolicy,
        wake: Callable[[Sequence[Call]], None],
        *,
        connections: int,
        max_waiting_ops: int,
        on_op_error: OnOpError | None,
        timer: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        self._retry_policy = retry_policy
        self._timer, self._sleep = timer, sleep
        self._on_op_error = on_op_error
        self._max_waiting_ops = max_waiting_ops
        self.outstanding = Outstanding(max_waiting_ops)
        gateways = [Gateway(address, only=len(addresses) == 1, timer=timer) for address in addresses]
        self._gateways = {gateway.url: gateway for gateway in gateways}
        self._urls = list(self._gateways)

        def connected(number: int) -> list[tuple[Gateway, Connection]]:
            return [(each, Connection(each.address, curl_options)) for _ in range(number) for each in gateways]

        self._calls = {
            HALVES: _Sender[Call](HALVES, connected(connections), self._send, wake),
            MESSAGES: _Sender[Call](MESSAGES, connected(connections), self._send, wake),
        }
        self._ops = _Sender[Op](OPS, connected(1), self._send, self._ops_ended, self._ops_paused, _LINGER_S)
        self._all: tuple[_Sender[Any], ...] = (*self._calls.values(), self._ops)
        self._closes_behind = False
        self._none_late()
        _RUNNING.add(self)

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def add(self, route: Route, call: Call) -> bool:
        """Have an attempt made; False if the producer is closed."""
        self._prefer(call, call.home)
        return self._calls[route].add(call)

    def home_of(self, message: Message) -> str | None:
        """The gateway of a message in order: that of its topic's queue, so that one half queue has them all."""
        queue = queue_of(message) if len(self._urls) > 1 else None
        return None if queue is None else self._urls[queue % len(self._urls)]

    def _prefer(self, call: Call, url: str | None) -> None:
        gateway = None if url is None else self._gateways.get(url)
        if gateway is not None and not gateway.only and not gateway.is_left_alone():
            call.preferred = url

    def withdraw(self, route: Route, call: Call) -> bool:
        """Take back a call; False if its attempt has begun."""
        return self._calls[route].waiting.withdraw(call)

    def hand_over(self, op: Op) -> GatewayError | None:
        """Have an op sent, after those that were handed over before; the error if the producer is closed."""
        self._prefer(op, op.gateway)  # it has the half message, others would look it up
        try:
            with self.outstanding.lock:  # whom a signal interrupts in between is seen to hold it
                self.outstanding.add(op)
                if self._ops.add(op):
                    return None
            error = _CLOSED
        except CheckbackError as failed:
            error = GatewayError(failed.what, failed.where, refused=True)
        except BaseException:  # KeyboardInterrupt: nobody may wait for what is perhaps not sent
            self.outstanding.told(self.outstanding.settle([op]))
            raise
        self._tell([(one, error) for one in self.outstanding.settle([op])])
        return error

    def _none_late(self) -> None:
        self._closed = False
        self._asking = threading.Lock()
        #: ops that have landed, and are sent again at the next turn, or at the one after it
        self._late: tuple[list[Op], list[Op]] = [], []
        self._turn: threading.Timer | None = None

    def _landed_late(self, ops: Sequence[Op]) -> None:
        """Have ops sent again, as many as may wait: the gateway then tells which do not count."""
        with self._asking:
            self._late[1].extend(ops[: self._max_waiting_ops - len(self._late[1])])
            if any(self._late) and self._turn is None and not self._closed:
                self._turn = threading.Timer(AGAIN_S, self._ask_again)
                self._turn.name, self._turn.daemon = "checkback-ops-again", True
                with suppress(RuntimeError):  # the interpreter ends
                    self._turn.start()

    def _ask_again(self) -> None:
        with self._asking:
            (due, later), self._turn = self._late, None
            self._late = later, []
        self._landed_late(())
        for op in due:
            again = Op(
                op.transaction_id, op.messages[0][1], Attempts(self._retry_policy, self._timer()), op.state, op.trace
            )
            again.gateway, again.again = op.gateway, True
            self.hand_over(again)

    def waits(self, route: Route) -> AbstractContextManager[None]:
        """While the caller waits for the end of an attempt: what it holds others must have."""
        return self._calls[route].waiting.let_go()

    def flush(self, timeout_s: float) -> bool:
        """Wait until every op that was handed over has its last word; False if one still has not.

        So at once in a signal's handler that has interrupted who hands one over.
        """
        if self.outstanding.is_held or self._ops.waiting.is_held:
            return False
        self._ops.waiting.hurry()
        return self.outstanding.flush(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Send what waits, then end the threads. What is not sent in time is reported, and left to the check-back.

        ``on_op_error`` may close the producer: in the thread that sends what waits, which therefore is not waited for;
        and so may a signal's handler, in a thread that holds what others must have to go on.
        """
        self._closed = True
        if self._turn is not None:
            self._turn.cancel()
        for sender in self._all:
            sender.waiting.close()
        if self._ops.is_here() or self.outstanding.is_held or any(sender.waiting.is_held for sender in self._all):
            if not self._closes_behind:
                self._closes_behind = True
                with suppress(RuntimeError):  # the interpreter ends, and closes it
                    threading.Thread(target=self.close, args=(timeout_s,), name="checkback-close", daemon=True).start()
            return
        until = time.monotonic() + timeout_s
        try:
            self.outstanding.flush(timeout_s)
        finally:
            self._ops.waiting.close(discard=True)
            self._tell([(op, _late(op)) for op in self.outstanding.abandon()])
        for sender in self._all:
            sender.join(until)
        _RUNNING.discard(self)

    def forked(self) -> None:
        """In the child of a fork: start over."""
        self.outstanding = Outstanding(self._max_waiting_ops)
        self._closes_behind = False
        self._none_late()
        for sender in self._all:
            sender.begin()
        for gateway in self._gateways.values():
            gateway.begin()
        # Last: what fails here must not leave the child the parent's calls; an error in it would be dropped.
        for sender in self._all:
            for _, connection in sender.connections:
                connection.forked()

    def _send(self, route: Route, gateway: Gateway, connection: Connection, calls: Sequence[Call]) -> None:
        """Make an attempt. Whatever fails, every call gets to know it.

        A request that is refused for one call's sake, or its size, is sent again in halves: the others are not.
        """
        reply: NoReply | GatewayReply
        try:
            last = max([call.attempts for call in calls], key=_until)
            left = min(self._retry_policy.timeout.total_seconds(), last.left(self._timer()))
            span = tracing.requesting(route.path, [call.trace for call in calls]) if tracing.loaded() else _NO_SPAN
            with span as context:
                reply = connection.post(route.path, request_body(route, calls), left, context)
        except Exception as error:  # noqa: BLE001 - else callers would wait, and the thread would be gone
            logger.error("a request failed: %s", type(error).__name__, exc_info=error)
            reply = NoReply(f"failed: {type(error).__name__}")
        if len(calls) > 1 and isinstance(reply, GatewayReply) and reply.status in _OF_ONE:
            for part in (calls[: len(calls) // 2], calls[len(calls) // 2 :]):
                self._send(route, gateway, connection, part)
            return
        unsure = not_stored = False
        if isinstance(reply, NoReply):
            unsure, not_stored = reply.sent, not reply.sent
        elif reply.status in TRY_AGAIN:
            unsure = may_have_landed(reply)
            not_stored = not unsure and not reply.resent
        if (unsure or not_stored) and not gateway.only:
            gateway.failed()
            for sender in self._all:
                sender.waiting.free(gateway.url)
        for call in calls:
            call.gateway, call.preferred = gateway.url, None
            # Nobody is asked about a message without a transaction: stored at a second gateway, it would come twice.
            if route is MESSAGES and not (not_stored or gateway.only):
                call.pinned = gateway.url
        if not distribute(calls, gateway.url + route.path, reply):
            connection.close()

    def _ops_ended(self, ops: Sequence[Op]) -> None:
        """Put back those that are sent again; report those that have not landed."""
        again: list[Op] = []
        ended: list[Op] = []
        wait = 0.0
        for op in ops:
            try:
                after = op.after(self._timer())
            except Exception as error:  # noqa: BLE001 - else it would count as outstanding for ever
                logger.error("the end of an op failed: %s", type(error).__name__, exc_info=error)
                op.give_up(GatewayError(f"failed: {type(error).__name__}", OPS.path))
                after = None
            if after is None:
                ended.append(op)
            else:
                again.append(op)
                wait = max(wait, after)
        if again := self.outstanding.among(again):
            self._ops.waiting.put_back(again)
        settled = self.outstanding.settle(ended)
        self._landed_late([op for op in settled if op.late and op.error is None])
        self._tell([(op, op.error) for op in settled])
        if again:
            self._sleep(wait)

    def _ops_paused(self) -> None:
        """While a gateway is left alone no op waits longer than it may."""
        late = self.outstanding.settle(self._ops.waiting.expired(self._timer()))
        error = GatewayError("no gateway has answered", OPS.path, "check that the gateways run")
        self._tell([(op, error) for op in late])

    def _tell(self, settled: Sequence[tuple[Op, GatewayError | None]]) -> None:
        """Tell of those that have an error; all of them are told then."""
        try:
            self._tell_errors([(op, error) for op, error in settled if error is not None and _tells(op, error)])
        finally:
            self.outstanding.told(op for op, _ in settled)

    def _tell_errors(self, failed: Sequence[tuple[Op, GatewayError]]) -> None:
        for op, error in failed:
            what = op.transaction_id, op.state.value, error
            logger.warning("transaction %s: %s did not land: %s", *what, extra=in_trace(op.trace))
            if self._on_op_error is None:
                continue
            try:
                self._on_op_error(op.transaction_id, op.state, error)
            except BaseException as raised:  # the caller's code; the ops behind must still be sent
                logger.error("on_op_error raised %s", type(raised).__name__, exc_info=raised)
                # sys.exit would end the thread of the ops, and nothing else; in the caller's own it is the caller's
                if not (isinstance(raised, Exception) or self._ops.is_here()):
                    raise


def _tells(op: Op, error: GatewayError) -> bool:
    """Is the caller told of it? An op that is sent again has landed."""
    return not op.again or error.code == "contradiction"


def _late(op: Op) -> GatewayError:
    what = "no answer came" if op.taken else "it was not sent"
    return GatewayError(f"{what} before the producer was closed", fix="the check-back resolves it")


_RUNNING: set[Senders] = set()


def _forked() -> None:
    for senders in _RUNNING:
        senders.forked()


def _at_exit() -> None:
    until = time.monotonic() + _EXIT_S
    for senders in list(_RUNNING):
        senders.close(max(0.0, until - time.monotonic()))


def _end_with_the_process() -> None:
    """Send what waits also at the end of a process of multiprocessing, which runs no atexit functions."""
    if "multiprocessing.util" in sys.modules:
        sys.modules["multiprocessing.util"].Finalize(None, _at_exit, exitpriority=100)


os.register_at_fork(after_in_child=_forked)
atexit.register(_at_exit)
