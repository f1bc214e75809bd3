"""Prometheus metrics over HTTP, of `reconcile` and of consumers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import start_http_server

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client import CollectorRegistry


#: seconds that a thread waits for its client, who may be gone without a word
TIMEOUT_S = 10.0


@contextmanager
def served(registry: CollectorRegistry, host: str, port: int, fix: str) -> Iterator[int]:
    """Context in which they are served on http://host:port/metrics. Yields the port; 0 = any free port.

    Raises SettingsError, with ``fix``, if it cannot listen.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SettingsError(f"cannot listen: {error.strerror or error}", f"metrics {host}:{port}", fix) from error
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": TIMEOUT_S})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
