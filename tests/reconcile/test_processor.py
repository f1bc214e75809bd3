"""The processor with Spark's own tester: state, timers, and a clock that the test owns."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

from checkback.reconcile.records.actions import Actions
from checkback.reconcile.records.segment_records import Action
from checkback.reconcile.state import partition_batch
from checkback.reconcile.state.partition_batch import delivery_timer, due_timer
from checkback.reconcile.state.processor import SegmentProcessor
from checkback.reconcile.state.state_codec import AT_ONCE
from reconcile.segments import RULES, SIZE, commit, delivered, events, half

KEY = "0/0"


class Batches:
    """One segment, a batch at a time."""

    def __init__(self, max_checks: int | None = None, max_deliveries: int | None = None) -> None:
        processor = SegmentProcessor(RULES, SIZE, max_checks, max_deliveries)
        self.tester = TwsTester(processor, timeMode="ProcessingTime")
        self.wakes: list[int] = []

    def at(self, now: int, *rows: tuple[Any, ...], key: str = KEY) -> list[tuple[str, int]]:
        """(action, offset) of what a batch at this time emits; the timers that are due fire first."""
        frames: list[Any] = [self.tester.setProcessingTime(now)]
        if rows:
            frames.append(self.tester.testInPandas(key, pd.DataFrame({"events": [events(*rows).tobytes()]})))
        blocks = [block for frame in frames if len(frame) for block in frame["block"]]
        actions, segments = Actions.of(pa.table({"block": pa.array(blocks, pa.binary())}))
        assert set(segments["queue_id"].tolist()) <= {int(key.split("/", maxsplit=1)[0])}
        assert set(segments["batch_time"].tolist()) <= {now}
        self.wakes = segments["wake"].tolist()
        return [(Action(action["action"]).name, int(action["offset"])) for action in actions.records]


def test_processor_keeps_a_half_until_its_op() -> None:
    """The state of one batch is there in the next."""
    tester = Batches()
    assert tester.at(1, half(3)) == []
    assert tester.at(2, commit(3)) == [("COMMIT", 3)]


def test_processor_checks_by_timer_and_discards() -> None:
    """Without any event the timers do it all: three checks, the last told of, then the discard, then silence."""
    tester = Batches()
    tester.at(1, half(3))
    emitted = [action for now in range(2, 34) for action in tester.at(now)]
    tester.at(34, delivered(3, 3))
    emitted += [action for now in range(35, 100) for action in tester.at(now)]
    assert emitted == [("CHECK", 3)] * 3 + [("DISCARD", 3)]


def test_processor_keeps_segments_apart() -> None:
    """An op in another queue's segment is another transaction's."""
    tester = Batches()
    tester.at(1, half(3))
    assert tester.at(2, commit(3), key="1/0") == []
    assert tester.at(3, commit(3)) == [("COMMIT", 3)]


def test_processor_forgets_a_segment_after_the_reserved_time() -> None:
    """Nothing pending, nothing waiting, the bits outdated: the state is cleared."""
    tester = Batches()
    tester.at(1, half(3), commit(3))
    assert tester.tester.peekValueState("segment", KEY) is not None
    tester.at(RULES.max_age + 2)
    assert tester.tester.peekValueState("segment", KEY) is None


def test_what_is_due_beyond_the_most_checks_waits_for_the_next_batch() -> None:
    """Ops are applied all the same. The tester has one processor for all batches, Spark one for each."""
    tester = Batches(max_checks=2)
    tester.at(1, half(3), half(4), half(5))
    due = due_timer(2 + RULES.timeout)
    assert tester.at(due) == [("CHECK", 3), ("CHECK", 4), ("CHECK", 5)]  # a segment is not divided
    later = due_timer(due + RULES.check_interval)
    assert tester.wakes == [later]
    assert tester.at(later) == []
    assert tester.wakes == [AT_ONCE]
    assert tester.at(later + 1, commit(4)) == [("COMMIT", 4)]
    assert tester.wakes[-1] == AT_ONCE
    assert tester.at(later + 2, commit(3), commit(5))[-2:] == [("COMMIT", 3), ("COMMIT", 5)]
    assert tester.wakes[-1] > later + 2


def test_scheduled_message_has_a_timer_of_its_own() -> None:
    """It fires at its time, whatever else the segment waits for, and the segment is kept until then."""
    tester = Batches()
    assert tester.at(1, half(3, delay=2 * RULES.max_age), half(4), commit(3)) == [("SCHEDULE", 3)]
    due = delivery_timer(1 + 2 * RULES.max_age)
    assert tester.at(due_timer(1 + RULES.timeout)) == [("CHECK", 4)]
    assert tester.at(due - 9, commit(4))[-1] == ("COMMIT", 4)
    assert tester.wakes[-1] == due
    assert tester.at(due - 1) == []
    assert tester.at(due) == [("DELIVER", 3)]
    assert tester.tester.peekValueState("segment", KEY) is None


def test_deliveries_beyond_the_most_wait_for_the_next_batch() -> None:
    """Neither checks nor COMMITs wait for them. The tester has one processor for all batches, Spark one for each."""
    tester = Batches(max_deliveries=2)
    tester.at(1, *(half(offset, delay=10) for offset in (3, 4, 5)), *(commit(offset) for offset in (3, 4, 5)))
    assert tester.wakes == [delivery_timer(11)]
    assert tester.at(delivery_timer(11)) == [("DELIVER", offset) for offset in (3, 4, 5)]  # a segment is not divided
    tester.at(20, half(6, 20, delay=10), half(7, 20), commit(6))
    due = delivery_timer(30)
    assert tester.at(due) == [("CHECK", 7)]
    assert tester.at(due + 1, commit(7)) == [("COMMIT", 7)]
    assert tester.wakes[-1] == AT_ONCE


def test_delivery_does_not_wait_for_checks_that_are_put_off() -> None:
    """A backlog of checks puts off the segment's timer by a minute, and not its delivery."""
    tester = Batches(max_checks=1)
    tester.at(1, half(3), half(4), half(5, delay=40), commit(5))
    first = due_timer(1 + RULES.timeout)
    assert tester.at(first) == [("CHECK", 3), ("CHECK", 4)]
    assert tester.at(due_timer(first + RULES.check_interval)) == []
    assert tester.at(delivery_timer(41)) == [("DELIVER", 5)]
    assert tester.wakes == [AT_ONCE]


