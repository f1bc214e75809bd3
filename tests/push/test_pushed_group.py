"""A consumer group that posts its messages to a real server: what it sends, and what it makes of the answers."""

from __future__ import annotations

import base64
import itertools
import json
import re
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, from_http, from_structured_event
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent
from deltalake import DeltaTable
from standardwebhooks import Webhook as Verifier

from check.servers import Received, Server, Wire, always, reply
from checkback.consumer.message import ConsumeResult
from checkback.push.side_by_side import SideBySide, threads_of
from checkback.push.webhook import Request
from consumer.heard import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from check.servers import Handler
    from consumer.published import Published
    from push.conftest import Push

SECRET = "whsec_" + base64.b64encode(b"a key of the test, 24 bytes+").decode()
OK = reply(b"", "204 No Content")


def events(received: list[Received]) -> list[Any]:
    """What CloudEvents' own SDK reads of the requests."""
    return [from_http(HTTPMessage(each.headers, each.body), JSONFormat()) for each in received]


def test_a_message_is_an_event_whose_headers_the_sdk_reads(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(1, tags="paid", body=b'{"amount": 42}')]})
    with Server(always(OK)) as server:
        pushing(server.url, content_type="application/json")
        until(lambda: server.received)
        (event,) = events(server.received)
    assert server.received[0].headers["content-type"] == "application/json"
    assert (event.get_id(), event.get_source(), event.get_type()) == ("tx-0", "/producers/orders", "paid")
    assert (event.get_subject(), event.get_data()) == ("key-0", {"amount": 42})
    assert event.get_time().timestamp() * 1000 == lake.time - 100
    assert event.get_extension("number") == "0"


@pytest.mark.parametrize("mode", ["binary", "structured", "batch"])
def test_requests_are_signed_by_standard_webhooks(lake: Published, pushing: Push, mode: str) -> None:
    lake.publish({"payments": [lake.messages(3, body=b"{}")]})
    with Server(always(OK)) as server:
        pushing(server.url, secret=SECRET, **({"batch": 2} if mode == "batch" else {"mode": mode}))
        until(lambda: len(server.received) == (2 if mode == "batch" else 3))
    for each in server.received:
        Verifier(SECRET).verify(each.body, each.headers)
    assert len({each.headers["webhook-id"] for each in server.received}) == len(server.received)


def test_a_body_that_is_no_text_is_signed_and_arrives(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(1, body=b"\x00\xff\xfe")]})
    with Server(always(OK)) as server:
        pushing(server.url, secret=SECRET)
        until(lambda: server.received)
    (each,) = server.received
    assert each.body == b"\x00\xff\xfe"
    assert each.headers["webhook-signature"].startswith("v1,")


def test_a_message_without_a_body_has_no_type(lake: Published, pushing: Push) -> None:
    """Neither a form's, which libcurl would say."""
    lake.publish({"payments": [lake.messages(1, body=b"")]})
    with Server(always(OK)) as server:
        pushing(server.url)
        until(lambda: server.received)
    (each,) = server.received
    assert (each.headers.get("content-type"), each.headers["content-length"]) == (None, "0")


def test_batches_are_arrays_of_events(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(5)]})
    with Server(always(OK)) as server:
        pushing(server.url, batch=3)
        until(lambda: sum(len(json.loads(each.body)) for each in server.received) == 5)
    assert {each.headers["content-type"] for each in server.received} == {"application/cloudevents-batch+json"}
    found = [each for request in server.received for each in json.loads(request.body)]
    read = [from_structured_event(HTTPMessage({}, json.dumps(each).encode())) for each in found]
    assert sorted(str(event.get_data()) for event in read) == [str(f"body-{n}".encode()) for n in range(5)]


def test_a_batch_of_large_bodies_becomes_several_requests(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(3, body=bytes(600 << 10)) + lake.messages(2)]})
    with Server(always(OK)) as server:
        group = pushing(server.url, batch=100)
        until(lambda: group.consumer.consumed == 5)
    assert [[each["id"] for each in json.loads(one.body)] for one in server.received] == [
        ["tx-0"],
        ["tx-1"],
        ["tx-2", "tx-3", "tx-4"],
    ]


def handling(answers: Callable[[Received], bytes]) -> Handler:
    """A server that answers by the request."""

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(answers(received))
        return True

    return handle


