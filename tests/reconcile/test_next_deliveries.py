"""A segment's next deliveries: what is delivered by them is what its block says, and the block is left alone."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkback.errors import StateError
from checkback.reconcile.records.actions import SEGMENT, Actions
from checkback.reconcile.records.segment_records import Action
from checkback.reconcile.segment import Segment, decide
from checkback.reconcile.state import next_deliveries
from checkback.reconcile.state.next_deliveries import NextDeliveries, load
from checkback.reconcile.state.partition_batch import PartitionBatch, delivery_timer
from checkback.reconcile.state.processor import NEXT_NAME, STATE_NAME, SegmentProcessor
from checkback.reconcile.state.state_codec import Timers, encode
from reconcile.segments import RULES, SIZE, cancel, events, half, message
from simulator.store import BatchTime, Handle, State

if TYPE_CHECKING:
    from collections.abc import Callable

    from checkback.reconcile.records.segment_records import Records

KEY, SOON = "0/0", 8
#: a millisecond for each: a timer may be up to 7 ms later
_TIMES = [1000 * number for number in range(1, 6)]


class Query:
    """The segment's processor, a batch at a time as Spark runs it: rows first, then timers in their order."""

    def __init__(self) -> None:
        self.state = State()
        self.read: dict[str, int] = {}
        self.told: Records = np.empty(0, SEGMENT)
        self._before = 0

    def at(self, now: int, *rows: tuple[Any, ...]) -> list[tuple[str, int]]:
        """(action, offset) of what a batch at this time does."""
        handle, processor = Handle(self.state), SegmentProcessor(RULES, SIZE)
        processor.init(handle)  # type: ignore[arg-type]
        handle.key = KEY
        frames: list[Any] = []
        if rows:
            block = pd.DataFrame({"events": [events(*rows).tobytes()]})
            frames += processor.handleInputRows((KEY,), iter([block]), BatchTime(now))  # type: ignore[arg-type]
        for timer in sorted(handle.timers):
            if self._before < timer[0] <= now and timer in handle.timers:
                fired: Any = BatchTime(now, timer[0])
                frames += processor.handleExpiredTimer((KEY,), fired, fired)
                handle.timers.discard(timer)
        self.state, self.read, self._before = handle.state(), dict(handle.read), now
        blocks = pa.array([block for frame in frames for block in frame["block"]], pa.binary())
        actions, self.told = Actions.of(pa.table({"block": blocks}))
        done = zip(actions.records["action"].tolist(), actions.records["offset"].tolist(), strict=True)
        return sorted((Action(action).name, offset) for action, offset in done)

    @property
    def scheduled(self) -> list[int]:
        """The offsets that are scheduled, as a reader of the state finds them."""
        block = self.state.blocks.get(KEY)
        if block is None:
            return []
        segment, _ = load(block, lambda: self.state.next_deliveries.get(KEY), 0, SIZE)
        return [int(offset) for offset in segment.scheduled["offset"]]


def _segment(*dues: int) -> Segment:
    """Messages that are scheduled for these times, at the offsets 0, 1, ..."""
    rows = [message(offset, at=due, tx=offset + 1) for offset, due in enumerate(dues)]
    return decide(Segment.empty(0, SIZE), events(*rows), 1, RULES)[0]


def _offsets(records: Records) -> list[int]:
    return [int(offset) for offset in records["offset"]]


def test_block_is_neither_read_nor_written_for_a_delivery() -> None:
    query = Query()
    query.at(1, half(9, immunity=900), *(message(offset, at=at) for offset, at in enumerate((300, 100, 200))))
    block = query.state.blocks[KEY]
    assert query.at(delivery_timer(100)) == [("DELIVER", 1)]
    assert query.read == {NEXT_NAME: 1}
    assert query.state.blocks[KEY] is block
    assert query.scheduled == [0, 2]
    (told,) = query.told
    assert (told["pending"], told["scheduled"], told["oldest"]) == (1, 2, 0)
    assert told["wake"] == delivery_timer(200)
    assert query.at(delivery_timer(100) + SOON) == []
    assert query.at(delivery_timer(200)) == [("DELIVER", 2)]
    assert query.read == {NEXT_NAME: 1}
    assert query.at(delivery_timer(300)) == [("DELIVER", 0)]
    assert query.read[STATE_NAME] == 1  # nothing is left: what is the segment's next timer?
    assert query.state.next_deliveries == {}


def test_block_fills_the_next_deliveries_up() -> None:
    """When they have run out, or what is due may be in the block only."""
    dues = [delivery_timer(100 * number) for number in range(1, 8)]
    with patch.object(next_deliveries, "MOST", 3):
        query = Query()
        query.at(1, *(message(offset, at=due) for offset, due in enumerate(dues)))
        reads = []
        for offset, due in enumerate(dues[:5]):
            assert query.at(due) == [("DELIVER", offset)]
            reads.append(query.read.get(STATE_NAME, 0))
        assert reads == [0, 0, 1, 0, 0]
        assert query.scheduled == [5, 6]
        query = Query()
        query.at(1, *(message(offset, at=due) for offset, due in enumerate(dues)))
        assert query.at(dues[4]) == [("DELIVER", offset) for offset in range(5)]
        assert query.read[STATE_NAME] == 1


