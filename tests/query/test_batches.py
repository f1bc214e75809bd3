"""Which rows belong to a cut, against random histories: rebuilds, clocks put back, batches under way. Without Spark."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkback.query.versions.batches import (
    BATCH,
    UNKNOWN,
    BatchFault,
    BatchRange,
    Epoch,
    Records,
    cut_at,
    epochs,
    faults,
    first_intervals,
    in_order,
    members,
)

_SEEDS = st.integers(0, 2**32)
_START = 1_000_000


@dataclass
class History:
    """Batches as they were written, one after the other, by applications that rebuilds began."""

    rows: list[tuple[int, int, int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    under_way: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, random: Random, count: int) -> History:
        """A history of so many batches, some of which lack their row. Clocks are put back, not to before the first."""
        found = cls()
        application, number, clock = 0, 0, _START
        for left in reversed(range(count)):
            # No batch begins before the one before it has its row: a lost one is never the last.
            if found.rows and left and random.random() < 0.05:
                found.lost.append((number, clock))
            else:
                found.rows.append((application, number, clock, clock + random.choice((0, 1, 30))))
            clock += random.choice((0, 1, 5, 100))
            if random.random() < 0.1:
                clock = max(_START, clock - random.choice((3, 200, 100_000)))
            number += 1
            if random.random() < 0.1:
                application, number = application + 1, 0
        found.under_way = (number, clock)
        return found

    @property
    def applications(self) -> int:
        """How many there were."""
        return self.rows[-1][0] + 1

    @property
    def records(self) -> Records:
        """As BATCH records."""
        return np.array([(*row, 6_000, 60_000, 0, 0, 15, 0, 0) for row in self.rows], BATCH)


def _holds(held: tuple[BatchRange, ...], row: tuple[int, int]) -> bool:
    number, time = row
    return any(box.first_id <= number <= box.last_id and box.first_time <= time <= box.last_time for box in held)


@given(_SEEDS)
def test_cut_holds_whole_batches_and_nothing_else(seed: int) -> None:
    """At any time: all up to one, none after it, not the one under way."""
    random = Random(seed)
    history = History.of(random, random.randrange(1, 40))
    batches = in_order(history.records)
    known = [(int(row["batch_id"]), int(row["time"])) for row in batches]
    for at in [None, 0, *{row[3] + near for row in history.rows for near in (-1, 0)}]:
        count = cut_at(batches, at)
        if at is not None:
            assert count == 0 or batches["finished"][count - 1] <= at
            assert (batches["finished"][count:] > at).all()
        held = members(batches[:count], batches[count:])
        kept = set(known[:count])
        assert all(_holds(held, row) for row in kept)
        assert not any(_holds(held, row) for row in known[count:] if row not in kept)
        # One with the very time of another application's batch of the same number cannot be told from it.
        assert history.under_way in known or not _holds(held, history.under_way)
        assert at is not None or history.applications > 1 or not any(_holds(held, row) for row in history.lost)


def _with_runs(records: Records, random: Random) -> Records:
    """The ordered records with some consecutive ones made one, as retention does."""
    found: list[tuple[int, ...]] = []
    for row in records.tolist():
        last = found[-1] if found else row
        follows = row[0] == last[0] and row[1] == last[1] + 1 and row[2] >= last[2] and row[3] >= last[3]
        run = (*row[:-2], row[1] - last[1] + last[-2], row[2] - last[2] + last[-1])
        others = [each for each in records.tolist() if each[0] != row[0]]
        crossed = any(
            run[1] - run[-2] <= each[1] <= run[1] and run[2] - run[-1] <= each[2] <= run[2] for each in others
        )
        if follows and not crossed and random.random() < 0.7:
            found[-1] = run
        else:
            found.append(row)
    return np.array(found, BATCH)


@given(_SEEDS)
def test_runs_of_batches_are_like_their_batches(seed: int) -> None:
    """They are no gap, their batches are held by the cut, and those of later batches are not."""
    random = Random(seed)
    history = History.of(random, random.randrange(1, 40))
    batches = in_order(history.records)
    runs = _with_runs(batches, random)
    found, expected = faults(runs, 5), faults(batches, 5)
    assert found["batch_twice"].number == 0
    assert found["batch_gap"].number == expected["batch_gap"].number
    assert found["batch_clock_back"].number <= expected["batch_clock_back"].number  # a run says when it ended
    known = [(int(row["batch_id"]), int(row["time"])) for row in batches]
    ends = np.searchsorted(np.cumsum(1 + runs["before"]), np.arange(len(batches)), "right")
    for count in range(len(runs) + 1):
        held = members(runs[:count], runs[count:])
        kept = {row for row, run in zip(known, ends, strict=True) if run < count}
        assert all(_holds(held, row) for row in kept)
        assert not any(_holds(held, row) for row in known if row not in kept)


def test_run_with_one_of_its_batches_is_twice() -> None:
    rows = [(0, 4, 100, 110, 0), (0, 5, 120, 130, 0), (0, 9, 140, 150, 4), (0, 12, 160, 170, 1)]
    records = np.array([(*row[:4], 0, 0, 0, 0, 0, row[4], 10) for row in rows], BATCH)
    found = faults(records, 5)
    assert found["batch_twice"] == BatchFault(1, ((9, 140),))
    assert found["batch_gap"] == BatchFault(1, ((12, 160),))


@given(_SEEDS)
def test_boxes_are_few(seed: int) -> None:
    """As many as there were rebuilds and clocks put back, and some for the batch under way; not one a batch."""
    batches = np.zeros(10_000, BATCH)
    batches["batch_id"] = np.arange(10_000) % 5_000
    batches["application"] = np.arange(10_000) // 5_000
    batches["time"] = _START + np.arange(10_000) * 1_000
    batches["finished"] = batches["time"] + 500
    count = Random(seed).randrange(1, 10_000)
    assert len(members(batches[:count], batches[count:])) <= 6


def test_clock_that_was_put_back_across_a_rebuild_costs_a_few_boxes() -> None:
    """The other application's batches have ids and times that the first one's had."""
    batches = np.zeros(6_000, BATCH)
    batches["batch_id"][:5_000], batches["batch_id"][5_000:] = np.arange(5_000), np.arange(1_000)
    batches["application"][5_000:] = 1
    batches["time"][:5_000] = _START + np.arange(5_000) * 1_000
    batches["time"][5_000:] = _START + 2_000_500 + np.arange(1_000) * 1_000
    held = members(batches[:5_010], batches[5_010:])
    assert len(held) < 20
    assert not any(_holds(held, (int(row["batch_id"]), int(row["time"]))) for row in batches[5_010:])


@given(_SEEDS)
def test_order_does_not_depend_on_how_the_rows_lie(seed: int) -> None:
    """OPTIMIZE may put them in any order, and a row may be there twice."""
    random = Random(seed)
    records = History.of(random, 20).records
    mixed = np.concatenate([records, records[:3]])
    np.random.default_rng(seed).shuffle(mixed)
    assert (in_order(mixed) == records).all()
    assert faults(mixed, 5)["batch_twice"].number == 3


def test_rows_are_held_against_each_other() -> None:
    rows = [(0, 4, 100, 110), (0, 5, 120, 130), (0, 8, 140, 125), (1, 0, 150, 160), (1, 0, 150, 161)]
    found = faults(np.array([(*row, 0, 0, 0, 0, 0, 0, 0) for row in rows], BATCH), 5)
    assert {name: (fault.number, fault.samples) for name, fault in found.items()} == {
        "batch_twice": (1, ((0, 150),)),
        "batch_gap": (2, ((8, 140),)),
        "batch_clock_back": (1, ((8, 140),)),
    }


def test_rules_in_force_by_epochs() -> None:
    """An epoch lasts until its last batch, even if the clock was set back in it."""
    rows = [(0, 0, 100, 6), (0, 1, 200, 6), (0, 2, 300, 9), (0, 3, 250, 9), (1, 0, 400, UNKNOWN)]
    records = np.array(
        [(app, number, time, time, rule, rule, rule, 0, 0, 0, 0) for app, number, time, rule in rows], BATCH
    )
    assert epochs(records) == [Epoch(100, 200, 6, 6), Epoch(250, 300, 9, 9), Epoch(400, 400, UNKNOWN, UNKNOWN)]
    assert first_intervals(records) == [6, UNKNOWN]


def test_many_changes_of_the_rules_count_as_one() -> None:
    """The loosest of them: then nothing is called broken that was not."""
    rows = [(0, number, number, number, 100 + number, 60, 200 - number, 0, 0, 0, 0) for number in range(100)]
    assert epochs(np.array(rows, BATCH)) == [Epoch(0, 99, 100, 101)]