def test_what_is_refused_is_retried_and_becomes_a_dead_letter(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(3)]})

    def answers(received: Received) -> bytes:
        return reply(b"", "400 Bad Request") if received.headers["ce-id"] == "tx-1" else OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, max_retries=0)
        until(lambda: group.consumer.dead)
        until(lambda: len(server.received) == 3)
        group.close()
    (letter,) = DeltaTable(lake.tables.location("dead_letters")).to_pyarrow_table().to_pylist()
    assert (letter["transaction_id"], letter["reason"]) == ("tx-1", "status 400")


def test_a_batch_that_is_refused_is_retried_message_by_message(
    lake: Published, pushing: Push, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkback.consumer.options.RETRY_LEVELS", (1, 1))
    lake.publish({"payments": [lake.messages(4)]})

    def answers(received: Received) -> bytes:
        bad = any(each["id"] == "tx-2" for each in json.loads(received.body))
        return reply(b"", "422 Unprocessable Content") if bad else OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, batch=4, max_retries=1)
        until(lambda: group.consumer.dead == 1 and group.consumer.consumed == 4 - 1)
    assert sorted(len(json.loads(each.body)) for each in server.received) == [1, 1, 1, 1, 4]


@pytest.mark.parametrize("concurrency", [1, 5])
@pytest.mark.parametrize(("status", "after"), [("429 Too Many Requests", "0"), ("503 Service Unavailable", "1")])
def test_retry_after_is_waited_for_and_is_no_failure(
    lake: Published, pushing: Push, status: str, after: str, concurrency: int
) -> None:
    """Only what was answered so is sent again, not what was taken beside it. 0 is a second's part, rounded down."""
    lake.publish({"payments": [lake.messages(4)]})
    left = ["tx-0"]

    def answers(received: Received) -> bytes:
        if received.headers["ce-id"] in left:
            left.clear()
            return reply(b"", status, Retry_After=after)
        return OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, concurrency=concurrency)

        def done() -> bool:
            group.resume()  # as the command does
            return group.consumer.consumed == 4

        until(done)
    assert Counter(each.headers["ce-id"] for each in server.received) == {"tx-0": 2, "tx-1": 1, "tx-2": 1, "tx-3": 1}
    assert (group.consumer.failed, group.consumer.dead) == (0, 0)


def test_of_a_batch_of_several_requests_only_what_must_wait_is_sent_again(lake: Published, pushing: Push) -> None:
    """To a receiver with a rate limit, which takes every other request, the second one would never come."""
    lake.publish({"payments": [lake.messages(3, body=bytes(600 << 10))]})
    turns = itertools.cycle([OK, reply(b"", "429 Too Many Requests", Retry_After="1")])
    with Server(handling(lambda _: next(turns))) as server:
        group = pushing(server.url, batch=3, concurrency=1)

        def done() -> bool:
            group.resume()
            return group.consumer.consumed == 3

        until(done)
    posts = Counter(json.loads(each.body)[0]["id"] for each in server.received)
    assert posts == {"tx-0": 1, "tx-1": 2, "tx-2": 2}


@pytest.mark.parametrize(
    "about",
    [{"concurrency": 1}, {"concurrency": 9}, {"orderly": True, "concurrency": 2}, {"batch": 3, "concurrency": 1}],
    ids=str,
)
def test_a_message_that_is_told_to_wait_while_others_pass_fails(
    lake: Published, pushing: Push, monkeypatch: pytest.MonkeyPatch, about: dict[str, Any]
) -> None:
    """A proxy whose error page has Retry-After: the others pass, and it is a dead letter at last."""
    monkeypatch.setattr("checkback.consumer.options.RETRY_LEVELS", (1, 1))
    lake.publish({"payments": [lake.messages(3, (0, 1))]})

    def answers(received: Received) -> bytes:
        said = received.body.decode() + received.headers.get("ce-id", "")
        bad = re.search(r"tx-1\b", said)
        return reply(b"", "503 Service Unavailable", Retry_After="1") if bad else OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, max_retries=1, **about)

        def done() -> bool:
            group.resume()  # as the command does
            if not group.consumer.dead and group.consumer.consumed == lake.offset - 1:
                lake.publish({"payments": [lake.messages(1)]})
            return group.consumer.dead == 1 and group.consumer.consumed == lake.offset - 1

        until(done)
        group.close()
    (letter,) = DeltaTable(lake.tables.location("dead_letters")).to_pyarrow_table().to_pylist()
    assert (letter["transaction_id"], letter["reason"]) == ("tx-1", "status 503")