def test_whoever_reads_the_block_knows_what_was_delivered() -> None:
    """An operator cancels what is delivered, which is too late, and what is not; a check comes due."""
    query = Query()
    query.at(1, half(9, 100, immunity=0), *(message(offset, at=at) for offset, at in enumerate((150, 60, 90))))
    assert query.at(67) == [("DELIVER", 1)]
    assert query.at(70, cancel(1), cancel(2)) == [("CANCEL", 2), ("REJECT_OP", 1)]
    assert query.scheduled == [0]
    assert query.at(105) == [("CHECK", 9)]
    assert query.at(155) == [("CHECK", 9), ("DELIVER", 0)]
    assert query.scheduled == []


def test_due_check_is_not_left_to_another_batch() -> None:
    """With the delivery's timer that of the check fires."""
    query = Query()
    query.at(1, half(9), message(0, at=900), message(1, at=9))
    assert query.at(20) == [("CHECK", 9), ("DELIVER", 1)]
    assert query.scheduled == [0]


@given(
    st.lists(
        st.tuples(
            st.integers(-60, 60),
            st.lists(
                st.builds(message, st.integers(0, SIZE - 1), at=st.integers(1, 250))
                | st.builds(cancel, st.integers(0, SIZE - 1), tx=st.sampled_from([7, 7, 8])),
                max_size=6,
            ),
        ),
        max_size=25,
    )
)
def test_deliveries_are_those_of_the_block(batches: list[tuple[int, list[tuple[Any, ...]]]]) -> None:
    """Of scheduled and cancelled messages, while the clock is set back and forth; timers, too."""
    with patch.object(next_deliveries, "MOST", 3):
        query, plain, now = Query(), Query(), 1
        for step, rows in batches:
            now = max(1, now + step)
            found = query.at(now, *rows)
            with patch.object(PartitionBatch, "_deliver", lambda *_: None):
                assert plain.at(now, *rows) == found
            assert query.scheduled == plain.scheduled
            assert query.state.timers == plain.state.timers
            assert query.told.tobytes() == plain.told.tobytes()


@given(
    st.lists(st.sampled_from(_TIMES), min_size=1, max_size=SIZE), st.lists(st.sampled_from(_TIMES)), st.integers(1, 4)
)
def test_delivered_are_those_that_are_due(dues: list[int], times: list[int], most: int) -> None:
    """By the next deliveries or, when they do not tell, by the block; in any order of times."""
    segment, delivered = _segment(*dues), set[int]()
    with patch.object(next_deliveries, "MOST", most):
        left = NextDeliveries.of(segment, Timers())
        for now in times:
            actions: list[Records] = []
            found = left.deliver(now, actions)
            due = {offset for offset, at in enumerate(dues) if at <= now} - delivered
            if found is None:
                assert due or not len(left.records)
                segment, actions = left.applied_to(segment), []
                after, more = decide(segment, events(), now, RULES)
                actions.append(more)
                if not len(after.scheduled):
                    break
                segment, left = after, NextDeliveries.of(after, Timers())
            else:
                left = found
            assert {int(offset) for some in actions for offset in some["offset"]} == due
            delivered |= due
            assert set(_offsets(left.applied_to(segment).scheduled)) == {*range(len(dues))} - delivered
            assert left.scheduled == len(dues) - len(delivered)
            assert left.first == min(at for offset, at in enumerate(dues) if offset not in delivered)


def _beside(version: int | None = None) -> bytes:
    value = NextDeliveries.of(_segment(500, 400), Timers(77, 403)).to_bytes(SIZE)
    return value if version is None else value[:2] + struct.pack("<H", version) + value[4:]


def test_next_deliveries_survive_their_bytes() -> None:
    found = NextDeliveries.of_bytes(_beside(), SIZE)
    assert _offsets(found.records) == [1, 0]
    assert (found.timers, found.pending, found.oldest, found.scheduled) == (Timers(77, 403), 0, 0, 2)
    left = found.deliver(76, [])
    assert left is not None
    assert left.delivered_until == 76
    again = NextDeliveries.of_bytes(left.to_bytes(SIZE), SIZE)
    assert again.delivered_until == 76


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"", "not Checkback's"),
        (b"CB" + _beside()[2:], "not Checkback's"),
        (_beside()[:-1], "cut off"),
        (_beside() + b"\0", "cut off"),
        (_beside()[: next_deliveries._HEADER.size], "cut off"),
        (_beside(99), "version 99"),
        (NextDeliveries.of(_segment(500), Timers()).to_bytes(32), r"set it to 32"),
    ],
)
def test_damaged_next_deliveries_are_refused(value: bytes, says: str) -> None:
    with pytest.raises(StateError, match=says):
        NextDeliveries.of_bytes(value, SIZE)


def test_block_without_its_next_deliveries_is_refused() -> None:
    """What was delivered since would be delivered again."""
    block = encode(_segment(500, 400), Timers(77, 403))
    nothing: Callable[[], None] = lambda: None  # noqa: E731 - as short as it can be
    with pytest.raises(StateError, match="next deliveries are missing"):
        load(block, nothing, 0, SIZE)
    empty = encode(Segment.empty(0, SIZE))
    assert load(empty, nothing, 0, SIZE)[1] == Timers()
