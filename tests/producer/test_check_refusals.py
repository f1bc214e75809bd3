"""Who else than Checkback asks the check endpoint is refused, and the listener not asked."""

from __future__ import annotations

import json
import socket
import time
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from check.servers import request, unused_url
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.errors import SettingsError
from checkback.producer import (
    CheckServer,
    LocalTransactionState,
    check_app,
)
from producer.checked import (
    BODY,
    OTHER,
    SECRET,
    Listener,
    ask,
    connected,
    post,
    received,
    signed,
)


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
        groups = {"orders": CheckedGroup((unused_url(), server.url), SECRET)}
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


def _same_signature(changed: str, text: str) -> bool:
    """Base64's last character has two bits that mean nothing."""
    with suppress(ValueError):
        return changed[:3] == text[:3] and b64decode(changed[3:], validate=True) == b64decode(text[3:])
    return False


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
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


def test_no_secret_takes_unsigned_checks(listener: Listener) -> None:
    with CheckServer(check_app(listener, secret=None)) as server:
        assert [ask(server.url, None).outcome for _ in range(2)] == ["COMMIT", "COMMIT"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"Content-Type": "application/json"}, 200),
        ({"Content-Type": "Application/JSON; charset=utf-8"}, 200),
        ({"Content-Type": "application/json", "Origin": "http://127.0.0.1:8901"}, 403),
        ({"Content-Type": "application/json", "Origin": "null"}, 403),
        ({"Content-Type": "application/json", "Sec-Fetch-Site": "same-origin"}, 403),
        ({"Content-Type": "text/plain;charset=UTF-8", "Origin": "http://evil.example"}, 403),
        ({"Content-Type": "text/plain;charset=UTF-8"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded"}, 415),
        ({}, 415),
    ],
)
def test_no_secret_takes_no_browsers_checks(listener: Listener, sent: dict[str, str], status: int) -> None:
    """Any page may send such a request to this machine, and the barrier would write a rollback mark for it."""
    with CheckServer(check_app(listener, secret=None)) as server:
        assert post(server.url, BODY, sent).status_code == status
    assert len(listener.checks) == (status == 200)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1"])
def test_no_secret_serves_this_machine_only(listener: Listener, host: str) -> None:
    with pytest.raises(SettingsError, match="without a secret it serves this machine only"):
        CheckServer(check_app(listener, secret=None), host=host)


@pytest.mark.parametrize(("host", "secret"), [("localhost", None), ("127.0.0.2", None), ("0.0.0.0", SECRET)])
def test_secret_or_loopback_is_served(listener: Listener, host: str, secret: str | None) -> None:
    with CheckServer(check_app(listener, secret=secret), host=host) as server:
        assert ask(server.url, secret).outcome == "COMMIT"


def test_refused_requests_fill_no_log(server: CheckServer, caplog: pytest.LogCaptureFixture) -> None:
    assert post(server.url, BODY, {}).status_code == 401
    assert post(server.url, "", signed("")).status_code == 400
    with connected(server) as connection:
        connection.sendall(b"no HTTP\r\n\r\n")
        assert received(connection).startswith(b"HTTP/1.1 400")
    assert not caplog.records


@pytest.mark.parametrize("secret", ["", "whsec_", "not base64!", {"other": SECRET}])
def test_secret_not_fit_is_refused_and_not_quoted(listener: Listener, secret: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        check_app({"orders": listener}, secret=secret)
    assert "not base64!" not in str(refused.value)


def test_refusal_says_nothing_of_the_request(server: CheckServer) -> None:
    response = post(server.url, BODY, signed(BODY, OTHER))
    assert json.loads(response.text).keys() == {"type", "title", "status"}
    assert "tx-1" not in response.text
