"""Groups share the threads: one whose producer hangs does not hold up the others."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

import pytest

from check.servers import request
from checkback.check.exchange import CheckAnswer, CheckRequest
from checkback.check.turns import Turns, ask_all

ANSWER = CheckAnswer("UNKNOWN", "http://127.0.0.1/", None, 1, datetime(2026, 1, 1, tzinfo=timezone.utc))


def requests_of(**counts: int) -> list[CheckRequest]:
    return [request(group=group, offset=offset) for group, count in counts.items() for offset in range(count)]


def test_turns_one_thread_alternates_between_groups() -> None:
    """Also without anything under way the groups come in turn."""
    turns = Turns(requests_of(a=3, b=2, c=1))
    order = []
    while isinstance(taken := turns.take(0), CheckRequest):
        order.append(taken.producer_group)
        turns.done(taken)
    assert "".join(order) == "abcaba"


def test_group_that_hangs_leaves_threads_to_the_others() -> None:
    """While all of one group's checks hang, every check of the other group is done; then the rest is."""
    requests = requests_of(hangs=50, well=50)
    well_done, well_count = threading.Event(), iter(range(1, 51))

    def ask(asked: CheckRequest) -> CheckAnswer:
        if asked.producer_group == "hangs":
            assert well_done.wait(10), "the other group was held up"
        elif next(well_count) == 50:
            well_done.set()
        return ANSWER

    answered = ask_all(ask, Turns(requests), threads=4)
    assert {(asked.producer_group, asked.queue_offset) for asked, _ in answered} == {
        (asked.producer_group, asked.queue_offset) for asked in requests
    }
    assert len(answered) == 100


def test_threads_are_no_more_than_allowed() -> None:
    """Four at once, not more and, with enough to do, not fewer."""
    lock, together, most = threading.Lock(), [0], [0]
    all_in = threading.Barrier(4)

    def ask(asked: CheckRequest) -> CheckAnswer:
        with lock:
            together[0] += 1
            most[0] = max(most[0], together[0])
        all_in.wait(5)
        with lock:
            together[0] -= 1
        return ANSWER

    ask_all(ask, Turns(requests_of(a=8)), threads=4)
    assert most == [4]


def test_nothing_to_ask_is_nothing() -> None:
    assert ask_all(dict[CheckRequest, CheckAnswer]().__getitem__, Turns([]), threads=4) == []


def test_bug_in_asking_is_not_swallowed() -> None:
    def ask(asked: CheckRequest) -> CheckAnswer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ask_all(ask, Turns(requests_of(a=2)), threads=2)
