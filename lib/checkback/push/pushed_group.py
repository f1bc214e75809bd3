"""A consumer group whose listener posts its messages."""

from __future__ import annotations

import hashlib
import itertools
from datetime import timedelta
from typing import TYPE_CHECKING

from checkback import tracing
from checkback.consumer.consume_from_where import parse_start
from checkback.consumer.listener_calls import Listening, NotNowError
from checkback.consumer.message import ConsumeResult
from checkback.consumer.push_consumer import PushConsumer
from checkback.filter import MessageSelector
from checkback.messages.trace_context import trace_of
from checkback.push.cloud_event import batched, event_of, structured
from checkback.push.side_by_side import SideBySide, threads_of
from checkback.push.webhook import Request, WaitError, Webhook

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from checkback.consumer.message import MessageExt
    from checkback.settings import Settings
    from checkback.settings.model import Push

#: bodies of a batch
_BATCH_BYTES = 1 << 20
#: beyond a request's own timeout, for `close`
_CLOSE = timedelta(seconds=10)


class PushedGroup:
    """A consumer group by its settings: `push.GROUP`. Call `resume` every moment: nothing else ends a pause.

    Raises SettingsError.
    """

    def __init__(self, group: str, settings: Settings) -> None:
        push = settings.push[group]
        self._push = push
        self.webhook = Webhook(group, push, settings.check)
        # In order, and in batches, a thread has one request in flight.
        side_by_side = push.batch is None and not push.orderly
        threads = threads_of(push.concurrency) if side_by_side else push.concurrency
        self.consumer = PushConsumer(
            group,
            settings,
            self._one if push.batch is None else None,
            listener_batch=None if push.batch is None else self._several,
            max_batch_size=push.batch or 1,
            threads=threads,
            orderly=push.orderly,
            # None is "first", without a warning that the group is somewhere else by now.
            start_from=None if push.start_from == "first" else parse_start(push.start_from, f"push.{group}.start_from"),
            max_reconsume_times=push.max_retries,
        )
        if side_by_side:
            self.consumer.listening = SideBySide(self.webhook, self._request, push.concurrency, self.consumer.pause)
        elif push.batch is not None:
            self.consumer.listening = Listening(self._several, push.batch, within)
        self.consumer.subscribe(push.topic, _selector(push))

    def start(self) -> None:
        """Join the group and begin to post. Raises SettingsError, StorageError."""
        self.consumer.start()

    def resume(self) -> None:
        """Go on if the URL may be tried again."""
        if self.webhook.ready:
            self.consumer.resume()

    def close(self) -> None:
        """Finish the requests in flight, keep the positions, leave the group."""
        self.webhook.close()
        self.consumer.close(self._push.timeout + _CLOSE)

    def _request(self, message: MessageExt, context: Mapping[str, str] | None = None) -> Request:
        """``context``: of its span; None or empty: the message's."""
        event = event_of(message, self._push.content_type)
        lines, body = structured(event) if self._push.mode == "structured" else (event.lines(), event.data)
        trace = [f"{name}: {value}" for name, value in (context or trace_of(message.properties)).items()]
        return Request([*lines, *trace], body, f"msg_{mark(message)}")

    def _one(self, message: MessageExt) -> ConsumeResult:
        return self._posted(self._request(message, tracing.current() if tracing.loaded() else None))

    def _several(self, messages: list[MessageExt]) -> ConsumeResult:
        lines, body = batched([event_of(message, self._push.content_type) for message in messages])
        # A receiver may take the id for the content's: another batch that begins alike has another.
        digest = hashlib.sha256(" ".join(map(mark, messages)).encode())
        return self._posted(Request(lines, body, f"batch_{digest.hexdigest()[:32]}"))

    def _posted(self, request: Request) -> ConsumeResult:
        """Post it; the first one that is told to wait is also the next one: put back, others would come before it."""
        try:
            try:
                self.webhook.post(request)
            except WaitError as error:
                self.consumer.pause()
                if not error.suspect or self.webhook.is_closed_before_ready():
                    raise
                self.webhook.post(request)
        except WaitError:
            self.consumer.pause()
            raise NotNowError from None
        return ConsumeResult.SUCCESS


def within(messages: Sequence[MessageExt]) -> int:
    """How many messages, from the first on, have bodies within _BATCH_BYTES together; 1 if that one has more."""
    sizes = itertools.accumulate(len(message.body) for message in messages)
    return max(1, sum(size <= _BATCH_BYTES for size in sizes))


def mark(message: MessageExt) -> str:
    """What tells a message from all others, also of another lake, or before a restore.

    Rows of an outbox that were born at the same time may land in each other's places after a restore.
    """
    digest = hashlib.sha256((message.transaction_id or "").encode()).hexdigest()[:16]
    return f"{message.half_queue_id}_{message.half_queue_offset}_{message.born_timestamp}_{digest}"


def _selector(push: Push) -> MessageSelector:
    """Raises SelectorError."""
    return MessageSelector.by_tag(push.tag) if push.sql is None else MessageSelector.by_sql(push.sql)
