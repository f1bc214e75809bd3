"""HTTPS in both directions: certificates are verified by the producer, and shown by its check server."""

from __future__ import annotations

import asyncio
import shutil
import ssl
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from check.servers import request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.errors import CheckbackError, SettingsError
from checkback.producer import (
    AsyncTransactionProducer,
    CheckServer,
    RetryPolicy,
    SendStatus,
    TransactionProducer,
    TransactionSendResult,
    check_app,
)
from producer.checked import connected
from producer.gateways import StubGateway
from producer.sending import MESSAGE, Listener

if TYPE_CHECKING:
    from pathlib import Path

OPENSSL = shutil.which("openssl")
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(certificate, key) of 127.0.0.1, signed by itself."""
    if OPENSSL is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "crt.pem"), str(folder / "key.pem")
    command = (
        f"{OPENSSL} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=checkback -addext subjectAltName=IP:127.0.0.1"
    )
    subprocess.run([*command.split(), "-out", files[0], "-keyout", files[1]], check=True, capture_output=True)
    return files


def test_check_server_shows_its_certificate(certificate: tuple[str, str]) -> None:
    app = check_app(Listener(lambda *_: None), secret=SECRET)
    with CheckServer(app, certificate=certificate[0], key=certificate[1]) as server:
        assert server.url.startswith("https://")
        groups = {"orders": CheckedGroup((server.url,), SECRET)}
        with CheckClient(groups, 5, certificate[0]) as trusting, CheckClient(groups, 5) as doubting:
            assert trusting.ask(request()).outcome == "UNKNOWN"
            assert "certificate not accepted" in str(doubting.ask(request(offset=8)).error)


def test_connection_without_a_handshake_is_not_kept(certificate: tuple[str, str]) -> None:
    app = check_app(Listener(lambda *_: None), secret=SECRET)
    with (
        CheckServer(app, certificate=certificate[0], key=certificate[1], timeout=timedelta(seconds=0.3)) as server,
        connected(server) as connection,
    ):
        assert connection.recv(1) == b""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_producer_verifies_the_gateways_certificate(certificate: tuple[str, str], kind: str) -> None:
    """What answers here is no gateway, and says so: with the authority in ca_file the request gets that far."""
    app = check_app(Listener(lambda *_: None), secret=SECRET)

    async def asynchronously(url: str, options: dict[str, Any]) -> TransactionSendResult:
        async with AsyncTransactionProducer("orders", url, Listener(lambda *_: None), **options) as producer:
            return await producer.send_in_transaction(MESSAGE)

    def send(url: str, **options: Any) -> TransactionSendResult:
        options["retry_policy"] = RetryPolicy(total_timeout=timedelta(seconds=2))
        if kind == "async":
            return asyncio.run(asynchronously(url, options))
        with TransactionProducer("orders", url, Listener(lambda *_: None), **options) as producer:
            return producer.send_in_transaction(MESSAGE)

    with CheckServer(app, path="/v1/halves", certificate=certificate[0], key=certificate[1]) as server:
        url = server.url.removesuffix("/v1/halves")
        doubting, trusting = send(url), send(url, ca_file=certificate[0])
    assert doubting.send_status is SendStatus.NO_ANSWER
    assert "certificate not accepted" in str(doubting.half_error)
    assert str(doubting.half_error).endswith("; look at the gateway's URL and at ca_file")
    assert trusting.send_status is SendStatus.REJECTED
    assert trusting.half_error is not None
    assert trusting.half_error.status == 401


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://127.0.0.1:{}", "TLS failed: WRONG_VERSION_NUMBER; look at the gateway's URL: http or https?"),
        ("http://no.such.host.invalid:{}", "host name: could not be resolved; look at the gateway's URL"),
    ],
)
def test_url_of_another_scheme_or_host_is_told_as_such(url: str, told: str) -> None:
    listener, once = Listener(lambda *_: None), RetryPolicy(total_timeout=timedelta(seconds=2))
    with CheckServer(check_app(listener, secret=SECRET)) as server:
        url = url.format(server.url.split(":")[2].partition("/")[0])
        with TransactionProducer("orders", url, listener, retry_policy=once) as producer:
            result = producer.send_in_transaction(MESSAGE)
    assert str(result.half_error).endswith(told)


def test_files_not_fit_are_one_line(certificate: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "no.pem").write_text("no certificate")
    listener = Listener(lambda *_: None)
    for file in (str(tmp_path / "no.pem"), str(tmp_path / "missing.pem")):
        with pytest.raises(SettingsError):
            TransactionProducer("orders", "https://127.0.0.1", listener, ca_file=file)
        with pytest.raises(CheckbackError, match="cannot be read as PEM"):
            CheckServer(check_app(listener, secret=SECRET), certificate=file, key=certificate[1])


FORK = """
import os, sys
from checkback.producer import LocalTransactionState, Message, TransactionListener, TransactionProducer

class Listener(TransactionListener):
    def execute_local_transaction(self, message, arg):
        return LocalTransactionState.COMMIT

    def check_local_transaction(self, check):
        raise NotImplementedError

def send(name):
    producer.send_in_transaction(Message("payments", b"1", transaction_id=name)).raise_for_status()
    assert producer.flush()

producer = TransactionProducer("orders", sys.argv[1], Listener(), ca_file=sys.argv[2])
send("before")
pid = os.fork()
if pid == 0:
    send("child")
    producer.close()
    sys.exit()
assert os.waitpid(pid, 0)[1] == 0
send("after")
producer.close()
"""


@pytest.mark.processes
def test_forked_child_ends_no_tls_session_of_its_parent(certificate: tuple[str, str]) -> None:
    """The end of a session is a message: sent in the child, it would end the parent's."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    gateway = StubGateway()
    gateway.server._listener = context.wrap_socket(gateway.server._listener, server_side=True)
    with gateway:
        url = gateway.url.replace("http:", "https:")
        subprocess.run([sys.executable, "-c", FORK, url, certificate[0]], check=True, timeout=60)
    connections = {
        received.json["messages"][0]["transaction_id"]: received.connection
        for received in gateway.requests("/v1/halves")
    }
    assert connections["before"] == connections["after"] != connections["child"]
    assert len(gateway.ops) == 3
