"""The check endpoint over real HTTP: what Checkback's own client is told, and who else is refused."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from check.servers import request, unused_url
from checkback.check.client import CheckClient, Group
from checkback.check.scheduler import CheckScheduler
from checkback.check.signature import Signer
from checkback.check.wire import CheckAnswer, Message
from checkback.errors import CheckbackError, SettingsError
from checkback.producer import (
    AsyncTransactionListener,
    CheckRequest,
    CheckServer,
    LocalTransactionState,
    TransactionListener,
    check_app,
)
from producer.serving import serving

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
OTHER = "whsec_" + "A" * 32
COMMIT = LocalTransactionState.COMMIT


class Listener(TransactionListener):
    """Says ``said`` of every transaction, and remembers who asked."""

    def __init__(self, said: Any = COMMIT) -> None:
        self.said = said
        self.checks: list[CheckRequest] = []
        self.go_on = threading.Event()
        self.go_on.set()

    def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError

    def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        self.checks.append(check)
        self.go_on.wait(5)
        if isinstance(self.said, Exception):
            raise self.said
        state: LocalTransactionState | None = self.said
        return state


class AsyncListener(AsyncTransactionListener):
    """The same in the event loop, which it remembers."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.loops: set[int] = set()

    async def execute_local_transaction(self, message: Any, arg: Any) -> LocalTransactionState | None:
        raise NotImplementedError

    async def check_local_transaction(self, check: CheckRequest) -> LocalTransactionState | None:
        await asyncio.sleep(0)
        self.loops.add(id(asyncio.get_running_loop()))
        return self._listener.check_local_transaction(check)


@pytest.fixture
def listener() -> Listener:
    return Listener()


@pytest.fixture
def server(listener: Listener) -> Iterator[CheckServer]:
    with CheckServer(check_app({"orders": listener}, secret=SECRET)) as running:
        yield running


def ask(url: str, secret: str | None = SECRET, timeout_s: float = 5, **changes: Any) -> CheckAnswer:
    with CheckClient({"orders": Group((url,), secret), "other": Group((url,), secret)}, timeout_s) as client:
        return client.ask(request(**changes))


def signed(body: str, secret: str = SECRET, name: str = "chk_0_7_1", ago: float = 0) -> dict[str, str]:
    return {"Content-Type": "application/json", **Signer(secret).headers(name, time.time() - ago, body)}


def post(url: str, body: str | bytes, headers: dict[str, str]) -> requests.Response:
    return requests.post(url, data=body, headers=headers, timeout=5)


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("said", "told"),
    [
        (COMMIT, "COMMIT"),
        (LocalTransactionState.ROLLBACK, "ROLLBACK"),
        (LocalTransactionState.UNKNOWN, "UNKNOWN"),
        (None, "UNKNOWN"),
        (RuntimeError("secret"), "UNKNOWN"),
        ("COMMIT", "UNKNOWN"),
        (True, "UNKNOWN"),
    ],
)
def test_client_is_told_what_the_listener_says(kind: str, said: Any, told: str) -> None:
    listener = Listener(said)
    own = listener if kind == "sync" else AsyncListener(listener)
    with CheckServer(check_app({"orders": own}, secret=SECRET)) as server:
        answer = ask(server.url)
    assert (answer.outcome, answer.error) == (told, None)
    assert listener.checks == [request()]


def test_listener_is_given_the_message_when_the_group_sends_it(listener: Listener) -> None:
    message = Message(b"\x00body", "tag", None, {"p": "1"})
    with (
        CheckServer(check_app(listener, secret=SECRET)) as server,
        CheckClient({"orders": Group((server.url,), SECRET, include_body=True)}, 5) as client,
    ):
        assert client.ask(request(message=message)).outcome == "COMMIT"
    assert listener.checks == [request(message=message)]


