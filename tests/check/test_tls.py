"""HTTPS: certificates are verified, and the total timeout holds for the handshake and the reading too."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from check.servers import SHORT, reply, request, says
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.wire import Message

if TYPE_CHECKING:
    from pathlib import Path

    from checkback.check.wire import CheckAnswer

Serve = Callable[[socket.socket], None]
OPENSSL = shutil.which("openssl")
pytestmark = pytest.mark.skipif(OPENSSL is None, reason="no openssl to make a certificate with")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key) of 127.0.0.1, signed by itself."""
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Another one."""
    return self_signed(tmp_path_factory.mktemp("other"))


def self_signed(folder: Path) -> tuple[Path, Path]:
    crt, key = folder / "crt.pem", folder / "key.pem"
    command = (
        f"{OPENSSL} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=checkback -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-keyout", str(key), "-out", str(crt)], check=True, capture_output=True)
    return crt, key


@contextmanager
def server(serve: Serve) -> Iterator[int]:
    """A port whose connections are given to ``serve``."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    sock, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=attend, args=(sock,), daemon=True).start()

        def attend(sock: socket.socket) -> None:
            try:
                with sock:
                    serve(sock)
            except OSError:
                pass

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def server_context(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


def over_tls(
    certificate: tuple[Path, Path], answer: Callable[[ssl.SSLSocket], None]
) -> Callable[[socket.socket], None]:
    context = server_context(certificate)

    def serve(sock: socket.socket) -> None:
        with context.wrap_socket(sock, server_side=True) as tls:
            request_read = b""
            while part := tls.recv(65536):
                request_read += part
                if request_read.endswith(b"}"):  # of its JSON
                    request_read = b""
                    answer(tls)

    return serve


def ask(port: int, ca_file: Path | None, timeout_s: float = 5, times: int = 1) -> CheckAnswer:
    groups = {"orders": CheckedGroup((f"https://127.0.0.1:{port}/check",))}
    with CheckClient(groups, timeout_s, None if ca_file is None else str(ca_file)) as client:
        for _ in range(times - 1):
            client.ask(request())
        return client.ask(request())


def test_certificate_of_the_ca_file_is_accepted(certificate: tuple[Path, Path]) -> None:
    """And the connection is kept alive."""
    connections = []

    def serve(sock: socket.socket) -> None:
        connections.append(sock)
        over_tls(certificate, lambda tls: tls.sendall(reply(says("COMMIT"))))(sock)

    with server(serve) as port:
        answer = ask(port, certificate[0], times=3)
    assert (answer.outcome, answer.error, len(connections)) == ("COMMIT", None, 1)


def test_certificate_unknown_is_no_answer(certificate: tuple[Path, Path]) -> None:
    with server(over_tls(certificate, lambda tls: tls.sendall(reply(says("COMMIT"))))) as port:
        answer = ask(port, None)
    assert answer.error == "certificate not accepted: self-signed certificate"


def test_certificate_for_another_host_is_no_answer(certificate: tuple[Path, Path]) -> None:
    """The reason names no name: that in the certificate is the server's word."""
    with server(over_tls(certificate, lambda tls: tls.sendall(reply(says("COMMIT"))))) as port:
        groups = {"orders": CheckedGroup((f"https://localhost:{port}/check",))}
        with CheckClient(groups, 5, str(certificate[0])) as client:
            assert client.ask(request()).error == "certificate not accepted: it is not for this host"


def test_authorities_are_the_systems_or_those_of_the_ca_file(
    certificate: tuple[Path, Path], other: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a ca_file those that OpenSSL is told of; with one, not those."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
    with server(over_tls(certificate, lambda tls: tls.sendall(reply(says("COMMIT"))))) as port:
        assert ask(port, None).outcome == "COMMIT"
        assert ask(port, other[0]).error == "certificate not accepted: self-signed certificate"


def test_plain_server_is_no_answer() -> None:
    with server(lambda sock: sock.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")) as port:
        answer = ask(port, None)
    assert answer.error == "TLS failed: WRONG_VERSION_NUMBER"


def test_server_that_hangs_up_in_the_handshake_is_no_answer() -> None:
    with server(socket.socket.close) as port:
        answer = ask(port, None)
    assert (answer.error, answer.delivered) == ("TLS failed: connection closed", False)


def test_handshake_that_never_ends_frees_the_thread() -> None:
    stopped = threading.Event()

    def silent(sock: socket.socket) -> None:
        stopped.wait(5)

    with server(silent) as port:
        answer = ask(port, None, SHORT)
        stopped.set()
    assert answer.error == "timed out after 0.3 s"
    assert answer.latency_ms < 10_000


def test_body_dripped_over_tls_frees_the_thread(certificate: tuple[Path, Path]) -> None:
    stopped = threading.Event()

    def drip(tls: ssl.SSLSocket) -> None:
        tls.sendall(reply(b"", Content_Length="200"))
        while not stopped.wait(0.02):
            tls.sendall(b" ")

    with server(over_tls(certificate, drip)) as port:
        answer = ask(port, certificate[0], SHORT)
        stopped.set()
    assert answer.error == "timed out after 0.3 s"
    assert answer.latency_ms < 10_000


@pytest.mark.slow
def test_request_not_read_after_a_slow_handshake_frees_the_thread(certificate: tuple[Path, Path]) -> None:
    """Handshake and sending share the time."""
    stopped = threading.Event()
    context = server_context(certificate)

    def serve(sock: socket.socket) -> None:
        stopped.wait(2.7)
        with context.wrap_socket(sock, server_side=True):
            stopped.wait(60)

    large = request(message=Message(body=bytes(16 * 1024 * 1024)))
    with server(serve) as port:
        group = CheckedGroup((f"https://127.0.0.1:{port}/check",), include_body=True)
        with CheckClient({"orders": group}, 3.0, str(certificate[0])) as client:
            started = time.monotonic()
            answer = client.ask(large)
            elapsed = time.monotonic() - started
        stopped.set()
    assert answer.error == "timed out after 3 s"
    assert elapsed < 5.5  # 5.7 if each had the whole time
