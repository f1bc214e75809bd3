"""What the producers for threads and for asyncio share: all but the waiting."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from checkback import tracing
from checkback.errors import SettingsError
from checkback.messages.durations import seconds_of
from checkback.messages.trace_context import NO_CONTEXT, trace_of, traced
from checkback.producer.calls import OPS, Call, Op, Route, batches, send_results, unsent
from checkback.producer.connection import curl_options
from checkback.producer.gateway_address import addresses
from checkback.producer.listener import LocalTransactionState
from checkback.producer.message import Message, half_json, id_of, op_json
from checkback.producer.responses import GatewayError, Place
from checkback.producer.result import SendResult, TransactionSendResult, stored
from checkback.producer.retry import MOST_S, Attempts, RetryPolicy
from checkback.producer.senders import LATE_S, Senders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from datetime import timedelta

    from checkback.producer.senders import OnOpError

RETRY_POLICY = RetryPolicy()


class BaseProducer:
    """A producer group's messages on their way to the gateway. See TransactionProducer for the arguments."""

    def __init__(
        self,
        group: str,
        gateway_url: str | Sequence[str],
        wake: Callable[[Sequence[Call]], None],
        *,
        token: str | None,
        retry_policy: RetryPolicy,
        ca_file: str | None,
        connections: int,
        max_waiting_ops: int,
        on_op_error: OnOpError | None,
        clock: Callable[[], float],
        timer: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        for name, value in (("connections", connections), ("max_waiting_ops", max_waiting_ops)):
            if value < 1:
                raise SettingsError(f"{value} is not possible", name, "use 1 or more")
        self._group = group
        self._retry_policy = retry_policy
        self._total_s = retry_policy.total_timeout.total_seconds()
        self._clock, self._timer = clock, timer
        self._senders = Senders(
            addresses(group, gateway_url, token),
            curl_options(ca_file),
            retry_policy,
            wake,
            connections=connections,
            max_waiting_ops=max_waiting_ops,
            on_op_error=on_op_error,
            timer=timer,
            sleep=pause,
        )

    def _refuse_closed(self) -> None:
        if self._senders.closed:
            raise SettingsError("the producer was closed", self._group, "make a new one")

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)

    def _call(self, message: Message) -> Call:
        """One message. Raises MessageRejectedError."""
        transaction_id = id_of(message)
        json = half_json(self._group, message, transaction_id, self._now_ms())
        attempts, home = Attempts(self._retry_policy, self._timer()), self._senders.home_of(message)
        trace = tracing.current() if tracing.loaded() else trace_of(message.properties)
        return Call([(transaction_id, json)], attempts, home, trace)

    def _requests(self, messages: Iterable[Message], results: list[SendResult]) -> Iterator[Call]:
        """The requests of send_batch, each to be made before the next; what came of them is added to ``results``."""
        silent = False
        found: dict[int, SendResult] = {}
        for batch in batches(self._group, messages, self._now_ms(), self._senders.home_of):
            if silent:
                found.update(zip(batch.numbers, unsent(batch.messages), strict=True))
                continue
            trace = tracing.current() if tracing.loaded() else NO_CONTEXT
            call = Call(batch.messages, Attempts(self._retry_policy, self._timer()), batch.home, trace)
            yield call
            found.update(zip(batch.numbers, send_results(call), strict=True))
            silent = call.silent
        results += [found[number] for number in range(len(found))]

    def _end(
        self, half: Call, place: Place, state: LocalTransactionState, local_error: Exception | None
    ) -> TransactionSendResult:
        """Hand over the op, unless the state is UNKNOWN; the result of the transaction."""
        error: GatewayError | None = None
        ((transaction_id, _),) = half.messages
        if state is not LocalTransactionState.UNKNOWN:
            json = op_json(self._group, transaction_id, *place, state.value, self._now_ms())
            op = Op(transaction_id, json, Attempts(self._retry_policy, self._timer()), state, half.trace)
            op.gateway = half.gateway
            op.late = op.attempts.until - half.attempts.until >= LATE_S
            error = self._senders.hand_over(op)
        return stored(transaction_id, place, state, local_error, error)

    def _in_time(self, timeout: timedelta | None) -> float:
        """Seconds that flush and close may take."""
        return min(self._total_s if timeout is None else seconds_of("timeout", timeout), MOST_S)

    def _no_room(self) -> GatewayError:
        what = f"too many ops wait to be sent, for {self._total_s:g} s"
        return GatewayError(what, OPS.path, "send it later", refused=True)

    def _no_thread(self) -> GatewayError:
        what = f"no thread was free for its local transaction, for {self._total_s:g} s"
        return GatewayError(what, "threads", "send it later, or give the producer more", refused=True)

    def _closed(self, call: Call) -> None:
        """Give a call up because the producer is closed."""
        call.give_up(GatewayError("the producer is closed", "send", refused=not call.attempts.lost))

    def _too_late(self, route: Route, call: Call) -> None:
        """Give a call up whose time is over before its attempt has ended."""
        total_s = self._total_s
        if self._senders.withdraw(route, call):
            what, refused = f"not sent within {total_s:g} s: no gateway was free to take it", not call.attempts.lost
        else:
            what, refused = f"timed out after {total_s:g} s", False
        call.give_up(GatewayError(what, route.path, "check that the gateway runs", refused=refused))


def with_context(messages: Iterable[Message], context: Mapping[str, str]) -> list[Message]:
    """The messages with the trace context as properties, unless they have one; invalid ones as they are."""
    return [
        replace(message, properties=traced(dict(message.properties), context))
        if isinstance(message, Message) and isinstance(message.properties, dict)
        else message
        for message in messages
    ]


def one(call: Call) -> Place | GatewayError:
    """The result of a call with one message."""
    result = call.results[0]
    return GatewayError("no reply") if result is None else result
