"""The client against real servers: what is an answer, what is none and why, and when it stops waiting."""

from __future__ import annotations

import gzip
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from check.servers import (
    SHORT,
    Handler,
    Received,
    Server,
    Wire,
    always,
    hang_up,
    late,
    reply,
    request,
    says,
    unused_url,
)
from checkback.check.breaker import Breaker, Limits
from checkback.check.client import CheckClient, Group
from checkback.check.exchange import CheckAnswer, Message
from checkback.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET_WORD = b"the-body-must-not-be-quoted"


def ask(*urls: str, times: int = 1, timeout_s: float = SHORT) -> CheckAnswer:
    with CheckClient({"orders": Group(endpoints=urls)}, timeout_s) as client:
        return client.ask(request(times=times))


def answer_of(handler: Handler, timeout_s: float = SHORT) -> CheckAnswer:
    with Server(handler) as server:
        return ask(server.url, timeout_s=timeout_s)


@pytest.mark.parametrize("state", ["COMMIT", "ROLLBACK", "UNKNOWN"])
def test_answer_valid_is_taken(state: str) -> None:
    """A 200 with the transaction's id and a known state is the answer."""
    with Server(always(reply(says(state)))) as server:
        answer = ask(server.url)
    assert (answer.outcome, answer.endpoint, answer.error, answer.failed_tries) == (state, server.url, None, ())


def test_request_is_what_the_contract_says() -> None:
    """POST, JSON with exactly the seven fields, born_timestamp in ms; nothing of the environment."""
    with Server(always(reply(says("COMMIT")))) as server:
        ask(server.url + "?shop=1", times=3)
    (received,) = server.received
    assert received.json == {
        "transaction_id": "tx-1",
        "producer_group": "orders",
        "real_topic": "orders",
        "queue_id": 0,
        "queue_offset": 7,
        "check_times": 3,
        "born_timestamp": 1_795_227_064_579,
    }
    assert received.path == "/check?shop=1"
    assert received.headers["content-type"] == "application/json"
    assert received.headers["accept-encoding"] == "identity"
    assert not {"authorization", "cookie", "webhook-id", "webhook-signature"} & received.headers.keys()


