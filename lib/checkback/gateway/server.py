"""The command `gateway`: starts the service, serves HTTP until a signal, then commits what it has accepted."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import signal
import socket
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import uvicorn

from checkback.errors import CheckbackError, SettingsError, missing_module
from checkback.gateway.appender import tables_of
from checkback.gateway.authentication import BearerTokens
from checkback.gateway.http.api import create_app
from checkback.gateway.http.listening_socket import connections_within, listening
from checkback.gateway.http.protocol import limited
from checkback.gateway.metrics import Metrics
from checkback.gateway.service import GatewayService
from checkback.urls import in_url, is_loopback

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from checkback.gateway.rocketmq.server import RocketMQServer
    from checkback.settings import Gateway, Settings

    Started = Callable[[str, list[int], dict[str, int]], object]

#: Graceful shutdown: seconds for committing and answering accepted requests after a signal.
_GRACE_S = 30
T = TypeVar("T")
_log = logging.getLogger("checkback.gateway")


def serve(settings: Settings, started: Started, take_over: bool = False) -> None:
    """Serve until SIGTERM or SIGINT, then commit and answer accepted requests.

    ``started``: is called with the URL, the queues, and the ports for RocketMQ's clients by setting, when it listens.
    ``take_over``: claim queues even if another gateway's journal may have messages for them.

    Raises SettingsError, StorageError, and FencedError if another gateway has taken over a queue.
    """
    gateway = settings.gateway
    tables_of(settings.storage)
    if not BearerTokens(settings.producers).needed and not is_loopback(gateway.host):
        raise SettingsError(
            f"without tokens it serves this machine only, not {gateway.host}",
            "gateway.host",
            "give the groups tokens (producers.GROUP.token), or use 127.0.0.1",
        )
    # Before the queues are claimed: a second start on the same port must not fence the first.
    with listening(gateway.host, gateway.port, "gateway") as sock, _Stop() as stop:
        error = _run(_serve(settings, sock, started, take_over, stop))
    if error is not None:
        raise error


def _run(main: Coroutine[Any, Any, T]) -> T:
    try:
        import uvloop
    except ModuleNotFoundError:  # not available on every platform
        return asyncio.run(main)
    return uvloop.run(main)


async def _serve(
    settings: Settings,
    sock: socket.socket,
    started: Started,
    take_over: bool,
    by_signal: _Stop,
) -> CheckbackError | None:
    failure: CheckbackError | None = None
    metrics = Metrics()

    def stop(error: CheckbackError) -> None:
        nonlocal failure
        failure = failure or error
        server.should_exit = True

    def ended(task: asyncio.Task[None]) -> None:
        error = task.exception()
        if error is not None:
            stop(
                error
                if isinstance(error, CheckbackError)
                else CheckbackError(f"unexpected {type(error).__name__}", "committing")
            )

    service = await asyncio.to_thread(GatewayService, settings, metrics, stop, take_over)
    # The cache read at the start is long-lived; scanning it for garbage would only take time.
    gc.collect()
    _release_memory()
    gc.freeze()
    gc.set_threshold(20_000, 20, 10)
    # The loop never computes for long, the journal's thread does: 5 ms (Python's default) are too long for the loop.
    sys.setswitchinterval(0.0005)
    try:
        mine = settings.gateway.rocketmq
        ports = 1 + sum(port is not None for port in (mine.port, mine.plain_port))
        connections = max(1, connections_within(ports * settings.gateway.max_connections) // ports)
        clients = rocketmq_server(service, metrics, settings, connections)
    except BaseException:
        if service.journal is not None:
            service.journal.close()
        raise
    app = create_app(service, metrics, settings.gateway, None if clients is None else clients.routes)
    server = _Server(_config(settings.gateway, app, connections), service, clients)
    by_signal.ends(server)
    commits = asyncio.create_task(service.run())
    commits.add_done_callback(ended)
    host, port = sock.getsockname()[:2]
    if service.recovered:
        _log.info("%d messages that the journal had are in the tables now", service.recovered)
    if clients is not None:
        await clients.start()
    started(f"http://{in_url(host)}:{port}", list(service.cache.queues), {} if clients is None else clients.ports)
    await server.serve(sockets=[sock])
    service.close()
    await asyncio.wait([commits])
    return failure


def rocketmq_server(
    service: GatewayService, metrics: Metrics, settings: Settings, connections: int
) -> RocketMQServer | None:
    """The server for RocketMQ's clients; None = no port of it is set. Nothing of gRPC is imported then.

    ``connections``: at most, on each port.

    Raises SettingsError.
    """
    if settings.gateway.rocketmq.port is None and settings.gateway.rocketmq.plain_port is None:
        return None
    try:
        from checkback.gateway.rocketmq.server import RocketMQServer
    except ModuleNotFoundError as error:
        raise missing_module(error, "rocketmq", "gateway.rocketmq") from error
    return RocketMQServer(service, metrics, settings, connections)


class _Server(uvicorn.Server):
    """Uvicorn, whose shutdown waits for in-flight requests: their commits no longer wait for further messages."""

    def __init__(self, config: uvicorn.Config, service: GatewayService, clients: RocketMQServer | None) -> None:
        super().__init__(config)
        self._service, self._clients = service, clients

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's."""
        self._service.hurry()
        if self._clients is not None:
            await self._clients.stop(_GRACE_S)
        await super().shutdown(sockets)


def _config(gateway: Gateway, app: object, connections: int) -> uvicorn.Config:
    limits = gateway.timeout.total_seconds(), gateway.max_headers, connections
    return uvicorn.Config(
        app,  # type: ignore[arg-type]  # any ASGI application
        http=limited(*limits, "gateway.max_connections"),
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",  # it warns of requests that are not HTTP: any client could fill the log
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=_GRACE_S,
    )


def _release_memory() -> None:
    """Return to the operating system what the start needed for reading the tables, where the C library can (glibc)."""
    pa.default_memory_pool().release_unused()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


class _Stop:
    """SIGTERM and SIGINT end the server, also if they come while the service starts. Use as a context.

    uvicorn listens to them while it serves, and re-raises them after its graceful shutdown: the exit code is then 0.
    """

    def __init__(self) -> None:
        self._received = False
        self._server: uvicorn.Server | None = None

    def __enter__(self) -> _Stop:
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGTERM, signal.SIGINT)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ends(self, server: uvicorn.Server) -> None:
        """A signal ends this server, one that has come before as soon as it has started."""
        self._server = server
        server.should_exit = server.should_exit or self._received

    def _receive(self, *_: object) -> None:
        self._received = True
        if self._server is not None:
            self._server.should_exit = True
