"""Caller's threads while a member that stops could not beat: what it has begun is finished if it still can be."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from checkback.consumer import ConsumeResult
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.calling import Caller
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.listening import Listening
from checkback.consumer.options import ConsumerOptions
from checkback.consumer.position import Position
from checkback.consumer.process_queue import ProcessQueue, Run
from checkback.consumer.process_queues import ProcessQueues
from checkback.consumer.topic_reader import TopicReader
from consumer.heard import PATIENCE_S
from consumer.test_membership import Clock, idle, member

if TYPE_CHECKING:
    from checkback.consumer import MessageExt
    from consumer.published import Published

QUEUE = MessageQueue("pay", 0)
OPTIONS = ConsumerOptions(2, None, False, 3, None, 1.0, 10.0, 1.0)


def with_two_runs(lake: Published) -> ProcessQueue:
    """A queue with the messages 0 and 1 of one run, and 2 of the next: two slices."""
    lake.publish({"pay": [lake.messages(2)]})
    lake.publish({"pay": [lake.messages(1)]})
    log = BatchLog(lake.tables)
    log.refresh()
    topic, queue = TopicReader(lake.tables, "pay", log), ProcessQueue.of(QUEUE, QueueState(Position()), False, 1)
    for batches in (log.batches[:2], log.batches[2:]):
        run = Run([batch.key for batch in batches])
        queue.begin(run)
        for rows in topic.read(batches, {0: queue.fetched}):
            queue.add(rows)
        queue.end(run)
    return queue


@pytest.mark.parametrize(("late", "finished"), [(9.0, [0, 1, 2]), (10.0, [0, 2])])
def test_a_member_that_stops_and_could_not_beat(lake: Published, late: float, finished: list[int]) -> None:
    """If its next heartbeat comes before another member may take its queues, 1 is finished: else 2 is repeated."""
    clock, hand, both = Clock(), ProcessQueues("g", orderly=False), threading.Barrier(2)
    one, heard = member(lake, "a", clock), list[int]()
    hand.queues = {QUEUE: with_two_runs(lake)}

    def listener(message: MessageExt) -> ConsumeResult:
        if message.half_queue_offset != 1:
            both.wait(PATIENCE_S)
        if message.half_queue_offset == 0:
            hand.stopping.set()
            clock.now += late
        if message.half_queue_offset != 1:
            both.wait(PATIENCE_S)
        heard.append(message.half_queue_offset)
        return ConsumeResult.SUCCESS

    caller = Caller(hand, Listening(listener, None), one, OPTIONS)
    threads = [threading.Thread(target=caller.run) for _ in range(2)]
    for thread in threads:
        thread.start()
    with hand.changed:
        assert hand.changed.wait_for(lambda: hand.queues[QUEUE].at_rest and len(heard) == 2, PATIENCE_S)
    if not one.may_be_replaced():
        assert idle(one)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(heard) == finished
    assert hand.queues[QUEUE].idle == (1 in heard)
