"""The check endpoint over real HTTP: what Checkback's own client is told, and how it is served."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
import requests

from check.servers import Received, Server, Wire, request
from checkback.check.client import CheckClient
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import CheckScheduler
from checkback.check.wire import CheckAnswer, Message
from checkback.errors import CheckbackError
from checkback.producer import (
    CheckServer,
    LocalTransactionState,
    check_app,
)
from producer.checked import (
    BODY,
    COMMIT,
    SECRET,
    AsyncListener,
    Listener,
    ask,
    post,
    signed,
)
from producer.serving import serving


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize(
    ("said", "told", "error"),
    [
        (COMMIT, "COMMIT", None),
        (LocalTransactionState.ROLLBACK, "ROLLBACK", None),
        (LocalTransactionState.UNKNOWN, "UNKNOWN", None),
        (None, "UNKNOWN", None),
        (RuntimeError("secret"), "UNKNOWN", "listener raised RuntimeError"),
        ("COMMIT", "UNKNOWN", "listener returned str"),
        (True, "UNKNOWN", "listener returned bool"),
    ],
)
def test_client_is_told_what_the_listener_says(kind: str, said: Any, told: str, error: str | None) -> None:
    listener = Listener(said)
    own = listener if kind == "sync" else AsyncListener(listener)
    with CheckServer(check_app({"orders": own}, secret=SECRET)) as server:
        answer = ask(server.url)
    assert (answer.outcome, answer.error) == (told, error)
    assert listener.checks == [request()]


def test_listener_is_given_the_message_when_the_group_sends_it(listener: Listener) -> None:
    message = Message(b"\x00body", "tag", None, {"p": "1"})
    with (
        CheckServer(check_app(listener, secret=SECRET)) as server,
        CheckClient({"orders": CheckedGroup((server.url,), SECRET, include_body=True)}, 5) as client,
    ):
        assert client.ask(request(message=message)).outcome == "COMMIT"
    assert listener.checks == [request(message=message)]


def test_listener_too_slow_is_503_and_the_next_endpoint_is_asked(listener: Listener) -> None:
    slow = Listener()
    slow.go_on.clear()
    with (
        CheckServer(check_app(slow, secret=SECRET, timeout=timedelta(seconds=0.2))) as first,
        CheckServer(check_app(listener, secret=SECRET)) as second,
        CheckClient({"orders": CheckedGroup((first.url, second.url), SECRET)}, 5) as client,
    ):
        answer = client.ask(request())
        slow.go_on.set()
    assert (answer.outcome, answer.failed_tries) == ("COMMIT", ((first.url, "status 503"),))


def test_answer_names_the_half_message(server: CheckServer) -> None:
    answer = post(server.url, BODY, signed(BODY)).json()
    assert answer == {"transaction_id": "tx-1", "queue_id": 0, "queue_offset": 7, "state": "COMMIT"}


def test_check_that_comes_again_by_another_url_is_no_replay(server: CheckServer, listener: Listener) -> None:
    """Two proxies before one process: the first one loses the answer, the second one is tried in the same second."""

    def lose(received: Received, wire: Wire) -> bool:
        assert requests.post(server.url, data=received.body, headers=received.headers, timeout=5).status_code == 200
        return False

    now = time.time()
    with (
        Server(lose) as proxy,
        CheckClient({"orders": CheckedGroup((proxy.url, server.url), SECRET)}, 5, clock=lambda: now) as client,
    ):
        answer = client.ask(request())
    assert (answer.outcome, len(answer.failed_tries)) == ("COMMIT", 1)
    assert len(listener.checks) == 2


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
    with CheckClient({"orders": CheckedGroup((server.url,), SECRET)}, 5) as client:
        asked = [request(offset=number, transaction_id=f"tx-{number}") for number in range(200)]
        answers = client.ask_all(CheckScheduler(asked), 16)
    assert [answer.outcome for _, answer in answers] == ["COMMIT"] * 200
