"""When a request is tried again, by the decisions alone."""

from __future__ import annotations

from datetime import timedelta
from email.utils import formatdate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import SettingsError
from checkback.producer.responses import TRY_AGAIN, GatewayReply
from checkback.producer.retry import Attempts, RetryPolicy

PATIENCES = st.builds(
    RetryPolicy,
    timeout=st.timedeltas(timedelta(seconds=0.1), timedelta(seconds=10)),
    total_timeout=st.timedeltas(timedelta(seconds=0.1), timedelta(seconds=60)),
)
#: a try takes so long, and then fails (None) or brings a status with Retry-After
TRIED = st.tuples(
    st.floats(0, 20), st.none() | st.tuples(st.sampled_from([200, 400, 429, 500, 502, 503]), st.integers(0, 100))
)


def after(attempts: Attempts, status: int, retry_after: str | None = None, now: float = 0) -> float | None:
    return attempts.after_reply(GatewayReply(status, b"", retry_after=retry_after), now)


@given(PATIENCES, st.lists(TRIED, min_size=12, max_size=12))
def test_tries_are_bounded_in_time(
    retry_policy: RetryPolicy, tried: list[tuple[float, tuple[int, int] | None]]
) -> None:
    """However the tries go: none begins too late, none is left out, a wait is as long as was asked."""
    now, attempts = 100.0, Attempts(retry_policy, 100.0)
    for seconds, reply in tried:
        assert attempts.left(now) == max(attempts.until - now, 0.001)
        now += min(seconds, retry_policy.timeout.total_seconds(), attempts.left(now))
        wait = attempts.after_failure(now) if reply is None else after(attempts, reply[0], str(reply[1]), now)
        if wait is None:
            final = reply is not None and reply[0] not in TRY_AGAIN
            assert final or now + max(2, reply[1] if reply else 0) >= attempts.until
            break
        assert reply is None or wait >= reply[1]
        now += wait
        assert now < 100.0 + retry_policy.total_timeout.total_seconds()


@pytest.mark.parametrize("status", [200, 201, 301, 400, 401, 404, 409, 413, 422, 500])
def test_reply_that_is_the_last_word_is_not_tried_again(status: int) -> None:
    assert after(Attempts(RetryPolicy(), 0), status) is None


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_reply_that_says_not_now_is_tried_again(status: int) -> None:
    assert after(Attempts(RetryPolicy(), 0), status) == 0


@pytest.mark.parametrize("plain", [5, 5.0, "5s", None])
def test_timeout_without_a_unit_is_refused(plain: Any) -> None:
    with pytest.raises(TypeError, match=r"^timeout is a timedelta, such as timedelta\(seconds=20\)$"):
        RetryPolicy(timeout=plain)
    with pytest.raises(TypeError, match=r"^total_timeout is a timedelta, such as timedelta\(seconds=20\)$"):
        RetryPolicy(total_timeout=plain)


@pytest.mark.parametrize("name", ["timeout", "total_timeout"])
def test_negative_timeout_is_refused(name: str) -> None:
    """Else each message would be given up, perhaps after it was stored."""
    with pytest.raises(SettingsError, match=f"^{name}: is negative; give a timedelta of zero or more$"):
        RetryPolicy(**{name: timedelta(microseconds=-1)})


def test_retry_after_beyond_the_time_there_is_gives_up_at_once() -> None:
    assert after(Attempts(RetryPolicy(total_timeout=timedelta(seconds=10)), 0), 503, "10") is None
    assert after(Attempts(RetryPolicy(total_timeout=timedelta(seconds=10)), 0), 503, "9") == 9


@pytest.mark.parametrize(
    "text", ["soon", "-1", "1.5.7", "", "Sat, 01 Jan 10000 00:00:00 GMT", "9" * 5000, "1 Jan 99999999999"]
)
def test_retry_after_that_is_nonsense_is_none(text: str) -> None:
    assert after(Attempts(RetryPolicy(), 0), 503, text) == 0


@given(
    st.from_regex(
        r"[A-Z][a-z]{2}, [0-9]{1,3} [A-Z][a-z]{2} [0-9]{1,25} [0-9]{1,3}:[0-9]{1,3}:[0-9]{1,9} [-+A-Z0-9]{3,5}"
    )
    | st.text()
)
def test_retry_after_may_be_any_text(text: str) -> None:
    assert (after(Attempts(RetryPolicy(), 0), 503, text) or 0) >= 0


def test_retry_after_may_be_a_date() -> None:
    assert after(Attempts(RetryPolicy(), 0), 503, formatdate(0, usegmt=True)) == 0


def test_waits_grow_up_to_two_seconds() -> None:
    attempts = Attempts(RetryPolicy(total_timeout=timedelta(seconds=1000)), 0)
    waits = [attempts.after_failure(0) for _ in range(5000)]
    assert waits[0] == 0
    assert waits == sorted(waits, key=lambda wait: wait or 0)
    assert 0.2 <= (waits[1] or 0) <= 0.3
    assert waits[5:] == [2] * 4995
    assert attempts.after_failure(999) is None


@pytest.mark.parametrize(("status", "lost"), [(429, False), (503, True), (502, True)])
def test_only_a_proxys_reply_leaves_open_what_landed(status: int, lost: bool) -> None:
    attempts = Attempts(RetryPolicy(), 0)
    after(attempts, status)
    assert attempts.lost is lost
    attempts.after_failure(0)
    assert attempts.lost
