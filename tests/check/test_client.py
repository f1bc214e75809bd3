"""The client against real servers: what is an answer, what is none and why, and when it stops waiting."""

from __future__ import annotations

import gzip
import threading
import time

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
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import CheckScheduler
from checkback.check.wire import CheckAnswer, Message

SECRET_WORD = b"the-body-must-not-be-quoted"


def ask(*urls: str, times: int = 1, timeout_s: float = SHORT) -> CheckAnswer:
    with CheckClient({"orders": CheckedGroup(endpoints=urls)}, timeout_s) as client:
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


COMMIT = says("COMMIT")
PLACE = b'{"transaction_id": "tx-1", "state": "COMMIT", "queue_id": null, "queue_offset": null}'
COMMITS = {
    "created": reply(COMMIT, "201 Created"),
    "accepted": reply(COMMIT, "202 Accepted"),
    "byte order mark": reply(b"\xef\xbb\xbf" + COMMIT),
    "UTF-16": reply(COMMIT.decode().encode("utf-16")),
    "gzip": reply(gzip.compress(COMMIT), Content_Encoding="gzip"),
    "gzip, not said": reply(gzip.compress(b"\xef\xbb\xbf" + COMMIT)),
    "lower case": reply(says("commit")),
    "mixed case": reply(says("Commit")),
    "RocketMQ's name": reply(says("COMMIT_MESSAGE")),
    "null for the place": reply(PLACE),
}


@pytest.mark.parametrize("response", COMMITS.values(), ids=COMMITS.keys())
def test_answer_that_can_only_mean_commit_is_commit(response: bytes) -> None:
    """Discarding it would discard the message of a committed transaction."""
    answer = answer_of(always(response, keep=False), timeout_s=5)
    assert (answer.outcome, answer.error) == ("COMMIT", None)


@pytest.mark.parametrize(
    ("named", "state"), [("ROLLBACK_MESSAGE", "ROLLBACK"), ("UNKNOW", "UNKNOWN"), ("unknow", "UNKNOWN")]
)
def test_answer_in_rocketmqs_words_is_taken(named: str, state: str) -> None:
    assert answer_of(always(reply(says(named), "299 Odd"))).outcome == state


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
    "created, not an answer": (reply(b"{}", "201 Created"), "status 201: another transaction_id: missing"),
    "created, cut short": (b"HTTP/1.1 201 Created\r\nContent-Length: 99\r\n\r\n" + OBJECT, "answer cut short"),
    "created, 5 KiB": (reply(says("COMMIT") + b" " * 5120, "201 Created"), "status 201: over 4 KiB"),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204: not JSON: empty"),
    "another protocol": (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n" + says("COMMIT"), "status 101"),
    "html": (reply(b"<html>" + SECRET_WORD), "not JSON: HTML or XML"),
    "empty": (reply(b""), "not JSON: empty"),
    "text": (reply(b"COMMIT"), "not JSON"),
    "cut JSON": (reply(OBJECT), "not JSON"),
    "array": (reply(b"[" + says("COMMIT") + b"]"), "not a JSON object: an array"),
    "string": (reply(b'"COMMIT"'), "not a JSON object: a string"),
    "null": (reply(b"null"), "not a JSON object: null"),
    "NaN": (reply(OBJECT + b', "n": NaN}'), "not JSON"),
    "invalid UTF-8": (reply(OBJECT + b', "n": "\xff"}'), "not JSON: not UTF-8"),
    "state twice": (reply(OBJECT + b', "state": "ROLLBACK"}'), "not JSON"),
    "other id": (reply(says("COMMIT", "tx-2")), "another transaction_id"),
    "no id": (reply(b'{"state": "COMMIT"}'), "another transaction_id: missing"),
    "id of another type": (reply(says("COMMIT", ["tx-1"])), "another transaction_id: an array"),
    "another word": (reply(says(SECRET_WORD.decode())), "unknown state: a string"),
    "a letter that becomes one of COMMIT": (reply(says("comm\u0131t")), "unknown state: a string"),
    "no state": (reply(b'{"transaction_id": "tx-1"}'), "unknown state: missing"),
    "state of another type": (reply(says({"COMMIT": 1})), "unknown state: an object"),
    "5 KiB": (reply(says("COMMIT") + b" " * 5120), "over 4 KiB"),
    "one byte too many": (reply(says("COMMIT").ljust(4097)), "over 4 KiB"),
    "5 KiB chunked": (
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"400\r\n" + b" " * 1024 + b"\r\n") * 5,
        "over 4 KiB",
    ),
    "gzip cut short": (reply(gzip.compress(says("COMMIT"))[:-9]), "not JSON: damaged gzip"),
    "gzip with more after it": (reply(gzip.compress(says("COMMIT")) * 2), "not JSON: damaged gzip"),
    "gzip damaged": (reply(gzip.compress(says("COMMIT"))[:12] + b"\xff" * 20), "not JSON: damaged gzip"),
    "gzip bomb": (reply(gzip.compress(says("COMMIT").ljust(3_000_000))), "over 4 KiB"),
    "another compression": (reply(b"\x28\xb5\x2f\xfd" + b"\xff" * 40, Content_Encoding="zstd"), "not JSON: not UTF-8"),
    "status of four digits": (reply(says("COMMIT"), "2000 OK"), "not HTTP"),
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
    assert answer.error in {"not JSON", "not a JSON object: an integer"}


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(status: int) -> None:
    """Endpoints come from settings only: the target of a redirect is never asked."""
    with Server(always(reply(says("COMMIT")))) as target:
        answer = answer_of(always(reply(says("COMMIT"), f"{status} Found", Location=target.url)))
        assert target.received == []
    assert (answer.outcome, answer.error) == ("NO_ANSWER", f"redirect {status}")


