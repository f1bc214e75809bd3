"""The command `dashboard`: serves the pages until a signal."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.server import HANDLED_SIGNALS

from checkback.dashboard.access import Access
from checkback.dashboard.app import create_app
from checkback.dashboard.pages import Pages
from checkback.errors import SettingsError
from checkback.gateway.http.listening_socket import connections_within, listening
from checkback.gateway.http.protocol import limited
from checkback.observe.logs import started
from checkback.settings.secrets import token_of
from checkback.urls import LOOPBACK, in_url

if TYPE_CHECKING:
    from types import FrameType

    from starlette.applications import Starlette

    from checkback.settings import Dashboard, Settings

#: seconds within which a request must have come, bytes of its head, and connections at a time: a browser has six
TIMEOUT_S, MAX_HEAD, MAX_CONNECTIONS = 10.0, 64 << 10, 200


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; the latter raises KeyboardInterrupt.

    Raises SettingsError, also for tables that only Spark can read.
    """
    about = settings.dashboard
    token = None if about.token is None else token_of(about.token.get_secret_value(), "dashboard.token")
    if token is None and about.host not in LOOPBACK:
        what = f"without a token it serves this machine only, not {about.host}"
        raise SettingsError(what, "dashboard.host", "set dashboard.token, or use 127.0.0.1")
    if about.actions and token is None:
        fix = "set dashboard.token in the environment, or turn the actions off"
        raise SettingsError("actions need a token", "dashboard.actions", fix)
    pages = Pages(settings, Access(token, time.time))
    config = config_of(about, create_app(pages))
    server = _Server(config, pages)
    # Whoever reads the line below may come before the server has started.
    with listening(about.host, about.port, "dashboard") as sock:
        host, port = sock.getsockname()[:2]
        for number in HANDLED_SIGNALS:  # uvicorn listens to them only while it serves, and re-raises them afterwards
            signal.signal(number, server.handle_exit)
        started(settings.log.format, "dashboard", f"http://{in_url(host)}:{port}")
        server.run(sockets=[sock])
    if server.interrupted:
        raise KeyboardInterrupt


class _Server(uvicorn.Server):
    """A signal ends the questions, too, which uvicorn would wait for."""

    def __init__(self, config: uvicorn.Config, pages: Pages) -> None:
        super().__init__(config)
        self._pages = pages
        self.interrupted = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.interrupted = self.interrupted or sig == signal.SIGINT
        self._pages.stop()


def config_of(
    about: Dashboard, app: Starlette, timeout_s: float = TIMEOUT_S, max_connections: int = MAX_CONNECTIONS
) -> uvicorn.Config:
    """How it is served: a request that does not come, and a connection too many, are refused as by the gateway."""
    return uvicorn.Config(
        app,
        host=about.host,
        port=about.port,
        http=limited(timeout_s, MAX_HEAD, connections_within(max_connections)),
        ws="none",
        log_config=None,
        log_level="error",
        access_log=False,
        server_header=False,
    )
