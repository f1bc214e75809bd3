"""What is taken for the next request, and which ops have no last word yet."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.messages.limits import BATCH_MAX
from checkback.producer import LocalTransactionState, RetryPolicy
from checkback.producer.accumulator import Accumulator, Outstanding
from checkback.producer.calls import BATCH_BYTES, Call, Op
from checkback.producer.retry import Attempts

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_POLICY = RetryPolicy()


def call(number: int, size: int = 1, pinned: str | None = None, preferred: str | None = None) -> Call:
    made = Call([("t", b"")] * number, Attempts(RETRY_POLICY, 0))
    made.size, made.pinned, made.preferred = size, pinned, preferred
    return made


def only(made: Call) -> str | None:
    """The one gateway that may have it."""
    return made.pinned or made.preferred


def op() -> Op:
    return Op("t", b"", Attempts(RETRY_POLICY, 0), LocalTransactionState.COMMIT)


CALLS = st.lists(
    st.builds(
        call,
        st.integers(1, BATCH_MAX),
        st.sampled_from([1, BATCH_BYTES // 3, BATCH_BYTES, 2 * BATCH_BYTES]),
        st.sampled_from([None, None, "a", "b"]),
        st.sampled_from([None, None, "a", "b"]),
    ),
    max_size=12,
)


@given(CALLS, st.lists(st.sampled_from("ab"), min_size=24, max_size=24))
def test_requests_are_within_the_limits_and_each_call_is_taken_once_in_order(
    calls: list[Call], turns: list[str]
) -> None:
    waiting: Accumulator[Call] = Accumulator()
    for one in calls:
        assert waiting.add(one)
    taken: list[Call] = []
    for gateway in [*turns, *"ab" * 12]:
        if not any(only(one) in {None, gateway} for one in calls if one not in taken):
            continue
        request = waiting.take(gateway)
        waiting.done()
        assert request
        assert len(request) == 1 or sum(map(len, request)) <= BATCH_MAX
        assert len(request) == 1 or sum(one.size for one in request) <= BATCH_BYTES
        assert {only(one) for one in request} <= {None, gateway}
        taken += request
    assert len(taken) == len(calls)
    assert set(map(id, taken)) == set(map(id, calls))
    for pin in (None, "a", "b"):
        assert [one for one in taken if only(one) == pin] == [one for one in calls if only(one) == pin]
    waiting.close()
    assert waiting.take("a") == []
    assert not waiting.add(call(1))


def test_another_gateway_has_what_prefers_one_that_is_left_alone_unless_it_is_pinned_to_it() -> None:
    waiting: Accumulator[Call] = Accumulator()
    pinned, preferring = call(1, pinned="a"), call(1, preferred="a")
    for one in (pinned, preferring, call(1, preferred="c")):
        assert waiting.add(one)
    waiting.free("a")
    assert waiting.take("b") == [preferring]
    assert waiting.take("a") == [pinned]


def test_nobody_ends_while_calls_may_be_put_back() -> None:
    waiting: Accumulator[Call] = Accumulator()
    waiting.add(call(1))
    taken = waiting.take("a")
    waiting.close()
    assert not waiting.finished(0)
    waiting.put_back(taken)
    waiting.done()
    assert waiting.take("b") == taken
    waiting.done()
    assert waiting.finished(0)
    assert waiting.take("a") == []


@given(st.lists(st.integers(0, 3), max_size=30))
def test_flush_waits_for_what_was_handed_over_before(steps: list[int]) -> None:
    """In whatever order ops have their last word: 0 hands one over, another number settles that one of them."""
    ledger = Outstanding(3)
    left: list[Op] = []
    for step in steps:
        if step == 0:
            left.append(op())
            ledger.add(left[-1])
        elif left:
            ended = left.pop(step % len(left))
            assert ledger.settle([ended, ended]) == [ended]
            assert ledger.settle([ended]) == []
        assert ledger.flush(0) == (not left)
        assert ledger.full == (len(left) >= 3)
        assert ledger.wait_for_room(0) == (not ledger.full)
        assert ledger.among(left) == left
    assert ledger.abandon() == left
    assert ledger.flush(0)


def test_call_that_is_withdrawn_is_not_taken() -> None:
    waiting: Accumulator[Call] = Accumulator()
    first, second = call(1), call(1)
    for one in (first, second):
        waiting.add(one)
    assert waiting.withdraw(first)
    assert waiting.withdraw(first)
    assert waiting.take() == [second]
    assert not waiting.withdraw(second)


def test_calls_put_back_come_first_and_expire() -> None:
    waiting: Accumulator[Call] = Accumulator()
    first, second, third = (call(1) for _ in range(3))
    waiting.add(first)
    waiting.add(second)
    waiting.put_back([*waiting.take(), third][::-1])
    assert waiting.expired(RETRY_POLICY.total_timeout.total_seconds() / 2) == []
    assert waiting.take() == [third, second, first]
    waiting.put_back([first])
    assert waiting.expired(RETRY_POLICY.total_timeout.total_seconds()) == [first]
    assert len(waiting) == 0


@pytest.mark.parametrize("end", [Accumulator[Op].hurry, Accumulator[Op].close])
def test_calls_that_linger_are_taken_together_and_at_once_when_told(end: Callable[[Accumulator[Op]], None]) -> None:
    waiting: Accumulator[Op] = Accumulator(linger_s=86_400)
    ops = [op() for _ in range(3)]
    for one in ops:
        waiting.add(one)
    end(waiting)
    assert waiting.take() == ops


def test_nothing_is_hurried_before_it_comes() -> None:
    waiting: Accumulator[Op] = Accumulator(linger_s=86_400)
    waiting.hurry()
    with ThreadPoolExecutor(1) as pool:
        taking = pool.submit(waiting.take)
        waiting.add(first := op())
        while not waiting._hurried._waiters:  # type: ignore[attr-defined]  # it lingers
            assert not taking.done()
        waiting.add(second := op())
        waiting.hurry()
        assert taking.result() == [first, second]
