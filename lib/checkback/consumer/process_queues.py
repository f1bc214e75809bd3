"""The queues assigned to a member: shared by its threads, under one lock."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from checkback.errors import CheckbackError, error_summary, printable
from checkback.messages.trace_context import in_trace
from checkback.storage.files.lease import boot_time

if TYPE_CHECKING:
    from checkback.consumer.group.group_state import MessageQueue
    from checkback.consumer.message import MessageExt
    from checkback.consumer.process_queue import ProcessQueue

log = logging.getLogger("checkback.consumer")
#: messages of a queue, and bytes of all, in hand beyond which no more are read
MOST_MESSAGES, MOST_BYTES = 20_000, 128 << 20
#: retries in hand beyond which only they are read and consumed
_MOST_RETRIES = 10_000


class ProcessQueues:
    """All queues, by name; ``changed`` is their lock, notified when there is something to do.

    ``last_error``: of the listener or the store, without what it may quote; None = none. ``consumed``, ``failed``,
    ``dead``: messages consumed, failed tries, messages given up.
    """

    def __init__(self, group: str, orderly: bool) -> None:
        self.group = group
        self.orderly = orderly
        self.changed = threading.Condition()
        self.queues: dict[MessageQueue, ProcessQueue] = {}
        #: topics whose retries could not be read
        self.unreadable: set[str] = set()
        #: dropped while messages of them were being consumed
        self.dropped: list[ProcessQueue] = []
        self.stopping = threading.Event()
        self.paused = False
        #: the member did not hold its queues after its last step: the group is out of reach, or too slow
        self.cut_off = False
        self.last_error: str | None = None
        self.consumed, self.failed, self.dead = 0, 0, 0

    @property
    def full(self) -> bool:
        """True if no more is to be read. Under the lock."""
        return sum(each.size + each.retry_size for each in self.queues.values()) > MOST_BYTES

    @property
    def only_again(self) -> bool:
        """True if too many messages wait for their retry to consume others. Under the lock.

        That is, for their retry alone: not for the position, nor for their topic.
        """
        topics = self.unreadable
        waiting = [len(each.retries) - each.ahead for queue, each in self.queues.items() if queue.topic not in topics]
        return sum(waiting) >= _MOST_RETRIES

    def drop(self, queue: ProcessQueue) -> None:
        """Invalidate the queue's in-flight messages. Under the lock."""
        queue.lost = True
        self.dropped = [each for each in (*self.dropped, queue) if not each.at_rest]
        if self.queues.get(queue.queue) is queue:
            del self.queues[queue.queue]

    def is_busy(self, queue: MessageQueue) -> bool:
        """True if a message of it, taken before it was dropped, is still being consumed. Under the lock."""
        return any(each.queue == queue and not each.at_rest for each in self.dropped)

    def note(self, error: BaseException) -> None:
        """Keep the error, and log it."""
        self.last_error = printable(str(error)) if isinstance(error, CheckbackError) else error_summary(error)
        warn("group %s: %s", self.group, self.last_error)


def warn(text: str, *arguments: object, message: MessageExt | None = None) -> None:
    """Log it; ``message``: about which it is. A filter or handler of the service's that fails ends no thread here."""
    with suppress(Exception):
        log.warning(text, *arguments, extra=None if message is None else in_trace(message.properties))


#: The wall clock at the process's start; from then on the time since boot counts: a clock that is set back holds up no
#: retry, nor does one that is set forward hurry it.
_BEGAN = time.time() - boot_time()


def now_ms() -> int:
    """The time, ms since 1970."""
    return round(1000 * (_BEGAN + boot_time()))
