"""What a client may do wrong below JSON: too slow, too much, broken off, junk. The gateway answers and lives on."""

from __future__ import annotations

import base64
import json
import socket
from contextlib import ExitStack
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checkback.gateway.http.openapi import document
from checkback.gateway.problems import CODES, Problem
from checkback.messages.names import reserved
from gateway.contents import CONTENT, HALF, OP
from gateway.process import PATIENCE_S, Gateway, half, rows
from gateway.services import half_sent, op_sent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    root = tmp_path_factory.mktemp("tables")
    with Gateway(root, "gateway.timeout=400ms", "gateway.max_body=50000B", "gateway.linger=0s") as running:
        yield running


def spoken(gateway: Gateway, *parts: bytes) -> bytes:
    """What a client hears that says this and waits until the gateway hangs up."""
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
        for part in parts:
            connection.sendall(part)
        heard = b""
        while more := connection.recv(65536):
            heard += more
    return heard


def problem(heard: bytes) -> dict[str, Any]:
    head, _, body = heard.partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    members: dict[str, Any] = json.loads(body)
    assert head.startswith(b"HTTP/1.1 %d " % members["status"])
    return members


HEAD = b"POST /v1/half HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "parts",
    [
        [b""],
        [b"POST /v1/ha"],
        [HEAD],
        [HEAD + b"Content-Length: 100\r\n\r\n"],
        [HEAD + b"Content-Length: 100\r\n\r\n", b"{"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"5\r\n12345\r\n"],
    ],
)
def test_request_that_does_not_come_is_not_waited_for(gateway: Gateway, parts: list[bytes]) -> None:
    """Its connection is closed after gateway.timeout, wherever it stopped."""
    assert problem(spoken(gateway, *parts))["code"] == "too_slow"


HEALTHZ = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("override", ["gateway.linger=0s", "producers.orders.token=env:ORDERS_TOKEN"])
def test_request_behind_another_one_is_not_waited_for(tmp_path: Path, override: str) -> None:
    """In the same write as a whole one, its end never sent: it keeps no connection from others, and no end waiting."""
    begun = [HEAD + b"Content-Length: 100\r\n\r\n", HEAD + b"Content-Length: 100\r\n\r\n{", HEAD]
    overrides = ("gateway.timeout=400ms", f"gateway.max_connections={len(begun)}", override)
    with Gateway(tmp_path, *overrides, environ={"ORDERS_TOKEN": "t" * 32}) as gateway, ExitStack() as open_ones:
        connections = [socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) for _ in begun]
        for connection, second in zip(connections, begun, strict=True):
            open_ones.enter_context(connection).sendall(HEALTHZ + second)
        for connection in connections:
            heard = b""
            while more := connection.recv(65536):
                heard += more
            assert heard.startswith(b"HTTP/1.1 200")
            assert heard.count(b"HTTP/1.1 ") == 2
        assert gateway.get("/healthz").status_code == 200
        assert gateway.stop() == (0, "")


def test_connection_may_rest_between_requests(gateway: Gateway) -> None:
    """The timeout is a request's, not a connection's."""
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
        for _ in range(2):
            connection.sendall(HEALTHZ)
            heard = b""
            while not heard.endswith(b"}"):
                heard += connection.recv(65536)
            assert heard.startswith(b"HTTP/1.1 200")
            connection.settimeout(0.8)
            with pytest.raises(TimeoutError):
                connection.recv(1)
            connection.settimeout(PATIENCE_S)


def test_head_that_never_ends_is_cut_off(gateway: Gateway) -> None:
    assert (
        problem(spoken(gateway, HEAD, b"".join(b"x-%d: %s\r\n" % (n, b"y" * 1000) for n in range(40))))["status"] == 431
    )


@pytest.mark.parametrize(("begun", "code"), [(HEAD, "headers_too_large"), (b"\0junk\r\n\r\n", "malformed")])
def test_refusal_is_heard_by_a_client_that_still_sends(gateway: Gateway, begun: bytes, code: str) -> None:
    """A close with its bytes unread would reset the connection, and take the answer with it."""
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
        connection.sendall(begun + b"x: " + b"y" * 40_000)
        connection.sendall(b"y" * 1000)
        head = connection.recv(1, socket.MSG_PEEK)
        assert head
        connection.sendall(b"y" * 1000)  # a reset would answer this one
        heard = b""
        while more := connection.recv(65536):
            heard += more
        assert problem(heard)["code"] == code
        connection.sendall(b"y" * 1000)
        assert connection.recv(1) == b""


def test_refused_client_that_goes_on_sending_is_cut_off(gateway: Gateway) -> None:
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
        connection.sendall(b"\0junk\r\n\r\n")
        with pytest.raises(ConnectionError):
            connection.sendall(b"y" * (40 << 20))  # more than the sockets hold


