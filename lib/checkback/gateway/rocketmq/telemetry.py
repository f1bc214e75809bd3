"""The clients' Telemetry streams: their Settings are answered, and checks are sent over them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError

from checkback.gateway.health import now_ms
from checkback.gateway.rocketmq.codes import PRODUCER
from checkback.gateway.rocketmq.interface import message, parser
from checkback.gateway.rocketmq.messages import RefusedError
from checkback.gateway.rocketmq.replies import answered, server_settings, status_of
from checkback.gateway.rocketmq.shares import Shares
from checkback.gateway.rocketmq.streams import TOPICS_MAX, Stream
from checkback.messages.limits import TOPIC_MAX

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.gateway.rocketmq.authentication import Caller
    from checkback.gateway.rocketmq.streams import Streams

_COMMAND_MAX = 256 << 10
#: Not by gRPC, which logs what cannot be parsed.
_command = parser("TelemetryCommand")


class Telemetry:
    """The handler of the call. Belongs to one event loop."""

    def __init__(
        self,
        caller: Callable[[Any], Caller],
        streams: Streams,
        group_of: Callable[[str], str],
        max_streams: int,
        timeout_s: float,
    ) -> None:
        """``caller``: of a call's context; it raises RefusedError. ``group_of``: a topic's producer group.

        ``timeout_s``: until a stream's Settings must have come.
        """
        self._caller, self._streams, self._group_of = caller, streams, group_of
        self._closed = asyncio.Event()
        self._room = Shares(max_streams)
        self._timeout_s = timeout_s

    def close(self) -> None:
        """End all streams."""
        self._closed.set()

    async def serve(self, _: Any, context: Any) -> None:
        """Serve one stream: its Settings are answered, and checks are sent over it, until the client ends it."""
        try:
            caller = self._caller(context)
        except RefusedError as refused:
            await context.write(message("TelemetryCommand", status=status_of(refused.refusal)))
            return
        writing = asyncio.Lock()

        async def write(command: Any) -> None:
            try:
                await context.write(command)
            finally:
                writing.release()

        async def send(command: Any) -> None:
            await writing.acquire()  # gRPC takes one write at a time
            # Shielded: after a write that was given up gRPC takes none any more.
            await asyncio.shield(write(command))

        if not self._room.take(caller.groups):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many clients (gateway.max_connections)")
        closed = asyncio.ensure_future(self._closed.wait())
        stream = Stream(caller, send, context.peer(), now_ms(), end=closed.cancel)
        self._streams.opened(stream)
        patience: float | None = self._timeout_s
        try:
            while True:
                reading = asyncio.ensure_future(context.read())
                reading.add_done_callback(_seen)  # of a stream that ends here it is an error, which nobody awaits
                await asyncio.wait({reading, closed}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if stream.ended or not reading.done() or (content := reading.result()) is grpc.aio.EOF:
                    return
                if len(content) > _COMMAND_MAX:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"a command of over {_COMMAND_MAX} bytes")
                try:
                    command = _command(content)
                except DecodeError:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "not a TelemetryCommand")
                if command.HasField("settings"):
                    await self._settings(command.settings, stream, context)
                    patience = None
        finally:
            closed.cancel()
            self._room.give_back(caller.groups)
            self._streams.closed(stream)

    async def _settings(self, settings: Any, stream: Stream, context: Any) -> None:
        if settings.client_type != PRODUCER or not settings.HasField("publishing"):
            await context.abort(grpc.StatusCode.UNIMPLEMENTED, "only producers are served: read the topic's table")
        topics = [topic.name for topic in settings.publishing.topics[:TOPICS_MAX] if len(topic.name) <= TOPIC_MAX]
        mine = [topic for topic in topics if stream.may_answer(self._group_of(topic))]
        if not self._streams.add(stream, mine):
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "the client has too many streams")
        await stream.send(message("TelemetryCommand", status=answered().status, settings=server_settings(settings)))


def _seen(task: asyncio.Future[Any]) -> None:
    if not task.cancelled():
        task.exception()