OBJECT = b'{"transaction_id": "tx-1", "state": "COMMIT"'
NO_ANSWERS = {
    "error": (reply(SECRET_WORD, "500 Internal Server Error"), "status 500"),
    "created": (reply(says("COMMIT"), "201 Created"), "status 201"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204"),
    "html": (reply(b"<html>" + SECRET_WORD), "not JSON"),
    "empty": (reply(b""), "not JSON"),
    "text": (reply(b"COMMIT"), "not JSON"),
    "cut JSON": (reply(OBJECT), "not JSON"),
    "array": (reply(b"[" + says("COMMIT") + b"]"), "not a JSON object"),
    "string": (reply(b'"COMMIT"'), "not a JSON object"),
    "null": (reply(b"null"), "not a JSON object"),
    "NaN": (reply(OBJECT + b', "n": NaN}'), "not JSON"),
    "invalid UTF-8": (reply(OBJECT + b', "n": "\xff"}'), "not JSON"),
    "UTF-16": (reply(says("COMMIT").decode().encode("utf-16")), "not JSON"),
    "state twice": (reply(OBJECT + b', "state": "ROLLBACK"}'), "not JSON"),
    "other id": (reply(says("COMMIT", "tx-2")), "another transaction_id"),
    "no id": (reply(b'{"state": "COMMIT"}'), "another transaction_id"),
    "id of another type": (reply(says("COMMIT", ["tx-1"])), "another transaction_id"),
    "RocketMQ's spelling": (reply(says("UNKNOW")), "unknown state"),
    "lower case": (reply(says("commit")), "unknown state"),
    "no state": (reply(b'{"transaction_id": "tx-1"}'), "unknown state"),
    "state of another type": (reply(says({"COMMIT": 1})), "unknown state"),
    "5 KiB": (reply(says("COMMIT") + b" " * 5120), "over 4 KiB"),
    "one byte too many": (reply(says("COMMIT").ljust(4097)), "over 4 KiB"),
    "5 KiB chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 5,
        "over 4 KiB",
    ),
    "gzip": (reply(gzip.compress(says("COMMIT")), Content_Encoding="gzip"), "not JSON"),
    "not HTTP": (b"SSH-2.0-OpenSSH_9.6 " + SECRET_WORD + b"\r\n", "not HTTP"),
    "endless header": (b"HTTP/1.1 200 OK\r\nX: " + SECRET_WORD * 4000 + b"\r\n\r\n", "not HTTP"),
    "bad chunk": (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz" + SECRET_WORD, "answer cut short"),
}


@pytest.mark.parametrize(("response", "error"), NO_ANSWERS.values(), ids=NO_ANSWERS.keys())
def test_answer_malformed_is_no_answer(response: bytes, error: str) -> None:
    """Whatever is not a valid answer is NO_ANSWER, with the reason and none of the content."""
    answer = answer_of(always(response, keep=False), timeout_s=5)
    assert (answer.outcome, answer.error) == ("NO_ANSWER", error)


@pytest.mark.parametrize("body", [b"[" * 4000, b'{"a":' * 800, b"1" * 4090], ids=["arrays", "objects", "digits"])
def test_answer_json_bomb_is_no_answer(body: bytes) -> None:
    """JSON made to hurt the parser hurts nobody."""
    answer = answer_of(always(reply(body)), timeout_s=5)
    assert answer.outcome == "NO_ANSWER"
    assert answer.error in {"not JSON", "not a JSON object"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(status: int) -> None:
    """Endpoints come from settings only: the target of a redirect is never asked."""
    with Server(always(reply(says("COMMIT")))) as target:
        answer = answer_of(always(reply(says("COMMIT"), f"{status} Found", Location=target.url)))
        assert target.received == []
    assert (answer.outcome, answer.error) == ("NO_ANSWER", f"redirect {status}")


def test_nobody_listens_is_no_answer() -> None:
    assert ask(unused_url()).error == "connection refused"


def test_host_unknown_is_no_answer() -> None:
    answer = ask("http://no-such-host.invalid/check", timeout_s=5)
    assert answer.error is not None
    assert answer.error.startswith("host name: ")


def drip_status(received: Received, wire: Wire) -> bool:
    wire.drip(b"HTTP/1.1 200 OK\r\n" * 9)
    return False


def drip_headers(received: Received, wire: Wire) -> bool:
    wire.send(b"HTTP/1.1 200 OK\r\n")
    wire.drip(b"X-Slow: yes\r\n" * 20)
    return False


def drip_continue(received: Received, wire: Wire) -> bool:
    for _ in range(100):
        wire.send(b"HTTP/1.1 100 Continue\r\n\r\n")
        wire.wait(0.02)
    return False


def drip_body(received: Received, wire: Wire) -> bool:
    wire.send(reply(b"", Content_Length="200"))
    wire.drip(b" " * 200)
    return False


def drip_chunks(received: Received, wire: Wire) -> bool:
    wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    wire.drip(b"1\r\n \r\n" * 40)
    return False


def drip_error_page(received: Received, wire: Wire) -> bool:
    wire.send(b"HTTP/1.1 200 OK\r\n\r\n")  # to the end of the connection
    wire.drip(b"x" * 200)
    return False


@pytest.mark.parametrize(
    "handler", [late, drip_status, drip_headers, drip_continue, drip_body, drip_chunks, drip_error_page]
)
def test_answer_too_late_frees_the_thread(handler: Handler) -> None:
    """The timeout is for the try as a whole: a byte now and then does not prolong it."""
    answer = answer_of(handler)
    assert (answer.outcome, answer.error) == ("NO_ANSWER", "timed out after 0.3 s")
    assert 0.28 * 1000 <= answer.latency_ms < 1.5 * 1000


def test_answer_begun_in_time_then_silence_frees_the_thread() -> None:
    """A byte just before the end of the time does not start it anew."""

    def handle(received: Received, wire: Wire) -> bool:
        wire.wait(0.8)
        wire.send(b"H")
        wire.wait(3)
        return False

    answer = answer_of(handle, timeout_s=0.9)
    assert answer.error == "timed out after 0.9 s"
    assert answer.latency_ms < 2500


def test_host_slow_to_take_the_request_frees_the_thread() -> None:
    """A server that does not read what is sent to it cannot hold a thread either."""
    started = time.monotonic()
    large = request(message=Message(body=bytes(16 * 1024 * 1024)))
    with (
        Server(hang_up, reading=False) as server,
        CheckClient({"orders": Group((server.url,), include_body=True)}, SHORT) as client,
    ):
        started = time.monotonic()
        assert client.ask(large).error == "timed out after 0.3 s"
        assert time.monotonic() - started < 10


def test_connection_closed_without_answer_is_no_answer() -> None:
    """On a fresh connection it is not asked again: the next check follows."""
    with Server(hang_up) as server:
        answer = ask(server.url)
    assert (answer.error, len(server.received)) == ("connection closed without an answer", 1)


def test_body_cut_short_is_no_answer() -> None:
    answer = answer_of(always(reply(says("COMMIT"), Content_Length="500"), keep=False))
    assert answer.error == "answer cut short"


def test_connection_kept_alive_is_used_again() -> None:
    with Server(always(reply(says("COMMIT")))) as server, CheckClient({"orders": Group((server.url,))}, 5) as client:
        for _ in range(3):
            client.ask(request())
        assert (len(server.received), server.connections) == (3, 1)


def test_connection_not_read_to_its_end_is_not_used_again() -> None:
    """What is left of an answer that was too long must not become the next answer."""
    responses = iter([reply(b"x" * 5000 + says("ROLLBACK")), reply(says("COMMIT"))])

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(next(responses))
        return True

    with Server(handle) as server, CheckClient({"orders": Group((server.url,))}, 5) as client:
        assert client.ask(request()).error == "over 4 KiB"
        assert client.ask(request()).outcome == "COMMIT"
        assert server.connections == 2


def hangs_up_on(*positions: int) -> Handler:
    """Commits, but closes the connection without a word at these requests."""
    count = iter(range(100))

    def handle(received: Received, wire: Wire) -> bool:
        if next(count) in positions:
            return False
        wire.send(reply(says("COMMIT")))
        return True

    return handle


def test_connection_closed_while_asking_is_replaced_once() -> None:
    """A server may close a kept-alive connection just when the next check is on its way: it is sent again, once."""
    with Server(hangs_up_on(1)) as server, CheckClient({"orders": Group((server.url,))}, 5) as client:
        assert client.ask(request()).outcome == "COMMIT"
        assert client.ask(request()).outcome == "COMMIT"
        assert [received.connection for received in server.received] == [1, 1, 2]


def test_connection_closed_twice_is_no_answer() -> None:
    with Server(hangs_up_on(1, 2)) as server, CheckClient({"orders": Group((server.url,))}, 5) as client:
        client.ask(request())
        assert client.ask(request()).error == "connection closed without an answer"
        assert len(server.received) == 3


def test_connection_opened_anew_is_not_a_stale_one() -> None:
    """Closed between two checks, then again without an answer: that is no answer, and not asked twice."""
    responses = iter([reply(says("COMMIT"), Connection="close"), b""])

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(next(responses))
        return False

    with Server(handle) as server, CheckClient({"orders": Group((server.url,))}, 5) as client:
        client.ask(request())
        assert client.ask(request()).error == "connection closed without an answer"
        assert len(server.received) == 2


def test_connection_closed_between_checks_is_replaced() -> None:
    with Server(always(reply(says("COMMIT")), keep=False)) as server:
        with CheckClient({"orders": Group((server.url,))}, 5) as client:
            assert [client.ask(request()).outcome for _ in range(3)] == ["COMMIT"] * 3
        assert server.connections == 3


@pytest.fixture
def commits() -> Iterator[Server]:
    with Server(always(reply(says("COMMIT")))) as server:
        yield server


@pytest.fixture
def fails() -> Iterator[Server]:
    with Server(always(reply(b"", "503 Service Unavailable"))) as server:
        yield server


def test_endpoint_fails_next_answers(commits: Server, fails: Server) -> None:
    """The endpoints are one service: the next one is asked, and the answer says what went before."""
    nobody = unused_url()
    answer = ask(nobody, fails.url, commits.url)
    assert (answer.outcome, answer.endpoint, answer.error) == ("COMMIT", commits.url, None)
    assert answer.failed_tries == ((nobody, "connection refused"), (fails.url, "status 503"))


def test_endpoints_all_fail_last_is_the_error(fails: Server) -> None:
    nobody = unused_url()
    answer = ask(fails.url, nobody)
    assert (answer.outcome, answer.endpoint, answer.error) == ("NO_ANSWER", nobody, "connection refused")
    assert answer.failed_tries == ((fails.url, "status 503"),)


def test_endpoint_unknown_is_an_answer(commits: Server) -> None:
    """Who says UNKNOWN has answered: the others are not asked."""
    with Server(always(reply(says("UNKNOWN")))) as unsure:
        answer = ask(unsure.url, commits.url)
    assert (answer.outcome, answer.failed_tries, commits.received) == ("UNKNOWN", (), [])


@pytest.mark.parametrize(("times", "first"), [(1, 0), (2, 1), (3, 2), (4, 0), (15, 2)])
def test_endpoints_are_taken_in_turn(commits: Server, times: int, first: int) -> None:
    urls = [f"{commits.address}/{number}" for number in range(3)]
    assert ask(*urls, times=times).endpoint == urls[first]


@pytest.mark.parametrize("groups", [{}, {"orders": Group()}], ids=["unknown", "without endpoints"])
def test_group_without_endpoints_is_no_answer(groups: dict[str, Group]) -> None:
    with CheckClient(groups, SHORT) as client:
        answer = client.ask(request())
    assert (answer.outcome, answer.endpoint, answer.failed_tries) == ("NO_ANSWER", None, ())
    assert answer.error == "producers.orders has no endpoints"


def test_environment_is_not_obeyed(commits: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a proxy nor a CA file of the environment: endpoints and trust come from the settings."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, unused_url())
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    assert ask(commits.url).outcome == "COMMIT"


def test_endpoint_that_hangs_is_left_alone() -> None:
    """After so many timeouts in a row an endpoint is not tried any more; the next one still is, and at once."""
    with Server(late) as hangs, Server(always(reply(says("COMMIT")))) as well:
        groups = {"orders": Group((hangs.url, well.url))}
        with CheckClient(groups, 0.1, limits=Limits(failures=2)) as client:
            answers = [client.ask(request()) for _ in range(3)]
        assert [answer.failed_tries for answer in answers] == [
            ((hangs.url, "timed out after 0.1 s"),),
            ((hangs.url, "timed out after 0.1 s"),),
            ((hangs.url, "not tried: 2 tries in a row failed"),),
        ]
        assert [answer.outcome for answer in answers] == ["COMMIT"] * 3
        assert len(hangs.received) <= 2


def test_group_whose_endpoint_is_left_alone_leaves_others_with_that_url_theirs(commits: Server) -> None:
    """Groups that share a URL do not share its breaker."""
    known = {("orders", commits.url): Breaker(failed=9, until=60, changed=1)}
    groups = {"orders": Group((commits.url,)), "other": Group((commits.url,))}
    with CheckClient(groups, SHORT, clock=lambda: 50.0, breakers=known) as client:
        assert client.ask(request()).error == "not tried: 9 tries in a row failed"
        assert client.ask(request(group="other")).outcome == "COMMIT"


BROKEN = {
    "500": reply(b"", "500 Internal Server Error"),
    "502": reply(b"", "502 Bad Gateway"),
    "429": reply(b"", "429 Too Many Requests"),
    "not HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "hangs up": b"",
}
WELL = {
    "404": reply(b"", "404 Not Found"),
    "redirect": reply(b"", "302 Found", Location="http://127.0.0.1:9/"),
    "UNKNOWN": reply(says("UNKNOWN")),
    "no JSON": reply(b"?"),
    "other id": reply(says("COMMIT", "tx-2")),
}


@pytest.mark.parametrize("response", BROKEN.values(), ids=BROKEN.keys())
def test_endpoint_broken_in_every_way_is_left_alone(response: bytes) -> None:
    with Server(always(response, keep=False)) as server:
        with CheckClient({"orders": Group((server.url,))}, 5, limits=Limits(failures=3)) as client:
            errors = [client.ask(request()).error for _ in range(5)]
        assert errors[3:] == ["not tried: 3 tries in a row failed"] * 2
        assert len(server.received) == 3


@pytest.mark.parametrize("response", WELL.values(), ids=WELL.keys())
def test_endpoint_that_answers_wrongly_about_one_transaction_is_not_left_alone(response: bytes) -> None:
    with Server(always(response)) as server:
        with CheckClient({"orders": Group((server.url,))}, 5, limits=Limits(failures=2)) as client:
            for _ in range(5):
                client.ask(request())
        assert len(server.received) == 5


def test_endpoint_late_now_and_then_is_not_left_alone() -> None:
    """An answer in between, even a wrong one, starts the count again."""
    count = iter(range(100))

    def handle(received: Received, wire: Wire) -> bool:
        if next(count) % 2:
            return late(received, wire)
        wire.send(reply(b"", "404 Not Found"))
        return True

    with Server(handle) as server:
        groups = {"orders": Group((server.url,))}
        with CheckClient(groups, 0.1, limits=Limits(failures=2)) as client:
            errors = [client.ask(request()).error for _ in range(6)]
    assert errors == ["status 404", "timed out after 0.1 s"] * 3


NOON = 1_795_176_000.0  # 2026-11-20 12:00:00 UTC


@pytest.mark.parametrize(
    ("status", "header", "until"),
    [
        ("503 Service Unavailable", "20", "2026-11-20 12:00:20"),
        ("429 Too Many Requests", "20", "2026-11-20 12:00:20"),
        ("503 Service Unavailable", "Fri, 20 Nov 2026 12:01:00 GMT", "2026-11-20 12:01:00"),
        ("503 Service Unavailable", "86400", "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "9" * 5000, "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "Fri, 31 Dec 9999 23:59:59 GMT", "2026-11-20 12:05:00"),
        ("503 Service Unavailable", "Fri, 20 Nov 2026 11:00:00 GMT", None),
        ("503 Service Unavailable", "0", None),
        ("503 Service Unavailable", "soon", None),
        ("503 Service Unavailable", "-1", None),
        ("500 Internal Server Error", "20", None),
        ("404 Not Found", "20", None),
    ],
)
def test_retry_after_is_obeyed(status: str, header: str, until: str | None) -> None:
    """Of a 429 or 503, as seconds or as a date, for five minutes at most: nobody tries before; then one does."""
    now = NOON
    with Server(always(reply(b"", status, Retry_After=header))) as server:
        with CheckClient({"orders": Group((server.url,))}, 5, clock=lambda: now) as client:
            client.ask(request())
            told = client.ask(request())
            if until is None:
                assert (told.error, len(server.received)) == (f"status {status[:3]}", 2)
                return
            assert (told.error, told.delivered) == (f"not tried: it asked to be left alone until {until}", False)
            now = datetime.fromisoformat(until + "+00:00").timestamp() - 0.1
            client.ask(request())
            assert len(server.received) == 1
            now += 0.1
            assert client.ask(request()).error == f"status {status[:3]}"
        assert len(server.received) == 2


def test_checks_wait_for_the_trial_and_do_not_go_in_vain() -> None:
    """An endpoint that is well again: while one check tries it, the others wait for what comes of it."""
    at_door, go = threading.Event(), threading.Event()

    def handle(received: Received, wire: Wire) -> bool:
        at_door.set()
        assert go.wait(10)
        wire.send(reply(says("COMMIT")))
        return True

    with Server(handle) as server, ThreadPoolExecutor(8) as pool:
        known = {("orders", server.url): Breaker(failed=9, until=NOON - 1, changed=1)}
        with CheckClient({"orders": Group((server.url,))}, 5, clock=lambda: NOON, breakers=known) as client:
            first = pool.submit(client.ask, request())
            assert at_door.wait(10)
            others = [pool.submit(client.ask, request(offset=offset)) for offset in range(7)]
            go.set()
            assert [one.result(10).outcome for one in (first, *others)] == ["COMMIT"] * 8


def test_trial_that_fails_lets_nobody_else_in() -> None:
    """An endpoint that is still down gets one check, whoever waits for it."""
    with Server(always(reply(b"", "503 Service Unavailable"))) as server, ThreadPoolExecutor(8) as pool:
        known = {("orders", server.url): Breaker(failed=9, until=NOON - 1, changed=1)}
        with CheckClient({"orders": Group((server.url,))}, 5, clock=lambda: NOON, breakers=known) as client:
            answers = list(pool.map(client.ask, [request(offset=offset) for offset in range(8)]))
        errors = sorted(answer.error or "" for answer in answers)
        assert errors == ["not tried: 10 tries in a row failed"] * 7 + ["status 503"]
        assert len(server.received) == 1


def test_delivered_is_what_was_written_to_a_connection(commits: Server, fails: Server) -> None:
    """Whatever came back: with an answer, an error, or too late; not without a connection."""
    with Server(late) as hangs, Server(hang_up) as closes:
        assert [ask(server.url).delivered for server in (commits, fails, hangs, closes)] == [True] * 4
        assert ask(unused_url(), hangs.url, unused_url()).delivered
    assert not ask(unused_url(), unused_url()).delivered
    assert not ask("http://no-such-host.invalid/check", timeout_s=5).delivered
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connected, but no TLS, so no request
        assert not ask(f"https://127.0.0.1:{silent.getsockname()[1]}/check").delivered
    assert not ask().delivered


@pytest.mark.parametrize(
    "url",
    ["", "orders", "ftp://host/check", "http://", "http://user:pass-word@host/", "http://h/#a", "http://h:99999/"],
)
def test_endpoint_unfit_is_refused_before_any_request(url: str) -> None:
    """The error names the setting; it does not quote the URL, which may hold a password."""
    with pytest.raises(SettingsError, match=r"^producers\.orders\.endpoints: an endpoint is not a URL") as caught:
        CheckClient({"orders": Group((url,))}, SHORT)
    assert "pass-word" not in str(caught.value)


@pytest.mark.parametrize("content", [None, "no certificate"], ids=["missing", "not PEM"])
def test_ca_file_unfit_is_refused(content: str | None, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("ca") / "ca.pem"
    if content is not None:
        path.write_text(content)
    with pytest.raises(SettingsError, match=r"^check\.ca_file: .*(not PEM|No such file)"):
        CheckClient({}, SHORT, str(path))


def test_clock_and_timer_are_the_callers(commits: Server) -> None:
    ticks = iter([10.0, 10.0, 12.5])
    with CheckClient({"orders": Group((commits.url,))}, 5, clock=lambda: 86_400.0, timer=lambda: next(ticks)) as client:
        answer = client.ask(request())
    assert (answer.latency_ms, answer.answered_at.isoformat()) == (2500, "1970-01-02T00:00:00+00:00")