def chunked(gateway: Gateway, head: bytes, *parts: bytes) -> bytes:
    """What a client hears that sends its head, each part in a packet of its own, and waits for the hanging up."""
    with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(head + b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
        heard = b""
        while not heard.endswith(b"\r\n\r\n"):
            heard += connection.recv(1)
        assert heard == b"HTTP/1.1 100 Continue\r\n\r\n"
        for part in parts:
            connection.sendall(part)
        heard = b""
        while more := connection.recv(65536):
            heard += more
    return heard


CLOSING = HEAD + b"Connection: close\r\n"


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["many", "one"])
@pytest.mark.parametrize("override", ["gateway.linger=0s", "producers.orders.token=env:ORDERS_TOKEN"])
def test_trailers_that_never_end_are_cut_off(tmp_path: Path, end: bytes, override: str) -> None:
    """Nobody reads them, so nothing would hold them up; also of one who has been told that a token is needed."""
    part = 1000 * (b"x: " + b"y" * 1000 + end)
    with (
        Gateway(tmp_path, override, environ={"ORDERS_TOKEN": "t" * 32}) as gateway,
        socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection,
    ):
        connection.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\nx: ")
        with pytest.raises(ConnectionError):
            connection.sendall(40 * part)  # more than the sockets hold
        assert gateway.get("/healthz").status_code == 200


def test_body_in_chunks_is_no_trailer(gateway: Gateway) -> None:
    """Each chunk's header at the end of a packet, and more bytes of them all than trailers may have."""
    content = json.dumps(half("chunks", body="QUJD" * 10_000)).encode()
    chunks = [content[start : start + 4000] for start in range(0, len(content), 4000)]
    parts = [part for chunk in chunks for part in (b"%x\r\n" % len(chunk), chunk + b"\r\n")]
    heard = chunked(gateway, CLOSING, *parts, b"0\r\nx: " + b"y" * 1000 + b"\r\n\r\n")
    assert heard.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    ("name", "wrong", "right", "code"),
    [
        (b"Host", b"evil.example", b"localhost", "wrong_host"),
        (b"Content-Type", b"text/plain", b"application/json", "unsupported_media_type"),
    ],
)
def test_trailers_are_no_headers(gateway: Gateway, name: bytes, wrong: bytes, right: bytes, code: str) -> None:
    """Else a page in a browser that is kept out by a header would get in by a trailer."""
    line = b"%s: %s\r\n"
    head = CLOSING.replace(line % (name, right), line % (name, wrong)) + b"Transfer-Encoding: chunked\r\n\r\n"
    content = json.dumps(half(code)).encode()
    body = b"%x\r\n%s\r\n0\r\n" % (len(content), content)
    assert problem(spoken(gateway, head + body + line % (name, right) + b"\r\n"))["code"] == code


def test_one_of_two_hosts_is_not_believed(gateway: Gateway) -> None:
    """A proxy in front may have believed the other one (RFC 9112, 3.2)."""
    assert b"Host: localhost\r\n" in CLOSING
    for hosts in (b"Host: evil.example\r\nHost: localhost\r\n", b"Host: localhost\r\nHost: evil.example\r\n", b""):
        head = CLOSING.replace(b"Host: localhost\r\n", hosts)
        assert problem(spoken(gateway, head + b"Content-Length: 2\r\n\r\n{}"))["code"] == "wrong_host"


#: as Java's HttpClient sends them with every request
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\nUpgrade: h2c\r\n"


@pytest.mark.parametrize("offer", [H2C, b"Connection: Upgrade\r\nUpgrade: websocket\r\n"])
def test_upgrade_is_ignored(gateway: Gateway, offer: bytes) -> None:
    """The requests are answered as without it, also in one packet; the last one closes."""
    content = json.dumps(half("upgrade")).encode()
    request = b"Content-Length: %d\r\n\r\n" % len(content) + content
    head = HEAD + offer
    closing = head.replace(b"Connection: ", b"Connection: close, ")
    heard = spoken(gateway, 3 * (head + request) + closing + request)
    assert heard.count(b"HTTP/1.1 200") == heard.count(b"HTTP/1.1 ") == 4
    assert chunked(gateway, closing, b"%x\r\n" % len(content), content, b"\r\n0\r\n\r\n").startswith(b"HTTP/1.1 200")


def test_body_behind_an_upgrade_is_no_request(gateway: Gateway) -> None:
    """Also when it comes in a packet of its own."""
    head = HEAD + H2C.replace(b"Connection: ", b"Connection: close, ")
    inner = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    heard = chunked(gateway, head, b"%x\r\n" % len(inner), inner, b"\r\n0\r\n\r\n")
    assert problem(heard)["code"] == "malformed"
    assert heard.count(b"HTTP/1.1 ") == 1


