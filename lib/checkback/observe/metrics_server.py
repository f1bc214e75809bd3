"""Prometheus metrics and probes over HTTP, of `reconcile` and of consumers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prometheus_client import start_http_server

from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry


#: seconds that a thread waits for its client, who may be gone without a word
TIMEOUT_S = 10.0


@contextmanager
def served(
    registry: CollectorRegistry, host: str, port: int, fix: str, unready: Callable[[], str | None]
) -> Iterator[int]:
    """Context in which they are served on http://host:port/metrics. Yields the port; 0 = any free port.

    ``/healthz`` is 200 while the process lives, ``/readyz`` 503 with what ``unready`` says, if it says something.
    Raises SettingsError, with ``fix``, if it cannot listen.
    """
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise SettingsError(f"cannot listen: {error.strerror or error}", f"metrics {host}:{port}", fix) from error
    metrics: Any = server.get_app()

    def answer(environ: dict[str, Any], start_response: Callable[[str, list[tuple[str, str]]], object]) -> Any:
        path = environ["PATH_INFO"]
        if path not in ("/healthz", "/readyz"):
            return metrics(environ, start_response)
        why = unready() if path == "/readyz" else None
        status = "200 OK" if why is None else "503 Service Unavailable"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{why or 'ok'}\n".encode()]

    server.set_app(answer)
    handler: Any = server.RequestHandlerClass
    server.RequestHandlerClass = type("Handler", (handler,), {"timeout": TIMEOUT_S})
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
