"""Reader while the group's thread gives a queue back: nothing that was read and dropped counts as consumed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.consumer.batch_log import BatchLog
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.position import Position
from checkback.consumer.process_queue import ProcessQueue
from checkback.consumer.process_queues import ProcessQueues
from checkback.consumer.reading import Reader
from checkback.consumer.topic_reader import TopicReader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from checkback.consumer.batch_listing import ListedBatch
    from consumer.published import Published


class InterruptedReader(TopicReader):
    """What happens between a look at the queues and the reading of their batches; nothing after the last."""

    meanwhile: Sequence[Callable[[], object]] = ()

    def run(self, batches: Sequence[ListedBatch]) -> int:
        count = super().run(batches)
        now, *self.meanwhile = self.meanwhile
        now()
        return count


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
    Reader(hand, batches, {"pay": topic}, 0.0).run()
    with hand.changed:
        hand.queues[mine].advance()
    assert hand.queues[mine].state(None).position == Position()
