"""The HTTP server of the metrics."""

from __future__ import annotations

import socket

import pytest
import requests
from prometheus_client import CollectorRegistry

from checkback.observe import metrics_server


@pytest.mark.parametrize("begun", [b"", b"GET /metr"])
def test_client_that_says_no_more_keeps_no_thread(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Nor a file: both are those of `reconcile`."""
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.2)
    with (
        metrics_server.served(CollectorRegistry(), "127.0.0.1", 0, "", lambda: None) as port,
        socket.create_connection(("127.0.0.1", port), 20) as connection,
    ):
        connection.sendall(begun)
        assert connection.recv(65536) == b""


def test_probes() -> None:
    why: list[str | None] = [None]
    with metrics_server.served(CollectorRegistry(), "127.0.0.1", 0, "", lambda: why[0]) as port:

        def asked(path: str) -> tuple[int, str]:
            answer = requests.get(f"http://127.0.0.1:{port}{path}", timeout=10)
            return answer.status_code, answer.text

        assert [asked("/healthz"), asked("/readyz")] == [(200, "ok\n")] * 2
        why[0] = "does not run: check"
        assert [asked("/healthz"), asked("/readyz")] == [(200, "ok\n"), (503, "does not run: check\n")]
        assert asked("/metrics")[0] == 200
