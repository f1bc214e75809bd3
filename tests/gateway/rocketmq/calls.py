"""The server for RocketMQ's clients on a real gateway, in this process, and calls to it as a bare stub makes them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc

from checkback.gateway.metrics import Metrics
from checkback.gateway.rocketmq.codes import IPV4, PRODUCER, MessageType
from checkback.gateway.rocketmq.interface import SERVICE, message, parser, serialized
from checkback.gateway.rocketmq.server import RocketMQServer
from checkback.settings import Settings
from gateway.process import PATIENCE_S
from gateway.services import with_service

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from checkback.gateway.service import GatewayService

TOPIC = "orders"
TOKEN = "0123456789abcdef"
_numbers = itertools.count()


class Client:
    """One client's calls. ``headers``: instead of those that a client without credentials sends."""

    def __init__(self, channel: Any, client_id: str = "client-1", headers: dict[str, str] | None = None) -> None:
        self._channel, self.client_id = channel, client_id
        self.metadata = tuple((headers or {"x-mq-client-id": client_id}).items())

    async def call(self, method: str, request: Any, response_kind: str = "AnyResponse") -> Any:
        multi = self._channel.unary_unary(f"/{SERVICE}/{method}", serialized, parser(response_kind))
        return await multi(request, metadata=self.metadata, timeout=PATIENCE_S)

    async def send(self, *messages: Any) -> Any:
        return await self.call("SendMessage", message("SendMessageRequest", messages=messages), "SendMessageResponse")

    async def half(self, topic: str = TOPIC, message_id: str | None = None) -> Any:
        """Send a half message; the entry of the answer."""
        sent = await self.send(msg(topic, kind=MessageType.TRANSACTION, message_id=message_id or new_id()))
        return sent.entries[0]

    async def end(self, transaction_id: str, resolution: int, topic: str = TOPIC) -> Any:
        """The status."""
        named = {"topic": message("Resource", name=topic), "transaction_id": transaction_id, "message_id": "any"}
        request = message("EndTransactionRequest", resolution=resolution, **named)
        return (await self.call("EndTransaction", request)).status

    async def route(self, topic: str = TOPIC) -> Any:
        endpoints = message("Endpoints", scheme=IPV4, addresses=[message("Address", host="127.0.0.1", port=8081)])
        request = message("QueryRouteRequest", topic=message("Resource", name=topic), endpoints=endpoints)
        return await self.call("QueryRoute", request, "QueryRouteResponse")

    def telemetry(self) -> Stream:
        """A Telemetry stream on which nothing was sent."""
        multi = self._channel.stream_stream(f"/{SERVICE}/Telemetry", serialized, parser("TelemetryCommand"))
        return Stream(multi(metadata=self.metadata))

    @asynccontextmanager
    async def stream(self, *topics: str) -> AsyncIterator[Stream]:
        """A Telemetry stream whose Settings name these topics, once the server has answered them."""
        stream = self.telemetry()
        try:
            await stream.call.write(message("TelemetryCommand", settings=settings(*topics)))
            stream.answered = await stream.read()
            yield stream
        finally:
            stream.call.cancel()


class Stream:
    """A Telemetry stream. ``answered``: the server's first command."""

    def __init__(self, call: Any) -> None:
        self.call = call
        self.answered: Any = None

    async def read(self) -> Any:
        return await asyncio.wait_for(self.call.read(), PATIENCE_S)

    async def check(self) -> Any:
        """The next RecoverOrphanedTransactionCommand."""
        command = await self.read()
        assert command.HasField("recover_orphaned_transaction_command"), command
        return command.recover_orphaned_transaction_command


def settings(*topics: str, client_type: int = PRODUCER) -> Any:
    named = [message("Resource", name=topic) for topic in topics]
    return message("Settings", client_type=client_type, publishing=message("Publishing", topics=named))


def new_id() -> str:
    """A message id as clients make them."""
    return f"01{next(_numbers):032X}"


def msg(topic: str = TOPIC, body: bytes = b"body", kind: int = MessageType.NORMAL, **system: Any) -> Any:
    """A message; ``system``: its system properties, and ``properties``."""
    properties = [message("Property", key=key, value=value) for key, value in system.pop("properties", {}).items()]
    named = {"message_id": new_id(), "message_type": int(kind)} | system
    about = message("SystemProperties", **named)
    resource = message("Resource", name=topic)
    return message("Message", topic=resource, body=body, user_properties=properties, system_properties=about)


def at(ms: int) -> Any:
    return message("Time", seconds=ms // 1000, nanos=ms % 1000 * 1_000_000)


def signed(access_key: str, secret: str, when: float | None = None, client_id: str = "client-1") -> dict[str, str]:
    """A client's headers. ``when``: seconds since the epoch; None = now."""
    date_time = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(when))
    signature = hmac.new(secret.encode(), date_time.encode(), hashlib.sha1).hexdigest()
    credential = f"Credential={access_key}, SignedHeaders=x-mq-date-time, Signature={signature}"
    return {
        "x-mq-client-id": client_id,
        "x-mq-date-time": date_time,
        "authorization": f"MQv2-HMAC-SHA1 {credential}",
    }


def with_clients(
    root: Path,
    act: Callable[[RocketMQServer, Any, GatewayService], Awaitable[None]],
    producers: dict[str, object] | None = None,
    **rocketmq: object,
) -> None:
    """A real gateway with the server, while ``act`` runs with it and a channel to it."""
    gateway = {"rocketmq": {"plain_port": 0, **rocketmq}}
    own = Settings.model_validate(
        {"storage": {"root": str(root)}, "gateway": gateway, "producers": producers or {}, "check": {"timeout": "2s"}}
    )

    async def run(service: GatewayService, _: object) -> None:
        server = RocketMQServer(service, Metrics(), own, own.gateway.max_connections)
        await server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{server.plain_port}") as channel:
                await act(server, channel, service)
        finally:
            await server.stop(PATIENCE_S)

    with_service(root, run, producers, **(gateway | {"dedup_window": "10m", "dedup_max": 1000}))