def test_group_opens_so_many_unseen_segments_in_a_batch() -> None:
    """One op each; another group's, and one that half messages are there for, are not concerned.

    The tester has one processor for all batches, Spark one for each.
    """
    tester, second = Batches(), 1

    def at(key: str, *rows: tuple[Any, ...]) -> list[tuple[str, int]]:
        nonlocal second
        second += 1
        return tester.at(second, *rows, key=key)

    for number in range(partition_batch.SEGMENTS):
        assert at(f"0/{number}", commit(number * SIZE)) == []
    assert at("1/0", commit(5)) == [("REJECT_OP", 5)]
    assert tester.tester.peekValueState("segment", "1/0") is None
    assert at("1/0", commit(5, group=2)) == []
    assert at("1/0", commit(7)) == []
    assert at("1/1", half(SIZE + 6, second), commit(SIZE + 7)) == []
    assert at("2/0", *(commit(offset) for offset in range(partition_batch.OPS))) == []
    assert at("1/0", half(5, second), half(7, second)) == [("REJECT_OP", 5), ("COMMIT", 7)]
    assert at("0/0", half(0)) == [("COMMIT", 0)]


@pytest.mark.processes
def test_import_is_light() -> None:
    """Spark imports it in two new Python processes at each start of the query."""
    code = "import sys, checkback.reconcile.state.processor; print({'pandas', 'pyarrow'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
