"""Connections to the check endpoint that are slow, endless or too many."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import requests

from check.servers import request
from checkback.producer import (
    CheckServer,
    check_app,
)
from producer.checked import (
    BODY,
    HEAD,
    SECRET,
    Listener,
    ask,
    connected,
    post,
    received,
    signed,
)


def test_oversized_is_refused_unread(listener: Listener) -> None:
    body = request(transaction_id="x" * 2000).to_json()
    with CheckServer(check_app(listener, secret=SECRET, max_request=1000)) as server:
        assert post(server.url, body, signed(body)).status_code == 413
        # Without Content-Length, in chunks.
        chunks: Any = (part for part in [body.encode()])
        assert requests.post(server.url, data=chunks, headers=signed(body), timeout=5).status_code == 413
        # Stated only: nothing is waited for.
        with socket.create_connection(("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))) as sock:
            sock.sendall(b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000000\r\n\r\n")
            assert b" 413 " in sock.makefile("rb").readline()
    assert not listener.checks


def test_slow_request_is_not_waited_for(listener: Listener) -> None:
    with (
        CheckServer(check_app(listener, secret=SECRET, timeout=timedelta(seconds=0.2))) as server,
        socket.create_connection(("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))) as sock,
    ):
        sock.sendall(b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert b" 408 " in sock.makefile("rb").readline()


@pytest.mark.parametrize(
    "begun",
    [
        b"",
        HEAD,
        HEAD + b"Content-Length: 0\r\n\r\n" + HEAD,  # answered, then half of another one
        HEAD + b"Content-Length: 9\r\n\r\nabc",
        b"POST /other HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nabc",
    ],
)
def test_half_sent_requests_are_not_kept(listener: Listener, begun: bytes) -> None:
    app = check_app(listener, secret=SECRET, timeout=timedelta(seconds=0.2))
    with CheckServer(app, timeout=timedelta(seconds=0.3)) as server, connected(server) as connection:
        connection.sendall(begun)
        received(connection)
    assert listener.checks == []


def test_endless_head_is_cut_off(listener: Listener) -> None:
    with (
        CheckServer(check_app(listener, secret=SECRET), timeout=timedelta(seconds=600)) as server,
        connected(server) as connection,
    ):
        connection.sendall(HEAD)
        try:
            for number in range(10_000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except OSError:
            return
        received(connection)


@pytest.mark.slow
def test_requests_behind_an_unanswered_one_are_not_read(server: CheckServer) -> None:
    """A client that pipelines would fill the memory: with each answer more of its requests came than were answered."""
    begun = HEAD + b"x: %s\r\nContent-Length: 0\r\n\r\n" % (b"y" * 4000)
    with connected(server) as connection, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(connection.sendall, begun * 2000)
        heard = b""
        while heard.count(b"HTTP/1.1 401") < 2000:
            heard += connection.recv(1 << 20)
            for one in list(server._server.server_state.connections):
                received, _ = one.conn.trailing_data  # type: ignore[union-attr]
                assert len(received) < 1 << 20
        sending.result()


@pytest.mark.slow
def test_answers_that_are_not_read_are_not_kept(listener: Listener) -> None:
    """Such clients would hold all connections there may be, for ever."""
    app = check_app(listener, secret=SECRET)
    with CheckServer(app, timeout=timedelta(seconds=0.3)) as server, connected(server) as connection:
        connection.settimeout(60)
        with pytest.raises(ConnectionError):
            connection.sendall((HEAD + b"Content-Length: 0\r\n\r\n") * 1_000_000)


def test_endless_trailers_are_cut_off(listener: Listener) -> None:
    app = check_app(listener, secret=SECRET, timeout=timedelta(seconds=600))
    with CheckServer(app, timeout=timedelta(seconds=600)) as server, connected(server) as connection:
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n")
        try:
            for number in range(10_000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except OSError:
            return
        received(connection)


def test_upgrade_is_ignored(server: CheckServer, listener: Listener, caplog: pytest.LogCaptureFixture) -> None:
    """The check behind it is answered, and nothing is logged of it."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed(BODY).items())
    upgrade = "Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
    with connected(server) as connection:
        connection.sendall(HEAD + f"{lines}{upgrade}Content-Length: {len(BODY)}\r\n\r\n{BODY}".encode())
        assert received(connection).startswith(b"HTTP/1.1 200")
    assert len(listener.checks) == 1
    assert not caplog.records


def test_trailers_are_no_headers(server: CheckServer, listener: Listener) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed(BODY).items())
    head = HEAD + b"Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    with connected(server) as connection:
        connection.sendall(head + f"{len(BODY):x}\r\n{BODY}\r\n0\r\n{lines}\r\n".encode())
        assert received(connection).startswith(b"HTTP/1.1 401")
    assert not listener.checks


@pytest.mark.slow
def test_connections_beyond_the_bound_are_closed_and_the_others_answered(listener: Listener) -> None:
    with (
        CheckServer(
            check_app({"orders": listener}, secret=SECRET), timeout=timedelta(seconds=600), max_connections=2
        ) as server,
        connected(server) as first,
        connected(server) as second,
    ):
        # What they have sent is read, so both are counted.
        for connection in (first, second):
            connection.sendall(HEAD + b"Content-Length: 0\r\n\r\n")
            assert connection.recv(65536).startswith(b"HTTP/1.1 401")
        with connected(server) as third:
            assert received(third) == b""
        first.close()
        answers = (ask(server.url) for _ in range(100))
        assert "COMMIT" in {answer.outcome for answer in answers}


_FEW_FILES = """
import resource, socket
from datetime import timedelta
from checkback.producer import CheckServer, TransactionListener, check_app

class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg): ...
    def check_local_transaction(self, check): ...

CheckServer(check_app(Listener(), secret=None))  # has all modules loaded
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
server = CheckServer(check_app({"orders": Listener()}, secret="secret"), timeout=timedelta(seconds=600))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
with server:
    place = "127.0.0.1", int(server.url.rpartition(":")[2].partition("/")[0])
    opened = []
    for _ in range(10):
        opened.append(socket.create_connection(place, 30))
        opened[-1].sendall(b"POST /check HTTP/1.1\\r\\nHost: localhost\\r\\nContent-Length: 0\\r\\n\\r\\n")
        assert opened[-1].recv(65536).startswith(b"HTTP/1.1 4")
    assert socket.create_connection(place, 30).recv(1) == b""
"""


@pytest.mark.processes
def test_half_of_the_open_files_are_the_applications() -> None:
    """Of a process that may open 20: the 11th connection is closed, the others are not."""
    subprocess.run([sys.executable, "-c", _FEW_FILES], cwd=Path(__file__).parents[2] / "lib", check=True)


def test_a_listener_may_take_longer_than_a_head(listener: Listener) -> None:
    listener.go_on.clear()
    with CheckServer(check_app({"orders": listener}, secret=SECRET), timeout=timedelta(seconds=0.05)) as server:
        threading.Timer(0.3, listener.go_on.set).start()
        assert ask(server.url).outcome == "COMMIT"
