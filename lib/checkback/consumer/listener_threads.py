"""The listener's threads of a PushConsumer: they take messages and call the listener with them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from checkback.consumer.listener_calls import NotNowError
from checkback.consumer.process_queues import now_ms
from checkback.consumer.reader_thread import PAUSE_S
from checkback.consumer.retry_or_dead_letter import DeadLetter, after_failure

if TYPE_CHECKING:
    from checkback.consumer.group.membership import Membership
    from checkback.consumer.listener_calls import Listens
    from checkback.consumer.options import ConsumerOptions
    from checkback.consumer.process_queue import ProcessQueue, Slice
    from checkback.consumer.process_queues import ProcessQueues


class ListenerThreads:
    """Takes messages and calls the listener, in each thread; receives the outcomes (`listener_calls.Consuming`)."""

    def __init__(
        self,
        hand: ProcessQueues,
        listening: Listens,
        member: Membership,
        options: ConsumerOptions,
    ) -> None:
        self._hand = hand
        self._listening = listening
        self._member = member
        self._most, self._levels = options.most_retries, options.levels_ms
        self._turn = 0

    def run(self) -> None:
        """Until the consumer stops."""
        while (taken := self._take()) is not None:
            ends = False
            try:
                self._listening.consume(taken, self)
            except NotNowError:
                pass  # what is left of the slice is put back below
            except BaseException as error:  # noqa: BLE001 - the thread must go on; a panic of delta-rs is no Exception
                self._hand.note(error)
                ends = self._hand.stopping.wait(PAUSE_S)  # what it cannot consume it would take again at once
            self.put_back(taken)
            if ends:
                return

    def put_back(self, taken: Slice) -> None:
        """The thread has ended with it, or has put it back before, done."""
        with self._hand.changed:
            if taken.busy:
                self._hand.consumed += taken.done - taken.failed - taken.counted
                taken.counted = taken.done - taken.failed
                taken.queue.put_back(taken)
                self._hand.changed.notify_all()

    def more(self, only_new: bool) -> Slice | None:
        """More messages for a thread that has some; None if there are none now.

        ``only_new``: none to be consumed again, unless too many wait for that.
        """
        hand = self._hand
        with hand.changed:
            if hand.paused or hand.stopping.is_set() or not self._member.holds():
                return None
            return self._take_from(list(hand.queues.values()), False, only_new and not hand.only_again)

    def _take(self) -> Slice | None:
        """The next messages for a thread; None at the end."""
        hand = self._hand
        with hand.changed:
            while True:
                stopping = hand.stopping.is_set()
                holds = self._member.holds()
                if stopping and hand.paused:
                    return None
                if holds and not hand.paused:
                    taken = self._take_from(list(hand.queues.values()), stopping)
                    if taken is not None:
                        return taken
                if stopping and (holds or self._gives_up()):
                    return None
                hand.changed.wait(0.1)

    def _gives_up(self) -> bool:
        """True if a member that stops, and does not hold its queues, has nothing to wait for. Under the lock.

        It may hold them again with its next heartbeat, however late: ending now, what is to be finished would be
        consumed twice. The group tells, unless it is out of reach.
        """
        return self._hand.cut_off or all(each.idle or each.lost for each in self._hand.queues.values())

    def _take_from(self, queues: list[ProcessQueue], stopping: bool, only_new: bool = False) -> Slice | None:
        now, size, only_again = now_ms(), self._listening.slice_size(), self._hand.only_again
        for number in range(len(queues)):
            each = queues[(self._turn + number) % len(queues)]
            taken = each.take_to_finish() if stopping else each.take(size, now, only_again, only_new)
            if taken is not None:
                self._turn += number + 1
                return taken
        return None

    def goes_on(self, taken: Slice, waits: bool = True) -> bool:
        """True while its messages may be given to the listener; ``waits``: until a pause is over."""
        hand, queue = self._hand, taken.queue
        while waits and hand.paused and not (hand.stopping.is_set() or queue.leaving or queue.lost):
            time.sleep(0.05)
        if hand.paused or queue.lost or not self._member.holds():
            return False
        if queue.leaving or hand.stopping.is_set():
            with hand.changed:
                return queue.must_finish(taken)
        return True

    def succeeded(self, taken: Slice, count: int) -> None:
        """The next ``count`` messages are consumed."""
        if taken.retries is not None or taken.queue.retries:
            with self._hand.changed:
                for place in range(taken.done, taken.done + count):
                    taken.queue.retries.pop(taken.key(place), None)
        taken.done += count

    def failed_with(self, taken: Slice, count: int, reason: str) -> bool:
        """The next ``count`` messages are not consumed; False if they hold up their queue."""
        hand, queue, now, first = self._hand, taken.queue, now_ms(), taken.key(taken.done)
        with hand.changed:
            hand.failed += count
            hand.last_error = reason
            before = queue.retries.get(first)
            # In order, a call of several is tried again one by one before any of them is given up.
            most = max(1, self._most) if hand.orderly and count > 1 else self._most
            for place in range(taken.done, taken.done + count):
                key = taken.key(place)
                known = queue.retries.pop(key, None)
                outcome = after_failure(key, known.times if known else 0, reason, now, most, self._levels)
                if isinstance(outcome, DeadLetter):
                    queue.give_up(outcome)
                    hand.dead += 1
                else:
                    queue.retries[key] = outcome
            # A retry of a message that the position has passed is out of order already, and holds up nothing.
            if hand.orderly and taken.retries is None and first in queue.retries:
                queue.hold(first, now if before is None or before.held_since is None else before.held_since)
                return False
            taken.done += count
            taken.failed += count
            return True

    def lose(self, queue: ProcessQueue, reason: str) -> None:
        """Discard the queue's in-flight messages; resume from the stored position if the queue is still owned."""
        self._hand.last_error = reason
        with self._hand.changed:
            self._hand.drop(queue)
