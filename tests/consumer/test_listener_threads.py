"""The listener's threads while a member stops, pauses, or gives queues back: begun work is finished if possible."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from checkback.consumer import ConsumeResult
from checkback.consumer.batch_log import BatchLog
from checkback.consumer.coordinator import Coordinator
from checkback.consumer.dead_letters import DeadLetters
from checkback.consumer.group.group_state import GroupState, MessageQueue, QueueState
from checkback.consumer.group.group_table import GroupTable
from checkback.consumer.group.membership import Membership
from checkback.consumer.listener_calls import Listening
from checkback.consumer.listener_threads import ListenerThreads
from checkback.consumer.options import ConsumerOptions
from checkback.consumer.position import Position
from checkback.consumer.process_queue import ProcessQueue, Run
from checkback.consumer.process_queues import ProcessQueues
from checkback.consumer.topic_reader import TopicReader
from consumer.heard import PATIENCE_S, until
from consumer.test_membership import Clock, at_start, idle, member

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.consumer import MessageExt
    from consumer.published import Published

QUEUE = MessageQueue("pay", 0)
OPTIONS = ConsumerOptions(2, 32, False, 3, None, *(timedelta(seconds=seconds) for seconds in (1, 10, 1)))


def with_two_runs(lake: Published) -> ProcessQueue:
    """A queue with the messages 0 and 1 of one run, and 2 of the next: two slices."""
    lake.publish({"pay": [lake.messages(2)]})
    lake.publish({"pay": [lake.messages(1)]})
    log = BatchLog(lake.tables)
    log.refresh()
    topic, queue = TopicReader(lake.tables, "pay", log), ProcessQueue.of(QUEUE, QueueState(Position()), False, 1)
    for batches in (log.batches[:2], log.batches[2:]):
        run = Run(batches)
        queue.begin(run)
        for rows in topic.read(batches, {0: queue.fetched}):
            queue.add(rows)
        queue.end(run)
    return queue


def coordinator_of(lake: Published, hand: ProcessQueues, one: Membership) -> Coordinator:
    return Coordinator(hand, one, DeadLetters(lake.tables, "g"), {}, "id", None, OPTIONS.levels_ms)


def running(*targets: Callable[[], None]) -> list[threading.Thread]:
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads


class InterruptedTable(GroupTable):
    """Something happens before its next commits."""

    before: Callable[[], object] = list

    def update(self, change: Callable[[GroupState], GroupState | None]) -> GroupState | None:
        self.before()
        return super().update(change)


class PanicException(BaseException):
    """As a panic of delta-rs, which is no Exception."""


@pytest.mark.parametrize(
    ("late", "then", "finished"),
    [
        (9.0, "it beats", [0, 1, 2]),
        (11.0, "it beats", [0, 1, 2]),
        (11.0, "it was taken for dead", [0, 2]),
        (11.0, "the store is away", [0, 2]),
        (11.0, "the store is slow", [0, 2]),
    ],
)
def test_a_member_that_stops_and_could_not_beat(lake: Published, late: float, then: str, finished: list[int]) -> None:
    """If it is still a member with its next heartbeat, however late, 1 is finished: else 2 is repeated."""
    clock, hand, both = Clock(), ProcessQueues("g", orderly=False), threading.Barrier(2)
    table, heard = InterruptedTable(lake.tables, "g"), list[int]()
    one = Membership(table, "a", ["pay"], 10.0, at_start, clock)
    one.join()
    queue = hand.queues[QUEUE] = with_two_runs(lake)

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

    listener_threads, coordinator = (
        ListenerThreads(hand, Listening(listener, None), one, OPTIONS),
        coordinator_of(lake, hand, one),
    )
    threads = running(listener_threads.run, listener_threads.run)
    with hand.changed:
        assert hand.changed.wait_for(lambda: queue.at_rest and len(heard) == 2, PATIENCE_S)
    if then == "it was taken for dead":
        watch = Clock()
        two = member(lake, "b", watch)
        idle(two)
        watch.now += 10.1
        idle(two)
    elif then == "the store is away":
        os.rename(lake.tables.location("consumer_groups/g"), f"{lake.tables.root}/aside")
    elif then == "the store is slow":
        table.before = lambda: setattr(clock, "now", clock.now + 9.0)
    [group] = running(lambda: coordinator.run(0.01, 1.0))
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
    assert sorted(heard) == finished
    assert (then == "the store is slow") == ("a heartbeat took longer" in str(hand.last_error))
    assert queue.idle == (1 in heard)
    coordinator.ended.set()
    group.join(PATIENCE_S)


@pytest.mark.parametrize("lasting", [False, True])
def test_a_panic_in_the_group_s_thread(lake: Published, lasting: bool) -> None:
    """It beats again after one. A member that cannot beat says so, holds its queues no more, and ends when it is to."""
    clock, hand, table, tries = Clock(), ProcessQueues("g", orderly=False), InterruptedTable(lake.tables, "g"), [0]
    one = Membership(table, "a", ["pay"], 10.0, at_start, clock)
    one.join()

    def panic() -> None:
        tries[0] += 1
        if lasting or tries[0] == 1:
            raise PanicException

    table.before = panic
    clock.now += 9.0
    coordinator = coordinator_of(lake, hand, one)
    [group] = running(lambda: coordinator.run(0.01, 1.0))
    until(lambda: tries[0] > 1)
    until(lambda: hand.cut_off == lasting)
    assert one.holds() != lasting
    assert (hand.last_error or "").startswith("PanicException")
    coordinator.ended.set()
    group.join(PATIENCE_S)
    assert not group.is_alive()
    assert list(GroupTable(lake.tables, "g").state.members) == (["a"] if lasting else [])


def test_a_call_that_returns_after_the_member_has_left_is_the_last(lake: Published) -> None:
    """Though 1 is before 2, which was consumed: both are the next owner's."""
    hand, heard, go_on = ProcessQueues("g", orderly=False), list[int](), threading.Event()
    one, queue = member(lake, "a", Clock()), with_two_runs(lake)
    hand.queues[QUEUE] = queue

    def listener(message: MessageExt) -> ConsumeResult:
        if message.half_queue_offset == 0:
            assert go_on.wait(PATIENCE_S)
        heard.append(message.half_queue_offset)
        return ConsumeResult.SUCCESS

    listener_threads = ListenerThreads(hand, Listening(listener, None), one, OPTIONS)
    threads = running(listener_threads.run, listener_threads.run)
    with hand.changed:
        assert hand.changed.wait_for(lambda: heard == [2], PATIENCE_S)
    hand.stopping.set()
    coordinator_of(lake, hand, one).leave()
    go_on.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert heard == [2, 0]


