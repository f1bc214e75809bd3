"""Which batch was broken off: pure. The tables are those that a crash, another release or a set-back clock leaves."""

from __future__ import annotations

from random import Random

import pytest

from checkback.reconcile.interrupted_batch import BatchRows, InterruptedBatch, LastBatch, broken_off

_LAST = LastBatch("q", 4, 1000)


@pytest.mark.parametrize(
    ("rows", "concluded", "written", "found"),
    [
        ([], [_LAST], [], None),
        # The next batch has begun to write; whatever the clock says.
        ([BatchRows(5, 2000)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 2000))),
        ([BatchRows(5, 500)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 500))),
        # It has only published late what had waited: no version of its own says so.
        ([BatchRows(5, 2000)], [_LAST], [], InterruptedBatch("q", BatchRows(5, 2000))),
        # Batches of a release that had no `batches`.
        ([BatchRows(0, 10), BatchRows(1, 20), BatchRows(5, 60)], [_LAST], [], None),
        ([BatchRows(5, 60), BatchRows(5, 2000)], [_LAST], [_LAST], InterruptedBatch("q", BatchRows(5, 2000))),
        # A new checkpoint's first, which nobody knows the name of any more.
        (
            [BatchRows(0, 10), BatchRows(0, 2000)],
            [_LAST, LastBatch(None, -1, 1000)],
            [],
            InterruptedBatch(None, BatchRows(0, 2000)),
        ),
        # There is no row yet: the very first batch, or that release's last.
        ([BatchRows(0, 10)], [], [], InterruptedBatch("q", BatchRows(0, 10), first=True)),
        ([BatchRows(0, 10), BatchRows(1, 20)], [], [], InterruptedBatch("q", BatchRows(1, 20))),
    ],
)
def test_batch_that_was_broken_off(
    rows: list[BatchRows], concluded: list[LastBatch], written: list[LastBatch], found: InterruptedBatch | None
) -> None:
    assert broken_off(rows, concluded, written, "q") == found


@pytest.mark.parametrize("seed", range(200))
def test_the_last_one_is_found_whatever_the_clocks_say(seed: int) -> None:
    """A release before, rebuilds, clocks that leap: of what has no row it is the one that was broken off, or none."""
    random = Random(seed)
    past = [BatchRows(number, random.randrange(1, 500)) for number in range(random.randrange(4))]
    times = random.sample(range(500, 2000), 8)
    last = random.randrange(6)
    concluded = [LastBatch("new", -1, max(times)), LastBatch("old", last, max(times))]
    broken = random.choice([None, *concluded])
    rows = past if broken is None else [*past, BatchRows(broken.batch_id + 1, random.randrange(500, 2000))]
    random.shuffle(rows)
    found = broken_off(rows, concluded, [] if broken is None else [broken], "new")
    if broken is None:
        assert found is None
    else:
        assert found is not None
        assert (found.application, found.rows.batch_id) == (broken.application, broken.batch_id + 1)
        assert found.rows.time >= 500
