"""Reader while the group's thread gives a queue back: nothing that was read and dropped counts as consumed."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.position import MessageKey, Position
from checkback.consumer.process_queue import ProcessQueue
from checkback.consumer.process_queues import ProcessQueues
from checkback.consumer.reader_thread import ReaderThread
from checkback.consumer.retry_or_dead_letter import Retry
from checkback.consumer.topic_reader import TopicReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from checkback.consumer.batch_listing import ListedBatch
    from checkback.consumer.message_rows import FetchedMessages, MessageRows
    from consumer.published import Published


class InterruptedReader(TopicReader):
    """What happens between a look at the queues and the reading of their batches; nothing after the last."""

    meanwhile: Sequence[Callable[[], object]] = ()

    def run(self, batches: Sequence[ListedBatch]) -> int:
        count = super().run(batches)
        now, *self.meanwhile = self.meanwhile
        now()
        return count


class PanicError(BaseException):
    """As a panic of delta-rs, which is no Exception."""


class PanickingReader(TopicReader):
    """Its first read of each kind panics; ``done`` is called once both have succeeded."""

    tries: tuple[str, ...] = ()
    done: Callable[[], None]

    def read(self, batches: Sequence[ListedBatch], wanted: Mapping[int, Position]) -> Iterator[MessageRows]:
        self._panic("read")
        yield from super().read(batches, wanted)
        self._end()

    def fetch(self, messages: Collection[MessageKey]) -> Iterator[FetchedMessages]:
        self._panic("fetch")
        yield from super().fetch(messages)
        self._end()

    def _panic(self, what: str) -> None:
        self.tries = (*self.tries, what)
        if self.tries.count(what) == 1:
            raise PanicError

    def _end(self) -> None:
        if sorted(self.tries) == ["fetch", "fetch", "read", "read"]:
            self.done()


def test_reading_goes_on_after_what_is_no_exception(lake: Published) -> None:
    """Else the member would beat on, and its queues would be read by nobody."""
    mine = MessageQueue("pay", 0)
    lake.publish({"pay": [lake.messages(1)]})
    consumed = Position({"a": 0}, None, lake.time, {"a": lake.time})
    lake.publish({"pay": [lake.messages(5)]})
    batches = BatchLog(lake.tables)
    batches.refresh()
    topic = PanickingReader(lake.tables, "pay", batches)
    hand = ProcessQueues("g", orderly=False)
    retry = Retry(MessageKey(batches.batches[0].key, 0, 0), 1, 0, "")
    hand.queues = {mine: ProcessQueue.of(mine, QueueState(consumed, (retry,)), False, 1)}
    topic.done = hand.stopping.set
    reader = threading.Thread(target=ReaderThread(hand, batches, {"pay": topic}, 0.01).run)
    reader.start()
    reader.join(20)
    stopped = hand.stopping.is_set()
    hand.stopping.set()
    assert stopped
    assert (hand.queues[mine].count, hand.unreadable) == (5 + 1, set())
    assert (hand.last_error or "").startswith("PanicError")


def test_a_queue_given_back_before_a_run_keeps_its_position_before_what_it_drops(lake: Published) -> None:
    """The run has nothing for it: its end would be the position of a queue that has nothing in hand."""
    mine = MessageQueue("pay", 0)
    lake.publish({"pay": [lake.messages(5)]})
    batches = BatchLog(lake.tables)
    topic = InterruptedReader(lake.tables, "pay", batches)
    hand = ProcessQueues("g", orderly=False)
    hand.queues = {mine: ProcessQueue.of(mine, QueueState(Position()), False, 1)}

    def publish() -> None:
        lake.publish({"pay": [lake.messages(3, (1,))]})

    def give_back() -> None:
        assert hand.queues[mine].count == 5
        hand.queues[mine].leaving = True
        hand.queues[mine].rewind()
        hand.stopping.set()

    topic.meanwhile = [publish, give_back]
    ReaderThread(hand, batches, {"pay": topic}, 0.0).run()
    with hand.changed:
        hand.queues[mine].advance()
    assert hand.queues[mine].state(None).position == Position()