def test_a_batch_that_is_told_to_wait_is_the_next_request_of_its_thread(lake: Published, pushing: Push) -> None:
    """Put back, others would come before it, which always pass, and it would never be known to have failed."""
    lake.publish({"payments": [lake.messages(1)]})
    answers = iter([OK, reply(b"", "503 Service Unavailable", Retry_After="1"), OK])
    with Server(handling(lambda _: next(answers))) as server:
        group = pushing(server.url, batch=3, concurrency=1)
        until(lambda: group.consumer.consumed)
        assert group._posted(Request([], b"[]", "batch_1")) is ConsumeResult.SUCCESS
    assert [each.headers["webhook-id"] for each in server.received[1:]] == ["batch_1", "batch_1"]


def test_nothing_is_sent_before_the_receiver_wishes(lake: Published, pushing: Push) -> None:
    """Not for check.breaker_pause (30 s) after a probe that was told to wait a second, nor before that is over."""
    lake.publish({"payments": [lake.messages(3)]})
    at: list[float] = []

    def answers(received: Received) -> bytes:
        at.append(time.monotonic())
        return reply(b"", "503 Service Unavailable", Retry_After="1") if len(at) < 4 else OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, concurrency=1)

        def done() -> bool:
            group.resume()
            return group.consumer.consumed == 3

        until(done)
    assert [round(later - earlier) for earlier, later in pairwise(at)] == [1, 1, 1, 0, 0]
    # The first one alone, then another.
    assert [each.headers["ce-id"] for each in server.received][:3] == ["tx-0", "tx-0", "tx-1"]
    assert (group.consumer.failed, group.consumer.dead) == (0, 0)


@pytest.mark.parametrize("concurrency", [2, 7, 32])
def test_slow_retries_do_not_hold_up_what_is_new(
    lake: Published, pushing: Push, monkeypatch: pytest.MonkeyPatch, concurrency: int
) -> None:
    monkeypatch.setattr("checkback.consumer.options.RETRY_LEVELS", (1,))
    slow = 2 * concurrency
    lake.publish({"payments": [lake.messages(slow)]})
    known: Counter[str] = Counter()
    released = threading.Event()

    def handle(received: Received, wire: Wire) -> bool:
        name = received.headers["ce-id"]
        known[name] += 1
        if known[name] == 2:
            released.wait(20)
        first = known[name] == 1 and int(name.removeprefix("tx-")) < slow
        wire.send(reply(b"", "400 Bad Request") if first else OK)
        return True

    with Server(handle) as server:
        group = pushing(server.url, concurrency=concurrency, timeout="30s")
        until(lambda: len(server.received) >= slow + concurrency // 2)  # retries hang
        lake.publish({"payments": [lake.messages(50)]})
        until(lambda: group.consumer.consumed == 50)
        released.set()
        until(lambda: group.consumer.consumed == 50 + slow)
    assert known == {f"tx-{n}": 2 if n < slow else 1 for n in range(50 + slow)}


@pytest.mark.parametrize("concurrency", [1, 3, 31, 32])
def test_as_many_requests_are_in_flight_as_configured(concurrency: int) -> None:
    threads = threads_of(concurrency)
    found = SideBySide(None, None, concurrency, None)  # type: ignore[arg-type]
    with ThreadPoolExecutor(threads) as pool:
        barrier = threading.Barrier(threads)

        def share(_: int) -> int:
            barrier.wait()
            return found.share

        shares = list(pool.map(share, range(threads)))
    assert sum(shares) == concurrency
    assert max(shares) - min(shares) <= 1


def test_a_2xx_counts_whatever_becomes_of_its_body(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(3)]})
    cut = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"

    def handle(received: Received, wire: Wire) -> bool:
        wire.send(cut)
        return False

    with Server(handle) as server:
        group = pushing(server.url, concurrency=1)
        until(lambda: len(server.received) == 3 or group.consumer.failed)
        group.close()
    assert (group.consumer.failed, group.consumer.consumed) == (0, 3)


