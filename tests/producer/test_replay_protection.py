"""The memory against replays, held to one that forgets nothing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from checkback.producer.signature_verifier import TOLERANCE_S, ReplayCache

NOW = 1_800_000_000
#: (id, how far its timestamp is off, seconds that pass before it)
REQUESTS = st.lists(
    st.tuples(st.sampled_from("abcdefgh"), st.integers(-TOLERANCE_S, TOLERANCE_S), st.integers(0, 200)), max_size=80
)


@given(REQUESTS, st.integers(1, 20))
def test_replay_is_never_taken_and_memory_is_bounded(requests: list[tuple[str, int, int]], limit: int) -> None:
    replays, taken, now = ReplayCache(limit), set[tuple[str, int]](), NOW
    for name, off, passes in requests:
        now += passes
        if replays.take(name, now + off, b"{}", now):
            assert (name, now + off) not in taken
            taken.add((name, now + off))
        assert len(replays) <= limit


@given(REQUESTS)
def test_memory_that_suffices_takes_everything_once(requests: list[tuple[str, int, int]]) -> None:
    """With room for all, a request that the signature library lets through is refused only if it was there."""
    replays, taken, now = ReplayCache(1000), set[tuple[str, int]](), NOW
    for name, off, passes in requests:
        now += passes
        request = (name, now + off)
        assert replays.take(*request, b"{}", now) == (request not in taken)
        taken.add(request)


def test_check_sent_again_is_signed_anew_and_taken() -> None:
    """The same check to another endpoint, a second later: one webhook-id, two requests."""
    replays = ReplayCache(10)
    assert replays.take("chk_0_7_1", NOW, b"{}", NOW)
    assert replays.take("chk_0_7_1", NOW + 1, b"{}", NOW + 1)
    assert not replays.take("chk_0_7_1", NOW, b"{}", NOW + 1)


def test_other_body_is_another_request() -> None:
    """Two installations of Checkback may ask one service, each with offsets of its own."""
    replays = ReplayCache(10)
    assert replays.take("chk_0_7_1", NOW, b"1", NOW)
    assert replays.take("chk_0_7_1", NOW, b"2", NOW)


def test_old_requests_are_forgotten() -> None:
    replays = ReplayCache(10)
    assert replays.take("a", NOW, b"{}", NOW)
    assert replays.take("b", NOW + TOLERANCE_S + 2, b"{}", NOW + TOLERANCE_S + 2)
    assert len(replays) == 1


def test_clock_set_back_lets_nothing_in_again() -> None:
    replays = ReplayCache(10)
    assert replays.take("a", NOW, b"{}", NOW)
    assert replays.take("b", NOW + 1000, b"{}", NOW + 1000)
    assert not replays.take("a", NOW, b"{}", NOW)


def test_request_raced_by_threads_is_taken_once() -> None:
    replays = ReplayCache(100_000)
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda n: replays.take(f"chk_{n % 500}", NOW, b"{}", NOW), range(8000)))
    assert sum(taken) == 500
