"""`max_checks` starves nobody: neither many pending half messages nor a stream of old ones keep others waiting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from checkback.reconcile.records.actions import Actions
from checkback.reconcile.records.segment_records import EARLY, Action, Kind
from checkback.reconcile.segment import Rules, Segment, decide
from checkback.reconcile.state.processor import SegmentProcessor
from checkback.reconcile.state.state_codec import encode
from reconcile.segments import SIZE, commit, events, half
from simulator.store import BatchTime, Handle, State

RULES = Rules(timeout=6_000, check_interval=60_000)
#: two full segments a batch and partition
MOST = 2 * SIZE
MASS, VICTIM = 2, 1
START, TRIGGER = 1_800_000_000_000, 2_000


class Partition:
    """The batches of one partition: rows first, then timers in their order, as Spark does."""

    def __init__(self) -> None:
        self.state = State()
        self.now = START
        self.committed: list[int] = []
        #: of the last batch, by group
        self.delivered = Counter[int]()

    def begin(self, segments: dict[str, Segment]) -> None:
        """A checkpoint that begins with these, as `rebuild` restores them."""
        handle, processor = Handle(self.state), SegmentProcessor(RULES, SIZE, MOST, MOST)
        processor.init(handle)  # type: ignore[arg-type]
        for handle.key, segment in segments.items():
            rows = pd.DataFrame({"block": [encode(segment)]})
            processor.handleInitialState((handle.key,), rows, BatchTime(self.now))  # type: ignore[arg-type]
        self.state = handle.state()

    def batch(self, halves: dict[str, list[tuple[Any, ...]]] | None = None) -> Counter[tuple[int, int]]:
        """A batch a trigger later: how many checks, by (group, segment)."""
        self.now += TRIGGER
        handle, processor = Handle(self.state), SegmentProcessor(RULES, SIZE, MOST, MOST)
        processor.init(handle)  # type: ignore[arg-type]
        frames: list[Any] = []
        for key, rows in (halves or {}).items():
            handle.key = key
            block = pd.DataFrame({"events": [events(*rows).tobytes()]})
            frames += processor.handleInputRows((key,), iter([block]), BatchTime(self.now))  # type: ignore[arg-type]
        for timer in sorted(handle.timers):
            if timer[0] <= self.now:
                handle.key = timer[1]
                fired: Any = BatchTime(self.now, timer[0])
                frames += processor.handleExpiredTimer((handle.key,), fired, fired)
                handle.timers.discard(timer)
        self.state = handle.state()
        blocks = pa.array([block for frame in frames for block in frame["block"]], pa.binary())
        records = Actions.of(pa.table({"block": blocks}))[0].records
        self.committed = records["offset"][records["action"] == Action.COMMIT].tolist()
        self.delivered = Counter(records["group"][records["action"] == Action.DELIVER].tolist())
        checks = records[records["action"] == Action.CHECK]
        return Counter(zip(checks["group"].tolist(), (checks["offset"] // SIZE).tolist(), strict=True))

    def segment(self, queue: int, number: int, group: int, born: int) -> dict[str, list[tuple[Any, ...]]]:
        """A full segment of half messages."""
        first = number * SIZE
        return {f"{queue}/{number}": [half(first + n, born, group=group, tx=first + n + 1) for n in range(SIZE)]}


def test_mass_of_one_group_does_not_delay_the_check_of_another() -> None:
    partition = Partition()
    mass = [partition.segment(MASS, number, MASS, START) for number in range(100)]
    partition.batch({key: rows for one in mass for key, rows in one.items()})
    partition.batch({"1/0": [half(0, START + 2 * TRIGGER, group=VICTIM)]})
    until = next(n for n in range(1000) if any(group == VICTIM for group, _ in partition.batch()))
    assert until <= RULES.timeout // TRIGGER + 1


def test_segments_that_were_put_off_keep_their_order() -> None:
    """Each has its first check before any has its second, though those in front come due again."""
    partition = Partition()
    mass = [partition.segment(MASS, number, MASS, START) for number in range(100)]
    partition.batch({key: rows for one in mass for key, rows in one.items()})
    seen = Counter[int]()
    while len(seen) < len(mass):
        for _, segment in partition.batch():
            seen[segment] += 1
    # The first come due again in time, and a part of each batch is theirs.
    assert max(seen.values()) <= 3
    assert sum(seen.values()) <= len(mass) * 2


def test_half_messages_born_long_ago_leave_checks_to_others() -> None:
    partition = Partition()
    partition.batch({"1/0": [half(0, START + TRIGGER, group=VICTIM)]})
    checks = Counter[int]()
    for number in range(20):
        old = [partition.segment(MASS, 10 * number + n, MASS, 0) for n in range(10)]
        for (group, _), count in partition.batch({key: rows for one in old for key, rows in one.items()}).items():
            checks[group] += count
    assert checks[VICTIM] == 1


def test_ops_that_rebuild_has_restored_wait_for_no_checks() -> None:
    """Everything is due after an outage; the segments with a COMMIT to apply are not put off with the others."""
    segments = {}
    for number in range(50):
        first = number * SIZE
        rows = events(*(half(first + n, START - 10 * RULES.timeout, tx=first + n + 1) for n in range(SIZE)))
        segment, _ = decide(Segment.empty(first, SIZE), rows, START, RULES, check=False)
        if number >= 40:
            op = np.zeros(1, EARLY)
            op["offset"], op["kind"], op["since"] = first, Kind.COMMIT, START
            op["group"], op["transaction"] = segment.pending["group"][0], segment.pending["transaction"][0]
            segment = replace(segment, early=op)
        segments[f"0/{number}"] = segment
    partition = Partition()
    partition.begin(segments)
    assert sum(partition.batch().values()) <= MOST
    assert sorted(partition.committed) == [number * SIZE for number in range(40, 50)]


def test_stream_of_messages_that_nobody_ends_delays_a_check_by_what_waited_before_it() -> None:
    """Each batch twice as much comes due as it can do. What was put off is done in the order in which it was."""
    partition, waited = Partition(), None
    for number in range(200):
        new: dict[str, list[tuple[Any, ...]]] = {}
        for place in range(4):
            new |= partition.segment(MASS, 4 * number + place, MASS, partition.now + 1)
        if number == 20:
            new["5/0"] = [half(0, partition.now, group=VICTIM)]
        if any(group == VICTIM for group, _ in partition.batch(new)):
            waited = number - 20
            break
    assert waited is not None
    assert waited <= 60


def test_junk_ops_for_its_segment_do_not_delay_a_check() -> None:
    """Nor do old half messages with them, that use up what is left to segments with events."""
    partition, checks = Partition(), 0
    partition.batch({"5/0": [half(0, START + TRIGGER, group=VICTIM)]})
    for number in range(40):
        rows = partition.segment(MASS, number, MASS, 0)
        rows["5/0"] = [commit(1 + number % 15, group=MASS, tx=1000 + number)]
        checks += sum(count for (group, _), count in partition.batch(rows).items() if group == VICTIM)
    assert checks >= 1
