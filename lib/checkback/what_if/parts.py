"""Replays a part of the tables: the transactions of some whole segments, as Arrow. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.storage.timestamps import time_of
from checkback.what_if.comparison import compare
from checkback.what_if.figures import Figures
from checkback.what_if.recorded_segment import Recorded
from checkback.what_if.records import NEVER, State
from checkback.what_if.rows import recorded_rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from checkback.reconcile.records.records import Records
    from checkback.what_if.batch_history import BatchHistory
    from checkback.what_if.timeline import Cadence


@dataclass(frozen=True)
class Change:
    """A transaction whose state would have been another. Times are UTC; None: it is pending.

    ``was``: as recorded; ``now``: under the other rules. ``assumed``: checks whose answer was never asked for.
    """

    queue_id: int
    queue_offset: int
    transaction_id: str
    producer_group: str
    landed_at: datetime
    was: str
    was_at: datetime | None
    was_checks: int
    now: str
    now_at: datetime | None
    now_checks: int
    assumed: int


@dataclass(frozen=True)
class Question:
    """What is asked: the batches, the changed fields of Rules, and since when half messages landed (ms)."""

    history: BatchHistory
    changes: Mapping[str, Any]
    since: int
    segment_size: int

    @property
    def hashed(self) -> bool:
        """Do times depend on the hash of the transaction ids: is there a check_jitter?"""
        return bool(self.changes.get("check_jitter")) or any(r.check_jitter for r in self.history.timeline.rules)


@dataclass(frozen=True)
class Answer:
    """Figures by producer group, and the transactions whose state would have been another."""

    groups: dict[str, Figures] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)


class Part:
    """Some whole segments: tables with `rows.COLUMNS`."""

    def __init__(self, tables: Mapping[str, pa.Table], question: Question) -> None:
        self._question = question
        self._queues, self.rows, self._groups = recorded_rows(tables, question.history, question.since, question.hashed)
        self._half = tables["half"].select(["queue_id", "queue_offset", "store_timestamp", "transaction_id"])

    def needs(self) -> NDArray[Any]:
        """The first pass: by turn, when the first thing came up that made the batch necessary (ms)."""
        timeline = self._question.history.timeline
        found = np.full(len(timeline), NEVER)
        for _, _, rows in self._segments():
            np.minimum(found, Recorded.of(rows, timeline).needs, out=found)
        return found

    def compare(self, cadence: Cadence) -> Answer:
        """The second pass."""
        size, timeline = self._question.segment_size, self._question.history.timeline
        changed, answer = timeline.under(self._question.changes), Answer()
        for queue, base, rows in self._segments():
            compared = compare(rows, base, size, timeline, changed, cadence)
            for group, figures in compared.figures.items():
                answer.groups.setdefault(self._groups[group], Figures()).add(figures)
            answer.changes.extend(self._change(queue, change) for change in compared.changes)
        return answer

    def _segments(self) -> Iterator[tuple[int, int, Records]]:
        """Queue, first offset and RECORDED rows of each."""
        size = self._question.segment_size
        number: NDArray[Any] = self.rows["offset"] // size
        order = np.lexsort((number, self._queues))
        queues, number = self._queues[order], number[order]
        for rows in np.split(order, np.flatnonzero((np.diff(number) != 0) | (np.diff(queues) != 0)) + 1):
            if len(rows):
                yield int(self._queues[rows[0]]), int(self.rows["offset"][rows[0]]) // size * size, self.rows[rows]

    @cached_property
    def _ids(self) -> Mapping[tuple[int, int, int], str]:
        """Transaction ids by queue, offset and store_timestamp (µs)."""
        names = ("queue_id", "queue_offset", "transaction_id")
        queues, offsets, ids = (self._half.column(name).to_pylist() for name in names)
        stored = self._half.column("store_timestamp").cast(pa.int64()).to_pylist()
        return dict(zip(zip(queues, offsets, stored, strict=True), ids, strict=True))

    def _change(self, queue_id: int, change: Any) -> Change:
        """From a CHANGE record."""
        was, now = State(change["was_state"]), State(change["state"])
        offset, store = int(change["offset"]), int(change["store"])
        return Change(
            queue_id=queue_id,
            queue_offset=offset,
            transaction_id=self._ids[queue_id, offset, store],
            producer_group=self._groups[change["group"]],
            landed_at=time_of(store // 1000),
            was=was.name,
            was_at=time_of(int(change["was_at"])) if was is not State.PENDING else None,
            was_checks=int(change["was_checks"]),
            now=now.name,
            now_at=time_of(int(change["at"])) if now is not State.PENDING else None,
            now_checks=int(change["checks"]),
            assumed=int(change["assumed"]),
        )
