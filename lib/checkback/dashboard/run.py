"""The command `dashboard`: serves the pages until a signal."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import uvicorn

from checkback.dashboard.access import LOOPBACK, Access
from checkback.dashboard.app import create_app
from checkback.dashboard.pages import Pages
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from checkback.settings import Settings


def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises SettingsError, also for tables that only Spark can read."""
    about = settings.dashboard
    token = None if about.token is None else about.token.get_secret_value()
    if token is None and about.host not in LOOPBACK:
        what = f"without a token it serves this machine only, not {about.host}"
        raise SettingsError(what, "dashboard.host", "set dashboard.token, or use 127.0.0.1")
    if about.actions and token is None:
        fix = "set dashboard.token in the environment, or turn the actions off"
        raise SettingsError("actions need a token", "dashboard.actions", fix)
    app = create_app(Pages(settings, Access(token, time.time)))
    config = uvicorn.Config(
        app, host=about.host, port=about.port, log_config=None, log_level="error", access_log=False, server_header=False
    )
    server = uvicorn.Server(config)
    sock = config.bind_socket()
    host, port = sock.getsockname()[:2]
    print(f"checkback dashboard: http://{f'[{host}]' if ':' in host else host}:{port}", flush=True)
    server.run(sockets=[sock])
