"""Posts the messages of a slice side by side, from one thread. A thread for each would cost three times the CPU."""

from __future__ import annotations

import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from checkback import tracing
from checkback.consumer.listener_calls import NotConsumedError, NotNowError
from checkback.consumer.process_queues import warn
from checkback.errors import error_summary
from checkback.messages.trace_context import PROPERTIES
from checkback.push.webhook import WaitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.check.connections import Connections, Post
    from checkback.consumer.listener_calls import Consuming
    from checkback.consumer.message import MessageExt
    from checkback.consumer.process_queue import Slice
    from checkback.push.webhook import Request, Webhook

#: time for which a thread takes messages (s), and the most it takes
_SLICE_S, _SLICE = 0.25, 256
#: threads that share the requests in flight
_MOST_THREADS = 4
_LOOK_S = 1.0


def threads_of(concurrency: int) -> int:
    """How many threads share so many requests in flight evenly."""
    return next(threads for threads in range(_MOST_THREADS, 0, -1) if concurrency % threads == 0)


class SideBySide:
    """Consumes as `listener_calls.Listening` does: of each message ``request`` makes a request to the webhook.

    ``most``: requests in flight, of each thread; ``pause``: pauses the consumer, until the webhook is ready.
    """

    def __init__(
        self, webhook: Webhook, request: Callable[[MessageExt], Request], most: int, pause: Callable[[], None]
    ) -> None:
        self._webhook, self._request, self._most, self._pause = webhook, request, most, pause
        self._threads = threading.local()
        self._pace = 0.0

    def slice_size(self) -> int:
        """How many messages a thread is to take: few if the webhook is slow, so that the end does not wait for many."""
        return max(2 * self._most, min(_SLICE, int(_SLICE_S / self._pace) if self._pace else 0))

    def consume(self, taken: Slice, consuming: Consuming) -> None:
        """Post its messages, while they may be consumed; outcomes are reported in order.

        Raises NotNowError if they are to be posted later; a message that was taken behind one that was not comes again.
        """
        began, first = time.perf_counter(), taken.done
        try:
            _Posting(self._webhook, self._request, self._most, self._pause, self._connections(), taken).run(consuming)
        except NotNowError:
            raise
        except BaseException:
            self._threads.connections.close()  # with what is in flight
            del self._threads.connections
            raise
        if taken.done > first:
            self._pace = 0.8 * self._pace + 0.2 * (time.perf_counter() - began) / (taken.done - first)

    def _connections(self) -> Connections[tuple[int, int]]:
        found: Connections[tuple[int, int]] | None = getattr(self._threads, "connections", None)
        if found is None:
            found = self._threads.connections = self._webhook.connections()
        return found


class _Posting:
    """One slice being posted. ``todo``: places of messages to be posted; ``outcomes``: by place, None = success."""

    def __init__(
        self,
        webhook: Webhook,
        request: Callable[[MessageExt], Request],
        most: int,
        pause: Callable[[], None],
        connections: Connections[tuple[int, int]],
        taken: Slice,
    ) -> None:
        self._webhook, self._request, self._most, self._pause = webhook, request, most, pause
        self._connections, self._taken = connections, taken
        self._messages, self._first = taken.messages(), taken.done
        self._todo = deque(range(taken.done, len(taken)))
        self._outcomes: dict[int, str | None] = {}
        self._in_flight = 0
        #: of requests in flight, by place; empty unless the process makes spans
        self._spans: dict[int, tuple[ExitStack, Any]] = {}

    def run(self, consuming: Consuming) -> None:
        try:
            self._run(consuming)
        finally:
            for span in self._spans.values():
                _end(*span, "not known")

    def _run(self, consuming: Consuming) -> None:
        while self._todo or self._in_flight:
            wait_s = self._fill(consuming)
            if not self._in_flight:
                if wait_s is None:
                    break
                if self._webhook.closed.wait(wait_s):
                    raise NotNowError
                continue
            for (place, turn), response in self._connections.responses(_LOOK_S if wait_s is None else wait_s):
                self._in_flight -= 1
                span = self._spans.pop(place, None)
                try:
                    self._webhook.heard(response, turn)
                except WaitError:
                    self._pause()
                    self._todo.appendleft(place)
                except NotConsumedError as error:
                    self._failed(place, str(error))
                else:
                    self._outcomes[place] = None
                if span is not None:
                    _end(*span, self._outcomes.get(place, "to be sent again") or "SUCCESS")
            self._report(consuming)
        self._report(consuming)

    def _fill(self, consuming: Consuming) -> float | None:
        """Post what may be posted now. Seconds until more may be; None: when others have ended, or never."""
        taken = self._taken
        while self._todo and self._in_flight < self._most and consuming.goes_on(taken, waits=not self._in_flight):
            place = self._todo[0]
            message = self._messages[place - self._first]
            try:
                request = self._request(message)
            except Exception as error:  # noqa: BLE001 - it fails this message only
                self._todo.popleft()
                self._failed(place, error_summary(error))
                continue
            wait_s = self._webhook.rate_wait(request.message_id)
            if wait_s:
                return wait_s
            try:
                post, turn = self._webhook.begin(request)
            except WaitError:
                self._pause()
                return 0.0
            self._todo.popleft()
            if tracing.loaded():
                post = self._traced(post, place, message)
            self._connections.post(post, (place, turn))
            self._in_flight += 1
        return None if self._todo or self._in_flight else 0.0

    def _traced(self, post: Post, place: int, message: MessageExt) -> Post:
        """The POST in a span of its own, below the message's, and with its context for a header."""
        spans = ExitStack()
        span, context = spans.enter_context(tracing.posting(message, self._webhook.group))
        self._spans[place] = spans, span
        others = [line for line in post.headers if line.partition(":")[0] not in PROPERTIES]
        return post._replace(headers=[*others, *(f"{name}: {value}" for name, value in context.items())])

    def _failed(self, place: int, reason: str) -> None:
        message = self._messages[place - self._first]
        warn("the request of %r failed: %s", message, reason, message=message)
        self._outcomes[place] = reason

    def _report(self, consuming: Consuming) -> None:
        taken = self._taken
        while taken.done in self._outcomes:
            reason = self._outcomes.pop(taken.done)
            if reason is None:
                consuming.succeeded(taken, 1)
            else:
                consuming.failed_with(taken, 1, reason)


def _end(spans: ExitStack, span: Any, outcome: str) -> None:
    span.set_attribute("checkback.outcome", outcome)
    spans.close()
