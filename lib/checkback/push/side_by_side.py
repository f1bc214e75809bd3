"""Posts messages side by side, from few threads. A thread for each would cost three times the CPU."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from checkback import tracing
from checkback.consumer.listener_calls import NotConsumedError
from checkback.consumer.process_queues import warn
from checkback.errors import error_summary
from checkback.messages.trace_context import PROPERTIES
from checkback.push.webhook import WaitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.check.connections import Connections, Post, Response
    from checkback.consumer.listener_calls import Consuming
    from checkback.consumer.message import MessageExt
    from checkback.consumer.process_queue import Slice
    from checkback.push.webhook import Request, Try, Webhook

#: time for which a thread takes messages (s), and the most it takes
_SLICE_S, _SLICE = 0.25, 256
#: threads that share the requests in flight
_MOST_THREADS = 4
#: time between looks for what else may be posted (s): without room, and with
_LOOK_S, _SOON_S = 1.0, 0.05


def threads_of(concurrency: int) -> int:
    """How many threads share so many requests in flight: each has more than one, if there are."""
    return max(1, min(concurrency // 2, _MOST_THREADS))


class SideBySide:
    """Consumes as `listener_calls.Listening` does: of each message ``request`` makes a request to the webhook.

    ``concurrency``: requests in flight, of all threads; ``pause``: pauses the consumer, until the webhook is ready.
    """

    def __init__(
        self, webhook: Webhook, request: Callable[[MessageExt], Request], concurrency: int, pause: Callable[[], None]
    ) -> None:
        self.webhook, self.request, self.pause = webhook, request, pause
        threads = threads_of(concurrency)
        self._shares = (concurrency // threads + (n % threads < concurrency % threads) for n in itertools.count())
        self._sharing = threading.Lock()
        self._threads = threading.local()
        self._pace = 0.0

    @property
    def share(self) -> int:
        """Requests in flight of this thread, at most."""
        if (found := getattr(self._threads, "share", None)) is None:
            with self._sharing:
                found = self._threads.share = next(self._shares)
        return int(found)

    def slice_size(self) -> int:
        """How many messages a thread is to take: few if the webhook is slow, so that the end does not wait for many."""
        return max(2 * self.share, min(_SLICE, int(_SLICE_S / self._pace) if self._pace else 0))

    def consume(self, taken: Slice, consuming: Consuming) -> None:
        """Post its messages and more of them, while there are any that may be; outcomes are reported in order."""
        posting = _Posting(self, consuming, self._connections())
        try:
            posting.run(taken)
        except BaseException:
            self._threads.connections.close()  # with what is in flight
            del self._threads.connections
            raise
        finally:
            posting.end(taken)

    def ended(self, messages: int, seconds: float) -> None:
        """A slice of so many is done, which took so long."""
        self._pace = 0.8 * self._pace + 0.2 * seconds / messages

    def _connections(self) -> Connections[_Key]:
        found: Connections[_Key] | None = getattr(self._threads, "connections", None)
        if found is None:
            found = self._threads.connections = self.webhook.connections()
        return found


class _Part:
    """A slice in hand. ``messages``: from place ``first`` on."""

    def __init__(self, taken: Slice) -> None:
        self.taken, self.first, self.messages = taken, taken.done, taken.messages()

    def at(self, place: int) -> MessageExt:
        return self.messages[place - self.first]


#: a message in hand, and its request in flight
_Place = tuple[_Part, int]
_Key = tuple[_Part, int, "Try"]


class _Posting:
    """What one thread has in hand.

    ``todo``: messages to be posted; ``behind``: those that were told to wait, while others are to try the URL.
    """

    def __init__(self, thread: SideBySide, consuming: Consuming, connections: Connections[_Key]) -> None:
        self._thread, self._consuming, self._connections = thread, consuming, connections
        self._webhook, self._most = thread.webhook, thread.share
        self._parts: list[_Part] = []
        self._todo: deque[_Place] = deque()
        self._behind: deque[_Place] = deque()
        #: answers of the webhook when one was put behind last
        self._answered = 0
        self._took_new = True
        self._in_flight = 0
        self._since = time.perf_counter()
        #: of requests in flight; empty unless the process makes spans
        self._spans: dict[_Place, tuple[ExitStack, Any]] = {}

    def end(self, first: Slice) -> None:
        """Put all back but the first one, which its thread does."""
        for span in self._spans.values():
            _end(*span, "not known")
        for part in self._parts:
            if part.taken is not first:
                self._consuming.put_back(part.taken)

    def run(self, taken: Slice) -> None:
        self._add(taken)
        while True:
            wait_s = self._fill()
            if not self._in_flight:
                if wait_s is None or self._webhook.closed.wait(wait_s):
                    return
                continue
            if wait_s is None:
                wait_s = _SOON_S if self._in_flight < self._most else _LOOK_S
            for (part, place, sent), response in self._connections.responses(wait_s):
                self._in_flight -= 1
                self._heard(part, place, sent, response)

    def _fill(self) -> float | None:
        """Post what may be posted now. Seconds until more may be; None: when others have ended, or never."""
        while self._in_flight < self._most:
            waiting = self._todo or self._behind
            if waiting and not self._consuming.goes_on(waiting[0][0].taken, waits=not self._in_flight):
                return None
            if not self._choose():
                return None
            part, place = self._todo[0]
            try:
                request = self._thread.request(part.at(place))
            except Exception as error:  # noqa: BLE001 - it fails this message only
                self._todo.popleft()
                self._failed(part, place, error_summary(error))
                self._report(part)
                continue
            if not self._webhook.has_room(request.message_id):
                return _SOON_S
            wait_s = self._webhook.rate_wait(request.message_id)
            if wait_s:
                return wait_s
            try:
                post, sent = self._webhook.begin(request)
            except WaitError:
                self._thread.pause()
                return 0.0
            self._todo.popleft()
            if tracing.loaded():
                post = self._traced(post, part, place)
            self._connections.post(post, (part, place, sent))
            self._in_flight += 1
        return None

    def _choose(self) -> bool:
        """Have a message to be posted next at the head of ``todo``; False if there is none now."""
        if not self._todo:
            others_first = len(self._behind) <= self._most and self._webhook.answered == self._answered
            if not self._behind or others_first:
                self._take()
        if not self._todo and self._behind:
            self._todo.append(self._behind.popleft())
        return bool(self._todo)

    def _take(self) -> None:
        """More messages: in turn new ones and those to be consumed again, which get half of the places at most."""
        again = sum(part.taken.retries is not None for part in self._parts)
        room = again < max(1, self._most // 2)
        taken = self._consuming.more(only_new=not (room and self._took_new))
        if taken is None and room and not self._took_new:
            taken = self._consuming.more(only_new=False)
        if taken is not None:
            self._took_new = taken.retries is None
            self._add(taken)

    def _add(self, taken: Slice) -> None:
        part = _Part(taken)
        self._parts.append(part)
        self._todo.extend((part, place) for place in range(taken.done, len(taken)) if place not in taken.outcomes)
        self._report(part)

    def _heard(self, part: _Part, place: int, sent: Try, response: Response) -> None:
        span = self._spans.pop((part, place), None)
        try:
            self._webhook.heard(response, sent)
        except WaitError as error:
            self._thread.pause()
            if error.suspect:
                self._todo.appendleft((part, place))
            else:
                self._behind.append((part, place))
                self._answered = self._webhook.answered
        except NotConsumedError as error:
            self._failed(part, place, str(error))
        else:
            part.taken.outcomes[place] = None
        if span is not None:
            _end(*span, part.taken.outcomes.get(place, "to be sent again") or "SUCCESS")
        self._report(part)

    def _failed(self, part: _Part, place: int, reason: str) -> None:
        message = part.at(place)
        warn("the request of %r failed: %s", message, reason, message=message)
        part.taken.outcomes[place] = reason

    def _report(self, part: _Part) -> None:
        """Report outcomes in order, and put the slice back when it is done."""
        taken = part.taken
        while taken.done in taken.outcomes:
            reason = taken.outcomes.pop(taken.done)
            if reason is None:
                self._consuming.succeeded(taken, 1)
            else:
                self._consuming.failed_with(taken, 1, reason)
        if taken.done == len(taken):
            self._parts.remove(part)
            self._consuming.put_back(taken)
            now = time.perf_counter()
            self._thread.ended(len(taken), now - self._since)
            self._since = now

    def _traced(self, post: Post, part: _Part, place: int) -> Post:
        """The POST in a span of its own, below the message's, and with its context for a header."""
        spans = ExitStack()
        span, context = spans.enter_context(tracing.posting(part.at(place), self._webhook.group))
        self._spans[part, place] = spans, span
        others = [line for line in post.headers if line.partition(":")[0] not in PROPERTIES]
        return post._replace(headers=[*others, *(f"{name}: {value}" for name, value in context.items())])


def _end(spans: ExitStack, span: Any, outcome: str) -> None:
    span.set_attribute("checkback.outcome", outcome)
    spans.close()
