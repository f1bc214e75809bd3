"""A listener that notes what it hears, and waits for it."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from checkback.consumer import ConsumeResult, MessageExt

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE_S = 30


@dataclass
class Heard:
    """The messages in the order of their calls. ``fails``: by offset, how often the listener fails first."""

    fails: dict[int, int] = field(default_factory=dict)
    messages: list[MessageExt] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    also: Callable[..., Any] | None = None

    def __call__(self, message: MessageExt, *more: Any) -> ConsumeResult:
        if self.also is not None:
            self.also(message, *more)
        with self.changed:
            self.messages.append(message)
            self.changed.notify_all()
            left = self.fails.get(message.half_queue_offset, 0)
            if left:
                self.fails[message.half_queue_offset] = left - 1
                return ConsumeResult.RECONSUME_LATER
        return ConsumeResult.SUCCESS

    async def later(self, message: MessageExt) -> ConsumeResult:
        """As a coroutine."""
        return self(message)

    @property
    def offsets(self) -> list[int]:
        """The offsets heard, in order."""
        with self.changed:
            return [message.half_queue_offset for message in self.messages]

    @property
    def times(self) -> Counter[int]:
        """How often each offset was heard."""
        return Counter(self.offsets)

    def wait(self, done: Callable[[Heard], object], patience_s: float = PATIENCE_S) -> None:
        """Until ``done`` says so; fails after ``patience_s``."""
        with self.changed:
            assert self.changed.wait_for(lambda: done(self), patience_s), self.messages[-5:]

    def wait_for_count(self, count: int, patience_s: float = PATIENCE_S) -> None:
        """Until so many calls are heard."""
        self.wait(lambda heard: len(heard.messages) >= count, patience_s)

    def wait_for(self, *offsets: int) -> None:
        """Until these are heard."""
        self.wait(lambda heard: set(offsets) <= {message.half_queue_offset for message in heard.messages})


def until(done: Callable[[], object]) -> None:
    """Until ``done`` says so; fails after 30 s."""
    moment = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if done():
            return
        moment.wait(0.01)
    raise AssertionError("it never happened")


def raising(error: type[BaseException]) -> Callable[[Any], None]:
    """What a listener does that fails twice on the message at offset 1."""
    left = [2]

    def fail(message: Any) -> None:
        if message.half_queue_offset == 1 and left[0]:
            left[0] -= 1
            raise error

    return fail
