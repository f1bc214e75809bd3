"""The check endpoint as a standalone uvicorn server, in a thread or in the running event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from checkback.errors import CheckbackError, SettingsError, missing_module
from checkback.messages.durations import seconds_of
from checkback.urls import in_url, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from uvicorn import Server

    from checkback.producer.check_endpoint import CheckApp


class CheckServer:
    """Serves a ``check_app`` at ``url`` from `start` to `close`; needs uvicorn (``checkback[producer]``).

    ``with``, or `start` and `close`: in a separate thread. ``async with``: in the running event loop, so that an
    AsyncTransactionListener can use that loop's resources. ``port`` 0: any free port. ``certificate`` and ``key``: PEM
    files, for https. Closing waits up to ``close_timeout`` for checks in progress. A connection without a complete
    request head for ``timeout`` is closed, and so are those beyond ``max_connections``, or half of the process's limit
    of open files.

    Raises CheckbackError if it cannot listen on the address; SettingsError for another than loopback without a secret;
    TypeError for a timeout that is a plain number.
    """

    def __init__(
        self,
        app: CheckApp,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str = "/check",
        certificate: str | None = None,
        key: str | None = None,
        close_timeout: timedelta = timedelta(seconds=5),
        timeout: timedelta = timedelta(seconds=10),
        max_connections: int = 1000,
    ) -> None:
        if not is_loopback(host) and not app.signed:
            what = f"without a secret it serves this machine only, not {host}"
            fix = "give check_app the groups' secrets (producers.GROUP.secret), or use 127.0.0.1"
            raise SettingsError(what, "host", fix)
        self._listening = _listen(host, port)
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://{in_url(host)}:{self._listening.getsockname()[1]}{path}"
        try:
            self._server = _server(
                _at(path, app),
                seconds_of("timeout", timeout),
                max_connections,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                timeout_graceful_shutdown=seconds_of("close_timeout", close_timeout),
            )
        except BaseException:
            self._listening.close()
            raise
        self._thread: threading.Thread | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> CheckServer:
        """Serve in a thread of its own. Raises SettingsError after `close`. Returns itself."""
        if self._server.should_exit:
            raise SettingsError("the check server was closed", self.url, "make a new one")
        if self._thread is None:
            # Clients that connect before the thread has started wait in the socket's backlog.
            self._thread = threading.Thread(
                target=self._server.run, args=([self._listening],), name="checkback-check-server", daemon=True
            )
            self._thread.start()
        return self

    def close(self) -> None:
        """Answer the checks in progress and end the thread. It may be called again."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._listening.close()

    def __enter__(self) -> CheckServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> CheckServer:
        self._task = asyncio.create_task(self._server.serve([self._listening]))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
        self._listening.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (os.strerror(error.errno) if error.errno else str(error)).lower()
        raise CheckbackError(f"cannot listen: {reason}", f"{host}:{port}", "choose another host or port") from error


def _most_connections() -> int:
    """So many that the process, which is the application's, has as many files for itself."""
    try:
        import resource
    except ImportError:  # not on Windows
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else max(1, limit // 2)


def _server(app: Any, timeout_s: float, max_connections: int, **options: Any) -> Server:
    try:
        import uvicorn

        from checkback.producer.http_protocol import LimitedConnection
    except ImportError as error:
        raise missing_module(error, "producer") from error

    class Quiet(uvicorn.Server):
        """Installs no signal handlers: they belong to the process."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            """As uvicorn's, which lets a TLS handshake take a minute."""
            await super().startup([])
            state = {"server_state": self.server_state, "app_state": self.lifespan.state}
            for sock in sockets or ():
                server = await asyncio.get_running_loop().create_server(
                    partial(protocol, config=config, **state),
                    sock=sock,
                    ssl=config.ssl,
                    ssl_handshake_timeout=timeout_s if config.ssl else None,
                    backlog=config.backlog,
                )
                self.servers.append(server)

    limits = {"timeout_s": timeout_s, "max_connections": min(max_connections, _most_connections())}
    protocol = type("Connection", (LimitedConnection,), limits)
    config = uvicorn.Config(
        app,
        http=protocol,
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **options,
    )
    try:
        config.load()  # fail here, not in the thread
    except OSError as error:  # ssl.SSLError is one
        raise CheckbackError("cannot be read as PEM", "certificate or key", "name PEM files that fit") from error
    return Quiet(config)


def _at(path: str, app: CheckApp) -> Any:
    """The application mounted on one path; 404 elsewhere."""

    async def routed(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["path"] == path:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    return routed
