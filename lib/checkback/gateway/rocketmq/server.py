"""The gRPC server of the gateway, in its event loop: one port with TLS, one without."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import grpc

from checkback.errors import SettingsError
from checkback.gateway.http.api import MoreRoutes
from checkback.gateway.rocketmq.authentication import Credentials
from checkback.gateway.rocketmq.certificate import certificate_of
from checkback.gateway.rocketmq.checks import CheckBridge
from checkback.gateway.rocketmq.messages import topic_groups
from checkback.gateway.rocketmq.servicer import MessagingService
from checkback.gateway.rocketmq.streams import CLIENTS, Streams
from checkback.gateway.rocketmq.transaction_ids import TransactionIds
from checkback.messages.limits import BODY_MAX
from checkback.urls import CHECKS_OF_CLIENTS, in_url

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.gateway.metrics import Metrics
    from checkback.gateway.service import GatewayService
    from checkback.settings import Settings

#: A message besides its body: properties, names.
_ENVELOPE = 256 << 10
#: Java pings every 300 s, which is gRPC's lower limit; a dead client is noticed after half a minute. A client's stream
#: keeps its connection from being idle.
_OPTIONS = [
    ("grpc.max_receive_message_length", BODY_MAX + _ENVELOPE),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.server_handshake_timeout_ms", 5_000),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_concurrent_streams", 1000),
    ("grpc.so_reuseport", 0),
]


def _leads_here(endpoint: str) -> bool:
    """Is the endpoint a gateway's?"""
    return urlsplit(endpoint).path == CHECKS_OF_CLIENTS


class RocketMQServer:
    """Serves RocketMQ 5 producers. ``bridge``: answers the checks that `reconcile` posts."""

    def __init__(self, service: GatewayService, metrics: Metrics, settings: Settings, connections: int) -> None:
        """In the event loop that serves. ``connections``: of each port, at most.

        Raises SettingsError if a port or a certificate cannot be used.
        """
        mine, host = settings.gateway.rocketmq, settings.gateway.host
        producers = settings.producers
        group_of = topic_groups(mine.groups)
        credentials = Credentials(producers)
        ids, self.streams = TransactionIds(service.table_id), Streams(group_of, credentials)
        #: clients' streams; as many other calls may be in flight
        most = connections
        metrics.watch_clients(lambda: len(self.streams))
        timeout_s = settings.check.timeout.total_seconds()
        self.bridge = CheckBridge(self.streams, ids, producers, timeout_s)
        #: calls of one token whose requests are being received
        self.receiving_max = max(1, settings.gateway.max_receiving // 2 // (BODY_MAX + _ENVELOPE))
        self._calls = MessagingService(
            service,
            metrics,
            credentials,
            ids,
            self.streams,
            self.bridge,
            group_of,
            most,
            self.receiving_max,
            settings.gateway.timeout.total_seconds(),
            {name for name, one in producers.items() if any(map(_leads_here, one.endpoints))},
        )
        # Each port counts its own.
        options = [*_OPTIONS, ("grpc.max_allowed_incoming_connections", most)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=2 * most)
        self._server.add_generic_rpc_handlers((self._calls.handler(),))
        self.port, self.plain_port = mine.port, mine.plain_port
        if mine.port is not None:
            certificate = certificate_of(mine.certificate, mine.key)
            credentials = grpc.ssl_server_credentials([certificate])
            self.port = self._listen(
                "port", mine.port, lambda address: self._server.add_secure_port(address, credentials), host
            )
        if mine.plain_port is not None:
            self.plain_port = self._listen("plain_port", mine.plain_port, self._server.add_insecure_port, host)

    def _listen(self, setting: str, port: int, add: Callable[[str], int], host: str) -> int:
        address = f"{in_url(host)}:{port}"
        try:
            return add(address)
        except RuntimeError as error:
            fix = f"choose another gateway.rocketmq.{setting}, or check the certificate"
            raise SettingsError("cannot listen", address, fix) from error

    @property
    def routes(self) -> MoreRoutes:
        """The routes for HTTP: checks, which `reconcile` signs, and who is connected."""
        return MoreRoutes({CHECKS_OF_CLIENTS: self.bridge.reply}, {CLIENTS: self.streams.connected})

    @property
    def ports(self) -> dict[str, int]:
        """The ports on which it listens, by setting."""
        ports = {"rocketmq_port": self.port, "rocketmq_plain_port": self.plain_port}
        return {name: port for name, port in ports.items() if port is not None}

    async def start(self) -> None:
        """Serve."""
        await self._server.start()

    async def stop(self, grace_s: float) -> None:
        """Answer what is in flight, for so long at most; streams end at once."""
        self._calls.close()
        await self._server.stop(grace_s)