def test_an_open_breaker_keeps_messages_from_being_tried_in_vain(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(50)]})
    with Server(always(reply(b"", "500 Internal Server Error"))) as server:
        group = pushing(server.url, {"breaker_failures": 3, "breaker_pause": "1h"}, concurrency=1)
        until(lambda: group.consumer.failed == 3)
        until(lambda: not group.webhook.ready)
        group.resume()
        group.close()
    assert len(server.received) == 3
    assert (group.consumer.failed, group.consumer.consumed) == (3, 0)


def test_in_order_a_message_that_fails_holds_up_its_queue(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(6, (0, 1))]})
    fails = [1]
    lock = threading.Lock()

    def answers(received: Received) -> bytes:
        with lock:
            if received.headers["ce-id"] == "tx-2" and fails[0]:
                fails[0] -= 1
                return reply(b"", "404 Not Found")
        return OK

    with Server(handling(answers)) as server:
        group = pushing(server.url, orderly=True)
        until(lambda: group.consumer.consumed == 6)
    ids = [each.headers["ce-id"] for each in server.received]
    assert [each for each in ids if each in ("tx-0", "tx-2", "tx-4")] == ["tx-0", "tx-2", "tx-2", "tx-4"]
    assert [each for each in ids if each in ("tx-1", "tx-3", "tx-5")] == ["tx-1", "tx-3", "tx-5"]


def test_redirects_are_refused(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    with Server(always(OK)) as other:
        with Server(always(reply(b"", "307 Temporary Redirect", Location=other.url))) as server:
            group = pushing(server.url)
            until(lambda: group.consumer.failed)
        assert not other.received
    assert group.consumer.last_error == "redirect 307"


def test_token_rate_and_selector(lake: Published, pushing: Push) -> None:
    first = lake.messages(3, tags="paid")
    lake.publish({"payments": [first + lake.messages(3, tags="created")]})
    with Server(always(OK)) as server:
        group = pushing(server.url, tag="paid", token="a-token-of-the-test", requests_per_second=0.001)
        until(lambda: server.received)
        group.close()  # does not wait for the rate
    (each,) = server.received
    assert each.headers["authorization"] == "Bearer a-token-of-the-test"
    assert from_binary_event(HTTPMessage(each.headers, each.body)).get_type() == "paid"


def test_trace_context_is_a_header_as_well_as_an_extension(lake: Published, pushing: Push) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    lake.publish({"payments": [lake.messages(1, properties=[("traceparent", trace)])]})
    with Server(always(OK)) as server:
        pushing(server.url)
        until(lambda: server.received)
    (each,) = server.received
    assert (each.headers["traceparent"], each.headers["ce-traceparent"]) == (trace, trace)


def test_event_of_the_sdk_is_of_version_1(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(1)]})
    with Server(always(OK)) as server:
        pushing(server.url, mode="structured")
        until(lambda: server.received)
        (event,) = events(server.received)
    assert isinstance(event, CloudEvent)
    assert event.get_data() == b"body-0"


@pytest.mark.parametrize("about", [{}, {"orderly": True}, {"batch": 1}], ids=str)
def test_requests_in_flight_are_limited(lake: Published, pushing: Push, about: dict[str, Any]) -> None:
    lake.publish({"payments": [lake.messages(40, tuple(range(10)))]})
    lock, full, most = threading.Lock(), threading.Event(), 6
    now, peak = [0], [0]

    def handle(received: Received, wire: Wire) -> bool:
        with lock:
            now[0] += 1
            peak[0] = max(*peak, *now)
            if now[0] == most:
                full.set()
        assert full.wait(10)
        with lock:
            now[0] -= 1
        wire.send(OK)
        return True

    with Server(handle) as server:
        group = pushing(server.url, concurrency=most, **about)
        until(lambda: group.consumer.consumed == 40)
    assert peak == [most]
    assert group.consumer.failed == 0


def test_a_message_whose_request_hangs_fails_alone(lake: Published, pushing: Push) -> None:
    lake.publish({"payments": [lake.messages(30)]})

    def handle(received: Received, wire: Wire) -> bool:
        if received.headers["ce-id"] == "tx-5":
            wire.wait(5)
        wire.send(OK)
        return True

    with Server(handle) as server:
        group = pushing(server.url, timeout="300ms")
        until(lambda: group.consumer.consumed == 29 and group.consumer.failed)
        group.close()
    assert (group.consumer.failed, group.consumer.last_error) == (1, "timed out after 0.3 s")
    assert Counter(each.headers["ce-id"] for each in server.received) == {f"tx-{n}": 1 for n in range(30)}
