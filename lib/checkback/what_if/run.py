"""Runs a replay over all segments of the tables, without Spark or on it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.storage.tables import Tables
from checkback.what_if.comparison import compare, needs_of
from checkback.what_if.figures import Figures, total
from checkback.what_if.records import State
from checkback.what_if.rows import recorded_rows
from checkback.what_if.table_files import TableFiles
from checkback.what_if.timeline import Cadence, Needs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from checkback.reconcile.records import Records
    from checkback.reconcile.segment import Rules
    from checkback.settings import Settings
    from checkback.what_if.batch_history import BatchHistory

_EPOCH = datetime.fromtimestamp(0, timezone.utc)
#: rows that are kept for the second pass instead of being read again
_KEPT = 1_000_000


@dataclass(frozen=True)
class Change:
    """A transaction whose state would have been another. Times are UTC; None: it is pending."""

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


@dataclass
class WhatIf:
    """What would have been otherwise.

    ``changes``: the rules that were changed. ``rules``: those in force, the last ones. ``since``, ``until``: the first
    and last batch, UTC; ``batches``: their number. ``groups``: figures by producer group.
    """

    changes: Mapping[str, Any]
    rules: Rules
    since: datetime
    until: datetime
    batches: int
    groups: dict[str, Figures] = field(default_factory=dict)

    @property
    def total(self) -> Figures:
        """The figures of all groups."""
        return total(self.groups.values())


def what_if(
    settings: Settings,
    changes: Mapping[str, Any],
    since: datetime | None = None,
    tell: Callable[[Change], object] = lambda _: None,
) -> WhatIf:
    """Replay the half messages that landed at or ``since`` a time under the rules in force, with these ``changes``.

    Reads the tables without Spark. ``changes``: fields of Rules. ``tell`` is given each transaction whose state would
    have been another. Raises StorageError, SettingsError if no batch has recorded its rules.
    """
    segment_size = settings.reconcile.segment_size
    files = TableFiles(Tables.of(settings.storage), segment_size)
    history, begin = files.history, 0 if since is None else milliseconds(since)
    found = begun(history, changes)
    hashed = depends_on_hashes(history, changes)
    changed = history.timeline.under(changes)
    needs = Needs.none(len(history.timeline))
    kept: list[_Segments] | None = []
    for segments in _segments(files, history, begin, segment_size, hashed):
        for base, rows in segments:
            needs.join(needs_of(rows, base, segment_size, history.timeline))
        if kept is not None:
            kept.append(segments)
            kept = kept if sum(len(each.rows) for each in kept) <= _KEPT else None
    cadence = Cadence.of(history.timeline, needs)
    again = kept if kept is not None else _segments(files, history, begin, segment_size, hashed)
    for segments in again:
        for base, rows in segments:
            compared = compare(rows, base, segment_size, history.timeline, changed, cadence)
            for group, figures in compared.figures.items():
                found.groups.setdefault(segments.groups[group], Figures()).add(figures)
            for change in compared.changes:
                offset, store = int(change["offset"]), int(change["store"])
                group, name = segments.groups[change["group"]], segments.ids[offset, store]
                tell(change_of(change, segments.queue_id, group, name))
    return found


def change_of(change: Any, queue_id: int, group: str, transaction_id: str) -> Change:
    """From a CHANGE record."""
    was, now = State(change["was_state"]), State(change["state"])
    return Change(
        queue_id=queue_id,
        queue_offset=int(change["offset"]),
        transaction_id=transaction_id,
        producer_group=group,
        landed_at=moment(int(change["store"]) // 1000),
        was=was.name,
        was_at=moment(int(change["was_at"])) if was is not State.PENDING else None,
        was_checks=int(change["was_checks"]),
        now=now.name,
        now_at=moment(int(change["at"])) if now is not State.PENDING else None,
        now_checks=int(change["checks"]),
        assumed=int(change["assumed"]),
    )


def begun(history: BatchHistory, changes: Mapping[str, Any]) -> WhatIf:
    """The result without figures."""
    timeline = history.timeline
    since, until = (moment(int(time)) for time in (timeline.times.min(), timeline.times.max()))
    return WhatIf(changes, timeline.rules_at(len(timeline) - 1), since, until, len(timeline))


def depends_on_hashes(history: BatchHistory, changes: Mapping[str, Any]) -> bool:
    """Do times depend on the hash of the transaction ids: is there a check_jitter?"""
    return bool(changes.get("check_jitter")) or any(rules.check_jitter for rules in history.timeline.rules)


@dataclass(frozen=True)
class _Segments:
    """Segments of a half queue; iterates over (first offset, RECORDED rows)."""

    queue_id: int
    size: int
    rows: Records
    groups: list[str]
    half: pa.Table

    @cached_property
    def ids(self) -> Mapping[tuple[int, int], str]:
        """Transaction ids by offset and store_timestamp (µs)."""
        offsets, ids = (self.half.column(name).to_pylist() for name in ("queue_offset", "transaction_id"))
        stored = self.half.column("store_timestamp").cast(pa.int64()).to_pylist()
        return dict(zip(zip(offsets, stored, strict=True), ids, strict=True))

    def __iter__(self) -> Iterator[tuple[int, Records]]:
        number = self.rows["offset"] // self.size
        order = np.argsort(number, kind="stable")
        bounds = np.flatnonzero(np.diff(number[order])) + 1
        for rows in np.split(order, bounds):
            if len(rows):
                yield int(number[rows[0]]) * self.size, self.rows[rows]


def _segments(files: TableFiles, history: BatchHistory, since: int, size: int, hashed: bool) -> Iterator[_Segments]:
    for part in files.parts(max(since, history.begin)):
        _, rows, groups = recorded_rows(part.tables, history, since, hashed)
        half = part.tables["half"].select(["queue_offset", "store_timestamp", "transaction_id"])
        yield _Segments(part.queue_id, size, rows, groups, half)


def moment(ms: int) -> datetime:
    """A time in UTC."""
    return _EPOCH + timedelta(milliseconds=ms)


def milliseconds(at: datetime) -> int:
    """A time in ms since the epoch."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