def test_nobody_listens_is_no_answer() -> None:
    assert ask(unused_url()).error == "connection refused"


def test_what_is_secret_in_an_endpoints_url_is_not_recorded() -> None:
    first, last = unused_url(), unused_url()
    answer = ask(f"{first}?token=s3cret", f"{first}?token=other", f"{last}?s3cret")
    assert answer.endpoint == f"{last}?****"
    assert [url for url, _ in answer.failed_tries] == [f"{first}?token=****", f"{first}?token=****#2"]


def test_host_unknown_is_no_answer() -> None:
    answer = ask("http://no-such-host.invalid/check", timeout_s=5)
    assert answer.error == "host name: could not be resolved"


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


def test_status_says_enough_though_its_page_never_ends() -> None:
    def handle(received: Received, wire: Wire) -> bool:
        wire.send(reply(b"", "404 Not Found", Content_Length="200"))
        wire.drip(b"x" * 200)
        return False

    assert answer_of(handle).error == "status 404"


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
        CheckClient({"orders": CheckedGroup((server.url,), include_body=True)}, SHORT) as client,
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


def test_header_cut_short_is_no_answer() -> None:
    answer = answer_of(always(reply(says("COMMIT"))[:30], keep=False))
    assert answer.error == "answer cut short"


def test_connection_kept_alive_is_used_again() -> None:
    with (
        Server(always(reply(says("COMMIT")))) as server,
        CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client,
    ):
        for _ in range(3):
            client.ask(request())
        assert (len(server.received), server.connections) == (3, 1)


def test_answer_of_4_kib_is_taken() -> None:
    """And its connection used again, however the length is told; so is that of an error, read to its end."""
    longest = says("COMMIT").ljust(4096)
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n" + longest + b"\r\n0\r\n\r\n"
    responses = iter([reply(longest), chunked, reply(b"busy", "503 Service Unavailable"), reply(longest)])

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(next(responses))
        return True

    with Server(handle) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
        assert [client.ask(request()).outcome for _ in range(4)] == ["COMMIT", "COMMIT", "NO_ANSWER", "COMMIT"]
        assert server.connections == 1


def test_connection_not_read_to_its_end_is_not_used_again() -> None:
    """What is left of an answer that was too long must not become the next answer."""
    responses = iter([reply(b"x" * 5000 + says("ROLLBACK")), reply(says("COMMIT"))])

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(next(responses))
        return True

    with Server(handle) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
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
    with Server(hangs_up_on(1)) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
        assert client.ask(request()).outcome == "COMMIT"
        assert client.ask(request()).outcome == "COMMIT"
        assert [received.connection for received in server.received] == [1, 1, 2]


def test_connection_closed_twice_is_no_answer() -> None:
    with Server(hangs_up_on(1, 2)) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
        client.ask(request())
        assert client.ask(request()).error == "connection closed without an answer"
        assert len(server.received) == 3


def test_connections_all_closed_while_asking_are_no_answer() -> None:
    """A server that hangs up on all its kept-alive connections is asked on a few of them, not for ever."""
    all_open, count = threading.Barrier(8), iter(range(100))

    def handle(received: Received, wire: Wire) -> bool:
        if next(count) >= 8:
            return False
        all_open.wait(5)
        wire.send(reply(says("COMMIT")))
        return True

    with Server(handle) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
        client.ask_all(CheckScheduler([request(offset=offset) for offset in range(8)]), 8)
        assert server.connections == 8
        assert client.ask(request()).error == "connection closed without an answer"
        assert len(server.received) <= 8 + 6


def test_connection_opened_anew_is_not_a_stale_one() -> None:
    """Closed between two checks, then again without an answer: that is no answer, and not asked twice."""
    responses = iter([reply(says("COMMIT"), Connection="close"), b""])

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(next(responses))
        return False

    with Server(handle) as server, CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
        client.ask(request())
        assert client.ask(request()).error == "connection closed without an answer"
        assert len(server.received) == 2


def test_connection_closed_between_checks_is_replaced() -> None:
    with Server(always(reply(says("COMMIT")), keep=False)) as server:
        with CheckClient({"orders": CheckedGroup((server.url,))}, 5) as client:
            assert [client.ask(request()).outcome for _ in range(3)] == ["COMMIT"] * 3
        assert server.connections == 3
