"""Progress of `reconcile` from its checkpoint: the newest batch begun (offset log) and completed (commit log)."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from checkback.reconcile.start.idle_run import read_note
from checkback.storage.checkpoints.checkpoint import Batch, numbers, read_batch
from checkback.storage.files.filesystem import needs_spark
from checkback.storage.files.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

#: while only one run is known
_FIRST_MS = 3_600_000
#: what a run may be late besides half of the rhythm
_LATE_MS = 60_000


@dataclass(frozen=True)
class RunSchedule:
    """When the last runs ended (ms), in order: at least one."""

    runs: tuple[int, ...]

    @property
    def last(self) -> int:
        """When the last run ended (ms)."""
        return self.runs[-1]

    @property
    def every(self) -> int | None:
        """The longest pause between two of the runs (ms); None = not known.

        If the clock was set back, either the runs before that were by a wrong clock, or those after it until it was
        set forward: without them. Both would make the pause too long.
        """
        ahead = [run for place, run in enumerate(self.runs) if run <= min(self.runs[place:])]
        behind = [run for place, run in enumerate(self.runs) if run >= max(self.runs[: place + 1])]
        pauses = ([later - run for run, later in pairwise(runs)] for runs in (ahead, behind))
        return min((max(found) for found in pauses if found), default=None)

    @property
    def next_by(self) -> int:
        """Without another run by then (ms) the job is overdue."""
        every = self.every
        return self.last + (_FIRST_MS if every is None else every * 3 // 2 + _LATE_MS)


@dataclass(frozen=True)
class Progress:
    """``begun``: the newest batch begun; ``done``: the last one completed, and when (``done_at``, ms).

    ``none_yet``: it is known that no batch has begun. ``schedule``: its runs, if the last one was a scheduled run that
    has ended well.
    """

    begun: Batch | None = None
    done: Batch | None = None
    done_at: int | None = None
    none_yet: bool = False
    schedule: RunSchedule | None = None

    @property
    def under_way(self) -> Batch | None:
        """The batch in progress: begun and not completed."""
        if self.begun is None or (self.done is not None and self.done.batch_id >= self.begun.batch_id):
            return None
        return self.begun


def progress(spark: SparkSession | None, place: str, at_ms: int | None = None) -> Progress | None:
    """Progress of the query with the checkpoint in ``place``, now or ``at_ms``, as far as its offset log goes back.

    None = the checkpoint cannot be read without Spark, and there is no session. Raises StorageError.
    """
    if spark is None and needs_spark(place):
        return None
    kept = sorted(numbers(spark, f"{place}/offsets"), reverse=True)
    begun = _begun(spark, place, kept, at_ms)
    if begun is None:
        return Progress(none_yet=not kept or kept[-1] == 0)
    commits = numbers(spark, f"{place}/commits")
    done = max((number for number in commits if number <= begun.batch_id), default=None)
    if done is None:
        return Progress(begun)
    done_at = _modified(f"{place}/commits/{done}")
    if done == begun.batch_id:
        schedule = _schedule(place, kept[0], at_ms) if kept[0] in commits else None
        return Progress(begun, begun, done_at, schedule=schedule)
    # Its entry may have been purged from the offset log, though Spark keeps a hundred.
    known = done in kept
    return Progress(begun, read_batch(spark, place, done) if known else Batch(done, begun.time), done_at)


def _schedule(place: str, newest: int, at_ms: int | None) -> RunSchedule | None:
    """The scheduled runs, if the one with the ``newest`` batch was the last that did anything."""
    note = read_note(place)
    if note is None or note.batch_id != newest:
        return None
    runs = tuple(run for run in note.runs if at_ms is None or run <= at_ms)
    return RunSchedule(runs) if runs else None


def _begun(spark: SparkSession | None, place: str, kept: Sequence[int], at_ms: int | None) -> Batch | None:
    for number in kept:
        batch = read_batch(spark, place, number)
        if at_ms is None or batch.time <= at_ms:
            return batch
    return None


def _modified(file: str) -> int | None:
    """Modification time of a local file (ms); None = unknown: elsewhere it is not worth a call."""
    path = local_path(file)
    return None if path is None else round(os.path.getmtime(path) * 1000)