def test_what_is_no_http_is_told_and_not_logged(tmp_path: Path) -> None:
    """Whoever reaches the port could fill the log with it."""
    with Gateway(tmp_path) as gateway:
        for junk in (
            b"\0junk\r\n\r\n",
            b"POST /v1/half HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ):
            assert problem(spoken(gateway, junk))["code"] == "malformed"
        assert gateway.stop() == (0, "")


def test_one_connection_too_many_is_refused(tmp_path: Path) -> None:
    """With the reason; when another has gone there is room again."""
    with Gateway(tmp_path, "gateway.max_connections=2") as gateway:
        first, second = (socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) for _ in range(2))
        with first, second:
            refused = spoken(gateway)
            assert problem(refused)["code"] == "too_many_connections"
            assert b"retry-after: 1\r\n" in refused
            first.shutdown(socket.SHUT_WR)
            assert first.recv(1) == b""  # the gateway has closed it, too
        assert gateway.post("/v1/half", half("later")).status_code == 200


def _idle(gateway: Gateway, connections: int) -> ExitStack:
    with ExitStack() as stack:
        for _ in range(connections):
            stack.enter_context(socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S))
        return stack.pop_all()


def test_limit_of_open_files_is_raised_for_connections(tmp_path: Path) -> None:
    """They leave the gateway those that it needs for the tables and the journal."""
    large = half("large", body=base64.b64encode(bytes(200_000)).decode())
    with Gateway(tmp_path, "gateway.max_connections=600", open_files="-S -n 300") as gateway, _idle(gateway, 500):
        assert gateway.post("/v1/half", large).status_code == 200
        assert gateway.stop() == (0, "")
    assert [row["transaction_id"] for row in rows(tmp_path, "half")] == ["large"]


def test_fewer_connections_than_set_where_the_limit_of_open_files_is_low(tmp_path: Path) -> None:
    with Gateway(tmp_path, "gateway.max_connections=600", open_files="-n 300") as gateway:
        with _idle(gateway, 44):
            assert problem(spoken(gateway))["code"] == "too_many_connections"
        code, said = gateway.stop()
    assert code == 0
    assert "44 connections at most, not 600: the limit of open files is 300 (ulimit -n)" in said


def test_client_that_hangs_up_is_no_failure(gateway: Gateway) -> None:
    """In the middle of its body, or before the answer."""
    for content in (b"{", json.dumps(half("gone")).encode()):
        length = len(content) + (content == b"{")
        with socket.create_connection(("127.0.0.1", gateway.port), PATIENCE_S) as connection:
            connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % length + content)
    assert gateway.post("/v1/half", half("gone")).status_code == 200


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(["/v1/half", "/v1/halves", "/v1/op", "/v1/ops"]), content=CONTENT)
def test_no_body_makes_the_gateway_fail(gateway: Gateway, path: str, content: object) -> None:
    """Whatever JSON comes: an answer of the contract, never a 5xx."""
    answer = gateway.post(path, content)
    assert answer.status_code in (200, 400, 404, 409, 422)
    results = answer.json().get("results", [answer.json()]) if answer.status_code == 200 else [answer.json()]
    for result in results:
        assert "queue_offset" in result or result["status"] == CODES[result["code"]][0] < 500


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
def test_no_bytes_make_the_gateway_fail(gateway: Gateway, content: bytes) -> None:
    """Neither as a body, nor as a path, nor in a question."""
    headers = {"Content-Type": "application/json"}
    answer = requests.post(f"{gateway.url}/v1/halves", data=content, headers=headers, timeout=PATIENCE_S)
    assert answer.status_code in (400, 422)
    text = content.decode("latin-1").replace("%", "%25").replace("?", "%3F").replace("#", "%23")
    assert gateway.get(f"/v1/transactions/x{text}", producer_group="orders").status_code in (404, 422)
    assert gateway.get("/v1/transactions/x", producer_group=text).status_code in (404, 422)


@cache
def _validator() -> Any:
    import jsonschema  # type: ignore[import-untyped]  # it compiles its grammars: more than a second

    strict = jsonschema.Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return jsonschema.validators.extend(jsonschema.Draft202012Validator, type_checker=strict)


def described(name: str, content: object) -> bool:
    """Is it as `/openapi.json` describes it? A pattern's $ is the end, not what Python takes it for."""
    schema = document(tokens=False) | {"$ref": f"#/components/schemas/{name}"}
    texts = content.values() if isinstance(content, dict) else ()
    ends = any(isinstance(text, str) and text.endswith("\n") for text in texts)
    return not ends and bool(_validator()(schema).is_valid(content))


@given(HALF)
def test_what_is_taken_is_what_is_described(content: dict[str, Any]) -> None:
    """The OpenAPI description and the rules of `messages`, but for the limits that a schema cannot say."""
    taken = half_sent(content)
    if isinstance(taken, Problem):
        topic = content.get("real_topic")
        unsaid = isinstance(topic, str) and reserved(topic) is not None
        unsaid |= taken.detail == "ordering_key: real_queue_id is there too, only one of them may be"
        assert unsaid or not described("HalfMessage", content), taken.detail
    else:
        assert described("HalfMessage", content)


@given(OP)
def test_what_op_is_taken_is_what_is_described(content: dict[str, Any]) -> None:
    assert isinstance(op_sent(content), Problem) != described("Op", content)
