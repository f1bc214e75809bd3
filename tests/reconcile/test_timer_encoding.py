"""Timers that say more than their time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkback.reconcile.state.partition_batch import (
    SLOTS,
    TimerKind,
    delivery_timer,
    due_timer,
    kind_of,
    ops_timer,
    put_off_delivery,
    put_off_since,
    put_off_timer,
)

_TIMES = st.integers(0, 2**44)


@given(_TIMES, st.integers(0, 10**6))
def test_timers_are_told_apart_and_come_soon(now: int, ahead: int) -> None:
    assert (kind_of(due_timer(now)), kind_of(ops_timer(now))) == (TimerKind.DUE, TimerKind.WITH_OPS)
    assert kind_of(delivery_timer(now)) is TimerKind.DELIVERY
    assert kind_of(put_off_delivery(now, ahead)) is TimerKind.LATE_DELIVERY
    assert now <= due_timer(now) <= now + 3
    assert now <= delivery_timer(now) <= now + 7
    assert now < put_off_delivery(now, ahead) <= now + 250
    assert put_off_delivery(now, ahead) <= put_off_delivery(now, ahead + 1)
    assert now <= ops_timer(now) <= now + 3
    found = put_off_timer(now, ahead)
    assert kind_of(found) is TimerKind.PUT_OFF
    assert now < found <= now + 62 * 4 * SLOTS
    assert put_off_timer(now) <= now + 2 * 4 * SLOTS


@given(_TIMES, st.lists(st.integers(1, 100_000), min_size=1, max_size=20))
def test_what_has_waited_longer_comes_first(now: int, steps: list[int]) -> None:
    """As long as it has not waited for hours; and it keeps since when."""
    timer = put_off_timer(now)
    since = put_off_since(timer)
    for step in steps:
        now = max(now + step, timer)
        timer = put_off_timer(now, before=timer)
        assert put_off_since(timer) == since
        newer = put_off_timer(now)
        assert timer <= newer
        assert put_off_since(newer) >= since
