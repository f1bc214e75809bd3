"""Retries of messages that a consumer could not consume: levels, and what becomes of a message. Pure.

RocketMQ: MessageStoreConfig.messageDelayLevel, DefaultMQPushConsumer.maxReconsumeTimes; the first retry has level 3.
In order: ConsumeMessageOrderlyService, whose limit is Integer.MAX_VALUE and whose longest pause 30 s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from checkback.consumer.position import MessageKey  # noqa: TC001 - msgspec reads the types of a queue's state

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from checkback.consumer.position import Position

_MINUTE = 60_000
#: pause before each retry (ms): 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h
RETRY_LEVELS: tuple[int, ...] = (
    10_000,
    30_000,
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30, 60, 120)),
)
#: retries of a message before it goes to `dead_letters`
MAX_RECONSUME_TIMES = 16
#: the longest pause before a retry in order (ms)
SUSPEND_MOST = 30_000
#: how the reason of a retry begins that an operator has asked for
RESUMED = "resumed by "


class Retry(NamedTuple):
    """A message to be consumed again. ``times``: which retry it is, from 1; ``due_at``: ms; ``reason``: last error.

    One that an operator has asked for is due at once: its ``due_at`` is later than those of all asked for before.
    ``held_since``: when the message began to hold up its queue, in order (ms); None = it does not.
    """

    message: MessageKey
    times: int
    due_at: int
    reason: str
    held_since: int | None = None

    @property
    def resumed(self) -> bool:
        """True if an operator has the message consumed again (`group reconsume`)."""
        return self.reason.startswith(RESUMED)


class DeadLetter(NamedTuple):
    """A message that is given up after ``times`` retries, at ``dead_at`` (ms). ``reason``: the last error."""

    message: MessageKey
    times: int
    dead_at: int
    reason: str


def retry_delay(times: int, levels: tuple[int, ...] = RETRY_LEVELS) -> int:
    """Pause before retry number ``times`` (ms); after the last level the last one again."""
    return levels[min(times, len(levels)) - 1]


def suspend_levels(first: int) -> tuple[int, ...]:
    """Pauses before the retries in order (ms): twice as long each time, up to SUSPEND_MOST; ``first``: the first."""
    levels = [first]
    while 0 < levels[-1] < SUSPEND_MOST:
        levels.append(min(2 * levels[-1], SUSPEND_MOST))
    return tuple(levels)


def holding(retries: Iterable[Retry], position: Position) -> Retry | None:
    """The retry that blocks a queue at this position, in order; None = none."""
    return next((each for each in retries if each.held_since is not None and not position.has(each.message)), None)


def after_failure(
    message: MessageKey, times: int, reason: str, now: int, most: int, levels: tuple[int, ...] = RETRY_LEVELS
) -> Retry | DeadLetter:
    """What becomes of a message whose try after ``times`` retries failed at ``now`` (ms); ``most``: retries at most."""
    if times >= most:
        return DeadLetter(message, times, now, reason)
    return Retry(message, times + 1, now + retry_delay(times + 1, levels), reason)


def not_later(retry: Retry, now: int, levels: tuple[int, ...] = RETRY_LEVELS) -> Retry:
    """A kept retry, due after its own pause at the latest: the clock that it was kept by may have been ahead.

    An operator's is due at once, and its time tells it from others.
    """
    latest = now + retry_delay(retry.times, levels)
    return retry if retry.resumed or retry.due_at <= latest else retry._replace(due_at=latest)


def due(retries: Mapping[MessageKey, Retry], now: int) -> list[Retry]:
    """The retries that are due, the earliest first."""
    return sorted(
        (each for each in retries.values() if each.resumed or each.due_at <= now), key=lambda each: each.due_at
    )