def test_replay_is_refused_and_the_listener_not_asked(server: CheckServer, listener: Listener) -> None:
    body = request().to_json()
    headers = signed(body)
    assert post(server.url, body, headers).status_code == 200
    for _ in range(3):
        again = post(server.url, body, headers)
        assert again.status_code == 409
        assert "COMMIT" not in again.text
    assert len(listener.checks) == 1


@pytest.mark.parametrize("form", ["{}.0", "{}.999", "+{}", "0{}", " {}", "{}_0", "{}e0"])
def test_replay_with_its_timestamp_written_otherwise_is_refused(
    server: CheckServer, listener: Listener, form: str
) -> None:
    """The signature library reads the timestamp as a fraction; the signature fits all of these."""
    body = request().to_json()
    headers = signed(body)
    assert post(server.url, body, headers).status_code == 200
    headers["webhook-timestamp"] = form.format(headers["webhook-timestamp"])
    with socket.create_connection(("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))) as sock:
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST /check HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
        sock.sendall((head + body).encode())
        status = int(sock.makefile("rb").readline().split()[1])
    assert status == (409 if form == " {}" else 401)  # HTTP itself takes the space away
    assert len(listener.checks) == 1


def test_check_sent_again_is_answered_again(listener: Listener) -> None:
    """Checkback signs anew what it sends again, under the same webhook-id: to another endpoint, or after a crash."""
    listener.said = LocalTransactionState.ROLLBACK
    clock = [time.time()]
    with CheckServer(check_app(listener, secret=SECRET)) as server:
        groups = {"orders": Group((unused_url(), server.url), SECRET)}
        with CheckClient(groups, 5, clock=lambda: clock[0]) as client:
            first = client.ask(request())
            clock[0] += 1
            second = client.ask(request())
    assert first.outcome == second.outcome == "ROLLBACK"
    assert len(first.failed_tries) == 1
    assert [check.check_times for check in listener.checks] == [1, 1]


def test_replay_raced_is_answered_once(server: CheckServer, listener: Listener) -> None:
    body = request().to_json()
    headers = signed(body)
    with ThreadPoolExecutor(8) as pool:
        statuses = list(pool.map(lambda _: post(server.url, body, headers).status_code, range(24)))
    assert sorted(statuses) == [200] + [409] * 23
    assert len(listener.checks) == 1


def test_unsigned_is_refused(server: CheckServer, listener: Listener) -> None:
    assert ask(server.url, None).error == "status 401"
    assert ask(server.url, OTHER).error == "status 401"
    body = request().to_json()
    for missing in ("webhook-id", "webhook-timestamp", "webhook-signature"):
        headers = signed(body)
        del headers[missing]
        assert post(server.url, body, headers).status_code == 401
    assert not listener.checks


@pytest.mark.parametrize(("ago", "status"), [(310, 401), (-310, 401), (1e9, 401), (290, 200), (-290, 200)])
def test_expired_is_refused(server: CheckServer, ago: float, status: int) -> None:
    body = request().to_json()
    assert post(server.url, body, signed(body, ago=ago)).status_code == status


BODY = request().to_json()


def _same_signature(changed: str, text: str) -> bool:
    """Base64's last character has two bits that mean nothing."""
    with suppress(ValueError):
        return changed[:3] == text[:3] and b64decode(changed[3:], validate=True) == b64decode(text[3:])
    return False


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    part=st.sampled_from(["body", "webhook-id", "webhook-timestamp", "webhook-signature"]),
    where=st.integers(0, 10_000),
    char=st.sampled_from('0123456789abcdefAZ{}",:+/= '),
)
def test_tampered_is_refused(server: CheckServer, listener: Listener, part: str, where: int, char: str) -> None:
    """One character of the body or of a header changed: the listener is not asked."""
    listener.checks.clear()
    headers, body = signed(BODY), BODY
    text = body if part == "body" else headers[part]
    where %= len(text)
    changed = text[:where] + char + text[where + 1 :]
    if changed == text or (part == "webhook-signature" and _same_signature(changed, text)):
        return
    if part == "body":
        body = changed
    else:
        headers[part] = changed
    response = post(server.url, body, {name: value.strip() for name, value in headers.items()})
    assert response.status_code == 401
    assert not listener.checks


def test_wrong_group_is_refused(server: CheckServer, listener: Listener) -> None:
    assert ask(server.url, group="other").error == "status 403"
    assert not listener.checks


def test_group_is_held_to_its_own_secret(listener: Listener) -> None:
    """Who knows one group's secret asks for no other group."""
    other = Listener()
    app = check_app({"orders": listener, "other": other}, secret={"orders": SECRET, "other": OTHER})
    with CheckServer(app) as server:
        assert ask(server.url, SECRET).outcome == "COMMIT"
        assert ask(server.url, OTHER, group="other").outcome == "COMMIT"
        assert ask(server.url, OTHER).error == "status 403"
        assert ask(server.url, SECRET, group="other").error == "status 403"
    assert len(listener.checks) == len(other.checks) == 1


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


@pytest.mark.parametrize(
    "body",
    ["", "null", "[]", "{}", "{", '"a"', BODY.replace('"queue_id":0', '"queue_id":-1'), BODY.replace("7", "true")]
    + [BODY.replace('"tx-1"', text) for text in ("null", "7", '""', "[]")]
    + [BODY[:-1] + ',"body":"not base64"}', "[" * 10_000],
)
def test_not_a_check_is_refused(server: CheckServer, listener: Listener, body: str) -> None:
    """Signed or not, what cannot be understood is 400."""
    response = post(server.url, body, signed(body))
    assert (response.status_code, response.headers["content-type"]) == (400, "application/problem+json")
    assert not listener.checks


def test_other_methods_and_paths_are_refused(server: CheckServer) -> None:
    assert requests.get(server.url, timeout=5).status_code == 405
    assert requests.post(f"{server.url}/other", timeout=5).status_code == 404


def test_listener_too_slow_is_503_and_the_next_endpoint_is_asked(listener: Listener) -> None:
    slow = Listener()
    slow.go_on.clear()
    with (
        CheckServer(check_app(slow, secret=SECRET, timeout_s=0.2)) as first,
        CheckServer(check_app(listener, secret=SECRET)) as second,
        CheckClient({"orders": Group((first.url, second.url), SECRET)}, 5) as client,
    ):
        answer = client.ask(request())
        slow.go_on.set()
    assert (answer.outcome, answer.failed_tries) == ("COMMIT", ((first.url, "status 503"),))


def test_slow_request_is_not_waited_for(listener: Listener) -> None:
    with (
        CheckServer(check_app(listener, secret=SECRET, timeout_s=0.2)) as server,
        socket.create_connection(("127.0.0.1", int(server.url.split(":")[2].split("/")[0]))) as sock,
    ):
        sock.sendall(b"POST /check HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc")
        assert b" 408 " in sock.makefile("rb").readline()


def test_no_secret_takes_unsigned_checks(listener: Listener) -> None:
    with CheckServer(check_app(listener, secret=None)) as server:
        assert [ask(server.url, None).outcome for _ in range(2)] == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!", {"other": SECRET}])
def test_secret_not_fit_is_refused_and_not_quoted(listener: Listener, secret: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        check_app({"orders": listener}, secret=secret)
    assert "not base64!" not in str(refused.value)


def test_server_in_the_running_loop_calls_the_listener_there(listener: Listener) -> None:
    own = AsyncListener(listener)

    async def run() -> tuple[int, CheckAnswer, str]:
        async with CheckServer(check_app(own, secret=SECRET)) as server:
            return id(asyncio.get_running_loop()), await asyncio.to_thread(ask, server.url), server.url

    loop, answer, url = asyncio.run(run())
    assert answer.outcome == "COMMIT"
    assert own.loops == {loop}
    assert ask(url, timeout_s=1).error == "connection refused"


def test_server_ended_answers_no_more(listener: Listener) -> None:
    with CheckServer(check_app(listener, secret=SECRET)) as server:
        assert ask(server.url).outcome == "COMMIT"
    assert ask(server.url, timeout_s=1).error == "connection refused"


def test_address_taken_is_one_line(server: CheckServer, listener: Listener) -> None:
    port = int(server.url.split(":")[2].split("/")[0])
    with pytest.raises(CheckbackError, match="cannot listen: address already in use"):
        CheckServer(check_app(listener, secret=SECRET), port=port)


def test_app_is_served_by_any_asgi_server(listener: Listener) -> None:
    with serving(check_app(listener, secret=SECRET)) as url:
        assert ask(f"{url}/wherever").outcome == "COMMIT"


def test_app_mounts_in_starlette(listener: Listener) -> None:
    """As a route at its path; as a mount under a path that ends in a slash. The client follows no redirect."""
    applications = pytest.importorskip("starlette.applications", reason="starlette is not installed")
    routing = pytest.importorskip("starlette.routing")
    app = check_app(listener, secret=SECRET)
    routes = [routing.Route("/check", app, methods=["POST"]), routing.Mount("/mounted", app)]
    with serving(applications.Starlette(routes=routes)) as url:
        assert ask(f"{url}/check").outcome == "COMMIT"
        assert ask(f"{url}/mounted/", offset=8).outcome == "COMMIT"
        assert ask(f"{url}/mounted", offset=9).error == "redirect 307"


def test_throughput_of_checks_is_not_lost_to_one_slow_listener(server: CheckServer) -> None:
    """Many checks at once, each answered with its own transaction id."""
    with CheckClient({"orders": Group((server.url,), SECRET)}, 5) as client:
        asked = [request(offset=number, transaction_id=f"tx-{number}") for number in range(200)]
        answers = client.ask_all(CheckScheduler(asked), 16)
    assert [answer.outcome for _, answer in answers] == ["COMMIT"] * 200


def test_refusal_says_nothing_of_the_request(server: CheckServer) -> None:
    response = post(server.url, BODY, signed(BODY, OTHER))
    assert json.loads(response.text).keys() == {"type", "title", "status"}
    assert "tx-1" not in response.text


HEAD = b"POST /check HTTP/1.1\r\nHost: x\r\n"


def received(connection: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    connection.settimeout(20)
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


def connected(server: CheckServer) -> socket.socket:
    host, port = server.url.split("/")[2].split(":")
    return socket.create_connection((host, int(port)), 20)


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
    app = check_app(listener, secret=SECRET, timeout_s=0.2)
    with CheckServer(app, timeout_s=0.3) as server, connected(server) as connection:
        connection.sendall(begun)
        received(connection)
    assert listener.checks == []


def test_endless_head_is_cut_off(listener: Listener) -> None:
    with CheckServer(check_app(listener, secret=SECRET), timeout_s=600) as server, connected(server) as connection:
        connection.sendall(HEAD)
        try:
            for number in range(10_000):
                connection.sendall(b"x-%d: %s\r\n" % (number, b"y" * 1000))
        except OSError:
            return
        received(connection)


def test_endless_trailers_are_cut_off(listener: Listener) -> None:
    app = check_app(listener, secret=SECRET, timeout_s=600)
    with CheckServer(app, timeout_s=600) as server, connected(server) as connection:
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
        CheckServer(check_app({"orders": listener}, secret=SECRET), timeout_s=600, max_connections=2) as server,
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


def test_a_listener_may_take_longer_than_a_head(listener: Listener) -> None:
    listener.go_on.clear()
    with CheckServer(check_app({"orders": listener}, secret=SECRET), timeout_s=0.05) as server:
        threading.Timer(0.3, listener.go_on.set).start()
        assert ask(server.url).outcome == "COMMIT"
