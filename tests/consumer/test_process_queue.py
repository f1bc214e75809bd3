"""ProcessQueue under random threads: the position is never past a message that is not consumed, and nothing is lost."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from checkback.consumer.batch_listing import ListedBatch
from checkback.consumer.group.group_state import MessageQueue, QueueState
from checkback.consumer.message_rows import MessageKeys, MessageRows
from checkback.consumer.position import BatchKey, MessageKey, Position
from checkback.consumer.process_queue import ProcessQueue, Run, Slice
from checkback.consumer.retry_or_dead_letter import Retry

if TYPE_CHECKING:
    from collections.abc import Sequence

QUEUE = MessageQueue("pay", 0)
NOW = 1000


def rows(keys: Sequence[tuple[int, int]]) -> MessageRows:
    """(batch, offset) of messages in half queue 0."""
    batch, offset = (np.array([key[place] for key in keys], np.int64) for place in (0, 1))
    zero = np.zeros(len(keys), np.int64)
    return MessageRows(MessageKeys(batch, zero, zero, offset), pa.table({"offset": offset}))


def process_queue(position: Position | None = None, ordered: bool = False) -> ProcessQueue:
    return ProcessQueue.of(QUEUE, QueueState(position or Position()), ordered, 1)


def all_messages(batches: Sequence[BatchKey], sizes: Sequence[int]) -> list[tuple[int, MessageKey]]:
    return [
        (at, MessageKey(batch, 0, offset))
        for at, (batch, size) in enumerate(zip(batches, sizes, strict=True))
        for offset in range(size)
    ]


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32),
)
def test_the_position_is_behind_what_is_consumed(
    sizes: list[int], per_run: int, threads: int, ordered: bool, seed: int
) -> None:
    """Read run by run, consumed by several threads that end in any order; rewound now and then."""
    choose = Random(seed).random
    batches = [BatchKey("a" if at < 3 else "b", at if at < 3 else at - 3, at) for at in range(len(sizes))]
    everything = all_messages(batches, sizes)
    queue = process_queue(ordered=ordered)
    consumed: set[MessageKey] = set()
    busy: list[Slice] = []
    for _ in range(400):
        event = choose()
        if event < 0.3:
            read_next(queue, batches, everything, per_run, choose() < 0.3)
        elif event < 0.6 and len(busy) < threads:
            taken = queue.take(1 + int(choose() * 3), NOW)
            busy += [taken] if taken is not None else []
        elif event < 0.65:
            queue.rewind()
        elif busy:
            taken = busy[int(choose() * len(busy))]
            if taken.done < len(taken):
                key = taken.key(taken.done)
                assert key not in consumed
                consumed.add(key)
                taken.done += 1
            if taken.done == len(taken) or choose() < 0.2:
                busy.remove(taken)
                queue.put_back(taken)
        queue.advance()
        passed = {message for _, message in everything if queue.consumed.has(message)}
        assert passed <= consumed
    while len(consumed) < len(everything):
        taken = busy.pop() if busy else queue.take(10, NOW)
        if taken is None:
            read_next(queue, batches, everything, per_run, False)
            continue
        for place in range(taken.done, len(taken)):
            consumed.add(taken.key(place))
        taken.done = len(taken)
        queue.put_back(taken)
    read_next(queue, batches, everything, len(batches), False)
    assert all(queue.consumed.has(message) for _, message in everything)


def read_next(
    queue: ProcessQueue, batches: list[BatchKey], everything: list[tuple[int, MessageKey]], per_run: int, cut: bool
) -> None:
    """As the reader does: the batches that are not fetched, from the first on."""
    first = next((at for at, batch in enumerate(batches) if not queue.fetched.has_batch(batch)), len(batches))
    mine = batches[first : first + per_run]
    if not mine:
        return
    run = Run([ListedBatch(batch, batch.batch_time, None) for batch in mine])
    fetched = queue.fetched
    queue.begin(run)
    keys = [
        (at - first, message.half_queue_offset)
        for at, message in everything
        if first <= at < first + len(mine) and not fetched.has(message)
    ]
    half = len(keys) // 2
    for part in (keys[:half], keys[half:]):
        if part:
            queue.add(rows(part))
        if cut:
            queue.rewind()
    queue.end(run)


def test_what_has_something_consumed_behind_it_is_finished_before_it_is_given_back() -> None:
    queue, run = process_queue(), Run([ListedBatch(BatchKey("a", 0, 0), 0, None)])
    queue.begin(run)
    queue.add(rows([(0, offset) for offset in range(6)]))
    queue.end(run)
    first, second, third = [taken for _ in range(3) if (taken := queue.take(2, NOW)) is not None]
    second.done = 1
    queue.leaving = True
    assert [queue.must_finish(each) for each in (first, second, third)] == [True, True, False]
    queue.put_back(third)
    assert [queue.must_finish(each) for each in (first, second)] == [True, False]
    queue.put_back(second)
    queue.put_back(first)
    idle = [queue.idle]
    assert queue.take(2, NOW) is first
    first.done = 2
    queue.put_back(first)
    idle.append(queue.idle)
    assert idle == [False, True]
    assert queue.take(2, NOW) is None
    assert queue.consumed.part == MessageKey(BatchKey("a", 0, 0), 0, 2)


def test_retries_and_new_messages_take_turns() -> None:
    """Neither holds up the other; a caller may want new ones only."""
    queue, run = process_queue(), Run([ListedBatch(BatchKey("a", 0, 0), 0, None)])
    queue.begin(run)
    queue.add(rows([(0, offset) for offset in range(10, 16)]))
    queue.end(run)
    for offset in range(4):
        message = MessageKey(BatchKey("a", 0, 0), 0, offset)
        queue.retry(rows([(0, offset)]), [Retry(message, 1, 0, "failed")])

    def offsets(only_new: bool = False) -> list[int]:
        taken = queue.take(1, NOW, only_new=only_new)
        return [] if taken is None else [taken.key(0).half_queue_offset]

    assert [*offsets(), *offsets(), *offsets(), *offsets()] == [0, 10, 1, 11]
    assert [*offsets(True), *offsets(True), *offsets()] == [12, 13, 2]
    queue.ordered = True
    assert offsets() == []  # its messages are under way
