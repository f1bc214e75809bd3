"""Groups share the places: one whose producer hangs does not hold up the others."""

from __future__ import annotations

import threading
from asyncio import CancelledError
from collections import Counter
from contextlib import ExitStack, closing
from datetime import datetime, timezone

import pytest

from check.servers import Handler, Received, Server, Wire, always, reply, request, says
from checkback.check.client import CheckClient
from checkback.check.connections import Connections, Post
from checkback.check.endpoint import CheckedGroup
from checkback.check.fair_scheduler import ActiveCheck, CheckScheduler, Dialogue, run_checks
from checkback.check.wire import CheckAnswer, CheckRequest

SECRET_WORD = "must-not-be-quoted"


def requests_of(**counts: int) -> list[CheckRequest]:
    return [request(group=group, offset=offset) for group, count in counts.items() for offset in range(count)]


def test_turns_one_thread_alternates_between_groups() -> None:
    """Also without anything under way the groups come in turn."""
    scheduler = CheckScheduler(requests_of(a=3, b=2, c=1))
    order = []
    while isinstance(taken := scheduler.take(0), CheckRequest):
        order.append(taken.producer_group)
        scheduler.done(taken)
    assert "".join(order) == "abcaba"


def asked(
    requests: list[CheckRequest], concurrency: int, **handlers: Handler
) -> list[tuple[CheckRequest, CheckAnswer]]:
    """The answers of groups, each with a server of its own."""
    with ExitStack() as stack:
        servers = {group: stack.enter_context(Server(handler)) for group, handler in handlers.items()}
        groups = {group: CheckedGroup((server.url,)) for group, server in servers.items()}
        client = stack.enter_context(CheckClient(groups, 20))
        return client.ask_all(CheckScheduler(requests), concurrency)


def test_group_that_hangs_leaves_places_to_the_others() -> None:
    """While all of one group's checks hang, every check of the other group is done; then the rest is."""
    well_done, well_count, held_up = threading.Event(), iter(range(1, 51)), []

    def hangs(received: Received, wire: Wire) -> bool:
        if not well_done.wait(10):
            held_up.append(received)
        wire.send(reply(says("UNKNOWN")))
        return True

    def well(received: Received, wire: Wire) -> bool:
        if next(well_count) == 50:
            well_done.set()
        wire.send(reply(says("UNKNOWN")))
        return True

    requests = requests_of(hangs=50, well=50)
    answered = asked(requests, 4, hangs=hangs, well=well)
    assert {(one.producer_group, one.queue_offset) for one, _ in answered} == {
        (one.producer_group, one.queue_offset) for one in requests
    }
    assert [answer.outcome for _, answer in answered] == ["UNKNOWN"] * 100
    assert held_up == []


def test_checks_under_way_are_no_more_than_allowed() -> None:
    """Four at once, not more and, with enough to do, not fewer: each has a connection."""
    all_in = threading.Barrier(4)

    def handle(received: Received, wire: Wire) -> bool:
        all_in.wait(5)
        wire.send(reply(says("UNKNOWN")))
        return True

    with Server(handle) as server, CheckClient({"a": CheckedGroup((server.url,))}, 20) as client:
        answered = client.ask_all(CheckScheduler(requests_of(a=8)), 4)
        assert [answer.outcome for _, answer in answered] == ["UNKNOWN"] * 8
        assert server.connections == 4


def test_nothing_to_ask_is_nothing() -> None:
    assert asked([], 4) == []


def test_check_that_ends_at_once_does_not_wait_for_the_others() -> None:
    """A group without endpoints is done while another group's only check is still under way."""
    first, answers = threading.Event(), []

    def handle(received: Received, wire: Wire) -> bool:
        first.wait(0.5)
        wire.send(reply(says("UNKNOWN")))
        return True

    answers = asked(requests_of(a=1, nobody=200), 4, a=handle)
    assert [request.producer_group for request, _ in answers] == ["nobody"] * 200 + ["a"]


def test_error_in_one_dialogue_ends_that_check_only() -> None:
    """Whatever goes wrong with a check, before it is sent, in sending it, or with what came back: the others go on."""

    def begin(request: CheckRequest) -> Dialogue:
        if request.producer_group == "before":
            raise ZeroDivisionError(SECRET_WORD)
        response = yield Post("http://a\x00" if request.producer_group == "sending" else server.url, [], b"{}")
        assert response is not None
        if request.producer_group == "after":
            raise OverflowError(SECRET_WORD)
        return CheckAnswer("UNKNOWN", None, None, 0, datetime.now(timezone.utc))

    with Server(always(reply(says("UNKNOWN")))) as server, closing(Connections[ActiveCheck](5, None)) as connections:
        scheduler = CheckScheduler(requests_of(before=3, sending=3, after=3, well=3))
        answered = run_checks(begin, scheduler, connections, 2)
    found = Counter((one.producer_group, answer.outcome, answer.error, answer.delivered) for one, answer in answered)
    assert found == {
        ("before", "NO_ANSWER", "could not be asked: ZeroDivisionError in begin", False): 3,
        ("sending", "NO_ANSWER", "could not be asked: ValueError in prepare", False): 3,
        ("after", "NO_ANSWER", "could not be asked: OverflowError in begin", True): 3,
        ("well", "UNKNOWN", None, True): 3,
    }


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, CancelledError])
def test_end_of_the_task_is_no_answer_of_a_check(error: type[BaseException]) -> None:
    def begin(request: CheckRequest) -> Dialogue:
        yield from ()
        raise error

    with closing(Connections[ActiveCheck](5, None)) as connections, pytest.raises(error):
        run_checks(begin, CheckScheduler(requests_of(a=2)), connections, 2)