def test_a_paused_member_that_stops_calls_the_listener_no_more(lake: Published) -> None:
    """What is to be finished comes again, for the next owner, with what was consumed behind it."""
    hand, heard = ProcessQueues("g", orderly=False), list[int]()
    one = Membership(GroupTable(lake.tables, "g"), "b", ["pay"], 10.0, at_start, Clock())
    one.join()
    queue = hand.queues[QUEUE] = with_two_runs(lake)
    first, second = queue.take(2, 0), queue.take(2, 0)
    assert first is not None
    assert second is not None
    second.done = 1
    queue.put_back(second)

    def listener(message: MessageExt) -> ConsumeResult:
        heard.append(message.half_queue_offset)
        return ConsumeResult.SUCCESS

    listener_threads = ListenerThreads(hand, Listening(listener, None), one, OPTIONS)
    hand.paused = True
    hand.stopping.set()
    assert not listener_threads.goes_on(first)  # one whose call is over goes on with none
    queue.put_back(first)
    assert queue.must_finish(first)
    listener_threads.run()
    coordinator_of(lake, hand, one).leave()
    assert heard == []
    assert one.state.queues[QUEUE].position == Position()


class Interrupted(Membership):
    """Something happens before its next step is written."""

    before: Callable[[], None]

    def step(self, *arguments: Any, **named: Any) -> bool:
        self.before()
        return super().step(*arguments, **named)


@pytest.mark.parametrize("stops", [False, True])
def test_a_paused_member_gives_a_queue_back(lake: Published, stops: bool) -> None:
    """What it has not finished is the next owner's, also if it goes on, or stops, before that is written."""
    hand, heard = ProcessQueues("g", orderly=False), list[int]()
    one = Interrupted(GroupTable(lake.tables, "g"), "b", ["pay"], 10.0, at_start, Clock())
    one.join()
    member(lake, "a", Clock())
    queue = hand.queues[QUEUE] = with_two_runs(lake)
    first, second = queue.take(2, 0), queue.take(2, 0)
    assert first is not None
    assert second is not None
    first.done = second.done = 1
    queue.put_back(first)
    queue.put_back(second)
    hand.paused = True

    def listener(message: MessageExt) -> ConsumeResult:
        heard.append(message.half_queue_offset)
        return ConsumeResult.SUCCESS

    def goes_on() -> None:
        hand.paused = False
        if stops:
            hand.stopping.set()
            ListenerThreads(hand, Listening(listener, None), one, OPTIONS).run()
        else:
            assert queue.take(2, 0) is None

    coordinator = coordinator_of(lake, hand, one)
    one.before = lambda: None
    coordinator.step(True)
    assert not queue.leaving  # it learns of the other member
    one.before = goes_on
    coordinator.step(True)
    assert heard == []
    assert QUEUE not in hand.queues
    assert one.state.queues[QUEUE].owner is None
