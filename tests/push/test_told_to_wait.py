"""Answers with Retry-After: requests in flight grow from one again, and only a message that is refused alone fails.

By a clock of the test: the receiver answers all that is in flight each 50 ms.
"""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from checkback.check.connections import Response
from checkback.push.side_by_side import SideBySide
from checkback.push.webhook import Request, Webhook
from checkback.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.check.connections import Connections
    from checkback.consumer.listener_calls import Consuming
    from checkback.consumer.process_queue import Slice

ROUND_S, CONCURRENCY = 0.05, 32
BEGIN = 1_000_000.0


class Taken:
    """A slice in hand: its messages are numbers."""

    queue, retries = None, None

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.done = numbers, 0
        self.outcomes: dict[int, str | None] = {}

    def __len__(self) -> int:
        return len(self.numbers)

    def messages(self) -> list[Any]:
        return [SimpleNamespace(topic="t", transaction_id=str(n), number=n) for n in self.numbers[self.done :]]


class Pushed:
    """Pushes so many messages with one thread. ``refuses``: by message and time, the seconds of Retry-After, or 0."""

    def __init__(self, messages: int, refuses: Callable[[int, float], int]) -> None:
        self.now, self.left, self._refuses, self.paused = BEGIN, list(range(messages)), refuses, False
        #: by message how often it was posted; what failed; requests in flight and refusals of each round
        self.posts: Counter[int] = Counter()
        self.failed: list[int] = []
        self.rounds: list[tuple[int, int]] = []
        self._in_flight: list[Any] = []
        push = Settings.model_validate({"push": {"g": {"topic": "t", "url": "http://127.0.0.1:1/h"}}})
        self.webhook = Webhook("g", push.push["g"], push.check, clock=lambda: self.now)
        self.webhook.connections = lambda: cast("Connections[Any]", self)  # type: ignore[method-assign]
        thread = SideBySide(self.webhook, lambda m: Request([], b"", f"msg_{cast('Any', m).number}"), 1, self._pause)
        thread._threads.share = CONCURRENCY
        while self.left:
            thread.consume(self._take(), cast("Consuming", self))
        assert len(self.posts) == messages

    def _pause(self) -> None:
        self.paused = True

    def _take(self) -> Slice:
        taken, self.left = self.left[:64], self.left[64:]
        return cast("Slice", Taken(taken))

    # As Connections.

    def post(self, _: object, key: Any) -> None:
        self._in_flight.append(key)

    def responses(self, _: float) -> list[tuple[Any, Response]]:
        answered, self._in_flight = self._in_flight, []
        self.now += ROUND_S
        found = []
        for key in answered:
            number = key[0].taken.numbers[key[1]]
            self.posts[number] += 1
            wait_s = self._refuses(number, self.now)
            headers = (b"Retry-After: %d\r\n" % wait_s,)
            found.append((key, Response(503, headers=headers) if wait_s else Response(200)))
        self.rounds.append((len(found), sum(response.status == 503 for _, response in found)))
        return found

    # As Consuming.

    def goes_on(self, _: object, waits: bool = True) -> bool:
        while self.paused and waits:
            self.now += ROUND_S
            self.paused = not self.webhook.ready
        return not self.paused

    def more(self, only_new: bool) -> Slice | None:  # noqa: ARG002 - of Consuming
        return self._take() if self.left and not self.paused else None

    def succeeded(self, taken: Any, count: int) -> None:
        taken.done += count

    def failed_with(self, taken: Any, count: int, _: str) -> bool:
        self.failed += taken.numbers[taken.done : taken.done + count]
        taken.done += count
        return True

    def put_back(self, taken: object) -> None:
        pass


class RateLimit:
    """So many a second, at most so many at once; what is refused is told to wait for the next."""

    def __init__(self, per_second: float) -> None:
        self._per_second, self._tokens, self._at = per_second, 1.0, BEGIN

    def __call__(self, _: int, now: float) -> int:
        added = (now - self._at) * self._per_second
        self._tokens, self._at = min(max(self._per_second, 1.0), self._tokens + added), now
        if self._tokens < 1:
            return max(1, round(1 / self._per_second))
        self._tokens -= 1
        return 0


@pytest.mark.parametrize("per_second", [0.2, 1, 20])
def test_rate_limit_of_the_receiver_fails_no_message_and_makes_no_storm(per_second: float) -> None:
    messages = 200
    pushed = Pushed(messages, RateLimit(per_second))
    assert pushed.failed == []
    assert pushed.posts.total() < 2.2 * messages
    assert pushed.now - BEGIN < 1.5 * messages / per_second


def test_requests_in_flight_grow_from_one_after_a_pause() -> None:
    told: list[int] = []

    def once(number: int, _: float) -> int:
        told.append(number)
        return int(len(told) == 200)

    rounds = Pushed(500, once).rounds
    (at,) = (place for place, (_, refused) in enumerate(rounds) if refused)
    assert [posted for posted, _ in rounds[at : at + 8]] == [32, 1, 1, 2, 4, 8, 16, 32]


def test_message_that_is_always_told_to_wait_fails_soon_and_alone() -> None:
    """The pauses that it costs are four."""
    pushed = Pushed(500, lambda number, _: 30 * (number == 7))
    assert pushed.failed == [7]
    assert pushed.posts == {number: 4 if number == 7 else 1 for number in range(500)}


def test_outage_of_the_receiver_fails_no_message() -> None:
    pushed = Pushed(100, lambda _, now: 5 * (now < BEGIN + 600))
    assert pushed.failed == []
    assert pushed.posts.total() < 100 + CONCURRENCY + 600 / 5
