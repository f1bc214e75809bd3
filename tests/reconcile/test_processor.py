"""The processor with Spark's own tester: state, timers, and a clock that the test owns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from pyspark.sql.streaming.tws_tester import TwsTester

from checkback.reconcile.processor import SegmentProcessor
from checkback.reconcile.segment import ACTION, Action
from reconcile.segments import RULES, SIZE, commit, events, half

KEY = "0/0"


class Batches:
    """One segment, a batch at a time."""

    def __init__(self) -> None:
        self.tester = TwsTester(SegmentProcessor(RULES, SIZE), timeMode="ProcessingTime")

    def at(self, now: int, *rows: tuple[Any, ...], key: str = KEY) -> list[tuple[str, int]]:
        """(action, offset) of what a batch at this time emits; the timers that are due fire first."""
        frames: list[Any] = [self.tester.setProcessingTime(now)]
        if rows:
            frames.append(self.tester.testInPandas(key, pd.DataFrame({"events": [events(*rows).tobytes()]})))
        emitted = [row for frame in frames if len(frame) for row in frame.to_dict("records")]
        assert {row["queue_id"] for row in emitted} <= {int(key.split("/", maxsplit=1)[0])}
        found = [action for row in emitted for action in np.frombuffer(row["actions"], ACTION)]
        return [(Action(action["action"]).name, int(action["offset"])) for action in found]


def test_processor_keeps_a_half_until_its_op() -> None:
    """The state of one batch is there in the next."""
    tester = Batches()
    assert tester.at(1, half(3)) == []
    assert tester.at(2, commit(3)) == [("COMMIT", 3)]


def test_processor_checks_by_timer_and_discards() -> None:
    """Without any event the timers do it all: three checks, then the discard, then silence."""
    tester = Batches()
    tester.at(1, half(3))
    emitted = [action for now in range(2, 100) for action in tester.at(now)]
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
    tester.at(RULES.reserved + 2)
    assert tester.tester.peekValueState("segment", KEY) is None
