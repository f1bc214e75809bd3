"""The complete batches, in order, and which rows of the tables belong to them. Pure: no Spark, no clock, no I/O.

A batch's row in `batches` is written last, so a batch that has one is complete. The rows that a batch wrote carry its
(batch_id, batch_time). Neither identifies it alone: a rebuild restarts the ids, and clocks are set back. Times are ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Records: TypeAlias = "NDArray[np.void]"

#: value of an unknown rule
UNKNOWN = -1
#: One row of `batches`. application: its index among the applications, ordered by their start. The row may be a run
#: of several batches, the last of which it names: before: how many come before that, lasted: the time since the first.
BATCH = np.dtype(
    [
        ("application", "<i8"),
        ("batch_id", "<i8"),
        ("time", "<i8"),
        ("finished", "<i8"),
        ("timeout", "<i8"),
        ("check_interval", "<i8"),
        ("max_age", "<i8"),
        ("jitter", "<i8"),
        ("check_max", "<i8"),
        ("before", "<i8"),
        ("lasted", "<i8"),
    ]
)
#: Turns per application: more than it has batches.
APPLICATION = 1 << 40
#: Most epochs that `epochs` distinguishes; if there are more, they are merged into one.
_EPOCHS = 64


class BatchRange(NamedTuple):
    """Ranges of batch ids and batch times, both inclusive: rows within belong to consecutive batches."""

    first_id: int
    last_id: int
    first_time: int
    last_time: int


class Epoch(NamedTuple):
    """Consecutive batches decided with the same rules; UNKNOWN = the rules are unknown.

    ``begin``: the earliest batch time; ``end``: the latest batch time up to the last of them. ``timeout``,
    ``max_age``: the settings transaction.*, ms.
    """

    begin: int
    end: int
    timeout: int
    max_age: int


def first_ids(batches: Records) -> NDArray[np.int64]:
    """The first batch of each run; of a single batch its own id."""
    found: NDArray[np.int64] = batches["batch_id"] - batches["before"]
    return found


def first_times(batches: Records) -> NDArray[np.int64]:
    """The time of the first batch of each run."""
    found: NDArray[np.int64] = batches["time"] - batches["lasted"]
    return found


def in_order(records: Records) -> Records:
    """BATCH records by application and batch id; of duplicates the one that finished first."""
    records = records[np.lexsort((records["finished"], records["batch_id"], records["application"]))]
    first = np.ones(len(records), bool)
    first[1:] = np.diff(records["application"]) != 0
    first[1:] |= np.diff(records["batch_id"]) != 0
    return records[first]


def cut_at(batches: Records, at: int | None) -> int:
    """How many of the ordered batches were complete at a time: up to the last one finished by then."""
    if at is None:
        return len(batches)
    done = np.flatnonzero(batches["finished"] <= at)
    return int(done[-1]) + 1 if len(done) else 0


def members(kept: Records, others: Records) -> tuple[BatchRange, ...]:
    """The rows of the ``kept`` batches, a prefix of the order, and of none of the ``others``, which follow.

    One more may be in progress, still without a row.
    """
    if not len(kept):
        return ()
    last = (others if len(others) else kept)[-1]
    # The id of the next batch, or of the first after a rebuild; at any time.
    begun = (int(last["batch_id"]) + 1, 0)
    return tuple(box for run in _runs(kept) for box in _boxes(run, others, begun))


def turns(batches: Records) -> NDArray[np.int64]:
    """A number for each (application, batch_id) that increases with time."""
    numbers: NDArray[np.int64] = batches["application"] * APPLICATION + batches["batch_id"]
    return numbers


def _runs(batches: Records) -> list[Records]:
    """Batches of one application with consecutive ids and non-decreasing times."""
    if not len(batches):
        return []
    ends = np.diff(batches["application"]) != 0
    ends |= first_ids(batches)[1:] != batches["batch_id"][:-1] + 1
    ends |= first_times(batches)[1:] < batches["time"][:-1]
    return np.split(batches, np.flatnonzero(ends) + 1)


def _box(run: Records) -> BatchRange:
    first, last = run[0], run[-1]
    begin = int(first["batch_id"] - first["before"]), int(first["time"] - first["lasted"])
    return BatchRange(begin[0], int(last["batch_id"]), begin[1], int(last["time"]))


def _boxes(run: Records, others: Records, begun: Sequence[int]) -> list[BatchRange]:
    """Boxes of a run without any of the others; an id in ``begun`` gets its own box, of that batch's very time."""
    box = _box(run)
    if len(run) == 1:
        return [box]
    for number in begun:
        if box.first_id <= number <= box.last_id:
            at = int(np.searchsorted(run["batch_id"], number))
            parts = [part for part in (run[:at], run[at : at + 1], run[at + 1 :]) if len(part)]
            return [found for part in parts for found in _boxes(part, others, begun)]
    within = (others["batch_id"] >= box.first_id) & (first_ids(others) <= box.last_id)
    within &= (others["time"] >= box.first_time) & (first_times(others) <= box.last_time)
    if not within.any():
        return [box]
    # Of another application, after the clock was set back: a shorter run spans less time.
    middle, others = len(run) // 2, others[within]
    return [*_boxes(run[:middle], others, begun), *_boxes(run[middle:], others, begun)]


