"""The HTTP server of the metrics."""

from __future__ import annotations

import socket

import pytest
from prometheus_client import CollectorRegistry

from checkback.observe import metrics_server


@pytest.mark.parametrize("begun", [b"", b"GET /metr"])
def test_client_that_says_no_more_keeps_no_thread(monkeypatch: pytest.MonkeyPatch, begun: bytes) -> None:
    """Nor a file: both are those of `reconcile`."""
    monkeypatch.setattr(metrics_server, "TIMEOUT_S", 0.2)
    with (
        metrics_server.served(CollectorRegistry(), "127.0.0.1", 0, "") as port,
        socket.create_connection(("127.0.0.1", port), 20) as connection,
    ):
        connection.sendall(begun)
        assert connection.recv(65536) == b""
