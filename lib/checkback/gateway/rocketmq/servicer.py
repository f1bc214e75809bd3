"""The calls of RocketMQ's interface: each translates, and the gateway's own service stores."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import defaultdict
from functools import partial
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from checkback.gateway.half_messages import is_other_content
from checkback.gateway.health import now_ms
from checkback.gateway.problems import Problem
from checkback.gateway.rocketmq.codes import STATE_OF, Code, Refusal, refusal_of
from checkback.gateway.rocketmq.interface import SERVICE, message, parser, serialized
from checkback.gateway.rocketmq.messages import RefusedError, halves_of, refuse_topic
from checkback.gateway.rocketmq.replies import answered, route, status_of
from checkback.gateway.rocketmq.shares import Shares
from checkback.gateway.rocketmq.telemetry import Telemetry
from checkback.gateway.rocketmq.transaction_ids import Half, apart, sent_as
from checkback.messages.fields import MessageRejectedError, message_of
from checkback.messages.names import is_group
from checkback.messages.op import Op, OpMessage, op_of
from checkback.urls import CHECKS_OF_CLIENTS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Collection

    from checkback.gateway.authentication import Groups
    from checkback.gateway.metrics import Metrics
    from checkback.gateway.problems import Answer
    from checkback.gateway.rocketmq.authentication import Caller, Credentials
    from checkback.gateway.rocketmq.checks import CheckBridge
    from checkback.gateway.rocketmq.streams import Streams
    from checkback.gateway.rocketmq.transaction_ids import TransactionIds
    from checkback.gateway.service import GatewayService
    from checkback.messages.half import Half as StoredHalf

    Call = Callable[[Any, Caller], Awaitable[Any]]

#: so long (s) a call waits for room to receive its request
PLACE_S = 1.0
#: groups of which is warned
_WARNED_MAX = 100
#: what consumers call: they read the topic's table
_CONSUMERS = (
    "QueryAssignment",
    "AckMessage",
    "ForwardMessageToDeadLetterQueue",
    "ChangeInvisibleDuration",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "QueryOffset",
    "SyncLiteSubscription",
)
_NOT_SERVED = Refusal(Code.UNSUPPORTED, "not served: consumers read the topic's table")
_log = logging.getLogger("checkback.gateway")


class MessagingService:
    """The handlers of the calls."""

    def __init__(
        self,
        service: GatewayService,
        metrics: Metrics,
        credentials: Credentials,
        ids: TransactionIds,
        streams: Streams,
        bridge: CheckBridge,
        group_of: Callable[[str], str],
        max_streams: int,
        max_receiving: int,
        timeout_s: float,
        asked_here: Collection[str],
    ) -> None:
        """``group_of``: a topic's producer group. ``max_streams``: of all clients, and as many calls.

        ``max_receiving``: calls of one token whose requests are being received. ``timeout_s``: to read a request, and a
        stream's Settings. ``asked_here``: the groups whose checks come to a gateway.
        """
        self._service, self._metrics, self._credentials = service, metrics, credentials
        self._ids, self._streams, self._bridge, self._group_of = ids, streams, bridge, group_of
        self._telemetry = Telemetry(self._caller, streams, group_of, max_streams, timeout_s)
        self._in_flight = Shares(max_streams)
        self._receiving: dict[Groups, asyncio.Semaphore] = defaultdict(partial(asyncio.Semaphore, max_receiving))
        self._timeout_s = timeout_s
        self._asked_here = asked_here
        self._warned: set[str] = set()

    def close(self) -> None:
        """End all streams: clients open new ones, at a gateway that serves."""
        self._telemetry.close()

    def handler(self) -> grpc.GenericRpcHandler:
        """What a gRPC server needs."""
        calls: dict[str, tuple[str, str, Call]] = {
            "QueryRoute": ("QueryRouteRequest", "QueryRouteResponse", self._query_route),
            "Heartbeat": ("AnyRequest", "AnyResponse", self._heartbeat),
            "SendMessage": ("SendMessageRequest", "SendMessageResponse", self._send),
            "EndTransaction": ("EndTransactionRequest", "AnyResponse", self._end),
            "NotifyClientTermination": ("AnyRequest", "AnyResponse", self._terminate),
            "RecallMessage": ("RecallMessageRequest", "RecallMessageResponse", self._recall),
            **dict.fromkeys(_CONSUMERS, ("AnyRequest", "AnyResponse", self._not_served)),
        }
        methods = {name: self._unary(name, *call) for name, call in calls.items()}
        methods["Telemetry"] = grpc.stream_stream_rpc_method_handler(self._telemetry.serve, None, serialized)
        methods["ReceiveMessage"] = grpc.unary_stream_rpc_method_handler(self._receive, None, serialized)
        handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(SERVICE, methods)
        return handler

    def _unary(self, name: str, request_kind: str, response_kind: str, call: Call) -> Any:
        """The handler of a call. It reads the request itself: who may not call, or does not send it, holds nothing."""

        async def handle(_: Any, context: Any) -> Any:
            began = time.perf_counter()
            try:
                caller = self._caller(context)
                # Shielded: others that sent the same message or op wait for what this call waits for.
                response = await asyncio.shield(self._served(call, await self._received(context, caller), caller))
            except RefusedError as refused:
                response = message(response_kind, status=status_of(refused.refusal))
            except (asyncio.CancelledError, grpc.aio.UsageError):  # the client has gone
                raise
            except Exception as error:  # noqa: BLE001 - the client gets a status, the log the reason without the request
                _log.error("a call failed: %s", type(error).__name__, exc_info=_log.isEnabledFor(logging.DEBUG))
                failed = Refusal(Code.INTERNAL_SERVER_ERROR, "an error of the gateway; its log says more")
                response = message(response_kind, status=status_of(failed))
            self._metrics.answered(f"rocketmq/{name}", response.status.code, time.perf_counter() - began)
            return response

        return grpc.stream_unary_rpc_method_handler(handle, parser(request_kind), serialized)

    async def _received(self, context: Any, caller: Caller) -> Any:
        """The request, for which there must be room. Raises RefusedError."""
        if not self._in_flight.take(caller.groups):
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many calls of this token are in flight")
        try:
            place = await self._place(caller.groups)
            try:
                return await self._request(context)
            finally:
                place.release()
        except BaseException:
            self._in_flight.give_back(caller.groups)
            raise

    async def _place(self, groups: Groups) -> asyncio.Semaphore:
        """Room for a request that is received, to be released.

        Raises RefusedError if there is none soon: requests that never come hold theirs for a while.
        """
        places = self._receiving[groups]
        if not places.locked():
            await places.acquire()
            return places
        waiting = asyncio.ensure_future(places.acquire())
        try:
            ended, _ = await asyncio.wait({waiting}, timeout=PLACE_S)
        except asyncio.CancelledError:
            if not waiting.cancel():
                places.release()
            raise
        if not ended:
            waiting.cancel()
            raise RefusedError(Code.TOO_MANY_REQUESTS, "too many requests of this token are being received")
        return places

    async def _served(self, call: Call, request: Any, caller: Caller) -> Any:
        try:
            return await call(request, caller)
        finally:
            self._in_flight.give_back(caller.groups)

    async def _request(self, context: Any) -> Any:
        """Raises RefusedError if none comes in time."""
        try:
            request = await asyncio.wait_for(context.read(), self._timeout_s)
        except asyncio.TimeoutError:
            raise RefusedError(Code.REQUEST_TIMEOUT, "no request has come") from None
        except DecodeError:
            raise RefusedError(Code.BAD_REQUEST, "not a request of this call") from None
        if request is grpc.aio.EOF:
            raise RefusedError(Code.BAD_REQUEST, "there is no request")
        return request

    def _caller(self, context: Any) -> Caller:
        """Raises RefusedError."""
        metadata = {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}
        self._streams.verify()
        caller = self._credentials.caller(metadata)
        if isinstance(caller, Refusal):
            raise RefusedError(*caller)
        return caller

    async def _query_route(self, request: Any, caller: Caller) -> Any:
        topic = request.topic.name
        refuse_topic(topic)
        group = self._group_of(topic)
        if not is_group(group):
            raise RefusedError(Code.ILLEGAL_TOPIC, "the topic's name is none of a group: see gateway.rocketmq.groups")
        refused = self._service.tokens.refused(group, caller.groups)
        if refused is not None:
            raise RefusedError(*refusal_of(refused))
        # After a restart, until its next Settings, this is how a client says what it sends.
        self._streams.uses(caller.who, topic)
        odd_start = bool(self._service.starts % 2)
        return route(request.topic, request.endpoints, other_notation=odd_start and caller.language == "PYTHON")

    async def _heartbeat(self, _: Any, caller: Caller) -> Any:
        if caller.who not in self._streams:
            raise RefusedError(Code.UNRECOGNIZED_CLIENT_TYPE, "no settings of this client have come")
        return answered()

    async def _terminate(self, _: Any, caller: Caller) -> Any:
        self._streams.leave(caller)
        return answered()

    async def _not_served(self, _: Any, __: Caller) -> Any:
        raise RefusedError(*_NOT_SERVED)

    async def _receive(self, _: Any, __: Any) -> AsyncIterator[Any]:
        yield message("AnyResponse", status=status_of(_NOT_SERVED))

    async def _send(self, request: Any, caller: Caller) -> Any:
        halves = halves_of(request.messages, caller.client_id, self._group_of, now_ms())
        answers = await self._service.halves.take(halves, caller.groups)
        others = [number for number, answer in enumerate(answers) if is_other_content(answer)]
        if others:
            for number in others:
                message_id = halves[number].transaction_id
                halves[number] = halves[number]._replace(transaction_id=apart(message_id, caller.client_id))
            again = await self._service.halves.take([halves[number] for number in others], caller.groups)
            for number, answer in zip(others, again, strict=True):
                answers[number] = answer
        entries = [self._entry(half, answer, caller) for half, answer in zip(halves, answers, strict=True)]
        codes = {entry.status.code for entry in entries}
        status = entries[0].status if len(codes) == 1 else status_of(Refusal(Code.MULTIPLE_RESULTS, "see each"))
        return message("SendMessageResponse", status=status, entries=entries)

    def _entry(self, half: StoredHalf, answer: Answer, caller: Caller) -> Any:
        if isinstance(answer, Problem):
            return message("SendResultEntry", status=status_of(refusal_of(answer)))
        place = answer["queue_id"], answer["queue_offset"]
        message_id = transaction_id = sent_as(half.transaction_id)
        if not half.committed:
            self._warn(half.producer_group)
            transaction_id = self._ids.of(Half(*place, half.producer_group, half.transaction_id), half.real_topic)
        self._streams.uses(caller.who, half.real_topic)
        status = message("Status", code=Code.OK, message="OK")
        named = {"message_id": message_id, "transaction_id": transaction_id, "offset": place[1]}
        if half.committed and half.deliver_at is not None and half.deliver_at > now_ms():
            stored = Half(*place, half.producer_group, half.transaction_id)
            named["recall_handle"] = self._ids.recall_handle(stored, half.deliver_at, half.real_topic)
        return message("SendResultEntry", status=status, **named)

    def _warn(self, group: str) -> None:
        """Say once that nobody will be asked about the group's transactions."""
        if group in self._asked_here or group in self._warned or len(self._warned) >= _WARNED_MAX:
            return
        self._warned.add(group)
        where = CHECKS_OF_CLIENTS, group
        _log.warning("checks of %s do not come to a gateway: name its %s in producers.%s.endpoints", group, *where)

    async def _end(self, request: Any, caller: Caller) -> Any:
        topic = request.topic.name
        refuse_topic(topic)
        if not request.transaction_id:
            raise RefusedError(Code.INVALID_TRANSACTION_ID, "transaction id cannot be empty")
        half = self._ids.read(request.transaction_id, topic)
        if half is None:
            raise RefusedError(Code.INVALID_TRANSACTION_ID, "no transaction id of this topic")
        refused = self._service.tokens.refused(half.producer_group, caller.groups)
        if refused is not None:
            raise RefusedError(*refusal_of(refused))
        state = STATE_OF.get(request.resolution)
        if state is None:
            self._bridge.ended(half, "UNKNOWN")
            return answered()
        answer = await self._ended(half, state, caller)
        # Also if it was refused: the check's answer is what the client says, and the first op stands.
        self._bridge.ended(half, state)
        if isinstance(answer, Problem):
            raise RefusedError(*refusal_of(answer))
        return answered()

    async def _recall(self, request: Any, caller: Caller) -> Any:
        """Cancel a scheduled message. As a RocketMQ server's, the answer is that its recall is stored.

        `reconcile` may have published it by then, if its time is near; the op is then in `rejected`.
        """
        topic = request.topic.name
        refuse_topic(topic)
        recalled = self._ids.recalled(request.recall_handle, topic)
        if recalled is None:
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, "recall handle is invalid: none of this topic")
        half, deliver_at = recalled
        refused = self._service.tokens.refused(half.producer_group, caller.groups)
        if refused is not None:
            raise RefusedError(*refusal_of(refused))
        if deliver_at <= now_ms():
            raise RefusedError(Code.INTERNAL_SERVER_ERROR, "timestamp invalid: the message was due")
        op = Op(*half.place, half.message_id, half.producer_group, "CANCEL", now_ms())
        answer = (await self._service.ops.take([(op, None)], caller.groups))[0]
        if isinstance(answer, Problem):
            raise RefusedError(*refusal_of(answer))
        return message("RecallMessageResponse", status=answered().status, message_id=sent_as(half.message_id))

    async def _ended(self, half: Half, state: str, caller: Caller) -> Answer:
        named = {"transaction_id": half.message_id, "producer_group": half.producer_group, "state": state}
        try:
            sent = message_of({"queue_id": half.queue_id, "queue_offset": half.queue_offset, **named}, OpMessage)
            op = op_of(sent, now_ms())
        except MessageRejectedError:
            raise RefusedError(Code.INVALID_TRANSACTION_ID, "no transaction id of this topic") from None
        return (await self._service.ops.take([(op, None)], caller.groups))[0]