def epochs(batches: Records) -> list[Epoch]:
    """The batches, which are in order, grouped by the rules in force."""
    if not len(batches):
        return []
    changes = np.flatnonzero((np.diff(batches["timeout"]) != 0) | (np.diff(batches["max_age"]) != 0)) + 1
    changes = changes if len(changes) < _EPOCHS else changes[:0]
    latest = np.maximum.accumulate(batches["time"])
    return [
        # If an epoch has several rules, the loosest.
        Epoch(int(first_times(part).min()), int(until[-1]), *(int(part[name].min()) for name in ("timeout", "max_age")))
        for part, until in zip(np.split(batches, changes), np.split(latest, changes), strict=True)
    ]


def first_intervals(batches: Records) -> list[int]:
    """transaction.check_interval of the first batch by application; UNKNOWN if it is missing there."""
    count = int(batches["application"].max()) + 1 if len(batches) else 0
    found = np.full(count, UNKNOWN, np.int64)
    first = np.ones(len(batches), bool)
    first[1:] = np.diff(batches["application"]) != 0
    found[batches["application"][first]] = batches["check_interval"][first]
    return [int(interval) for interval in found]


class BatchFault(NamedTuple):
    """Inconsistency within `batches`: the number of cases, and (batch_id, time) of the first; time None = not known."""

    number: int
    samples: tuple[tuple[int, int | None], ...]


def faults(records: Records, most: int) -> dict[str, BatchFault]:
    """Inconsistencies within the BATCH records, in any order, by name of a finding.

    batch_twice: several rows of one batch, or of some in a run. batch_gap: batches without a row between an
    application's first and last; the samples are the batches after a gap. batch_clock_back: finished before its
    predecessor.
    """
    batches = in_order(records)
    key = ["application", "batch_id"]
    _, first, times = np.unique(records[key], return_index=True, return_counts=True)
    same = np.diff(batches["application"]) == 0
    missing = np.where(same, first_ids(batches)[1:] - batches["batch_id"][:-1] - 1, 0)
    twice = np.concatenate([records[first[times > 1]], batches[1:][missing < 0]])
    missing = np.maximum(missing, 0)
    back = same & (np.diff(batches["finished"]) < 0)
    return {
        "batch_twice": BatchFault(len(twice), _samples(twice, most)),
        "batch_gap": BatchFault(int(missing.sum()), _samples(batches[1:][missing > 0], most)),
        "batch_clock_back": BatchFault(int(back.sum()), _samples(batches[1:][back], most)),
    }


def _samples(found: Records, most: int) -> tuple[tuple[int, int], ...]:
    rows: Any = found[:most][["batch_id", "time"]].tolist()
    return tuple((batch_id, time) for batch_id, time in rows)
