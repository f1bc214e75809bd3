"""The actions of a batch: ACTION records made from those they are about; in the driver's memory 52 bytes each."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from checkback.reconcile.records.segment_records import ACTION, Action, Records
from checkback.storage.offset_ranges import Box, Range, merge_ranges

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa
    from numpy.typing import NDArray


#: maximum number of groups that a segment reports
MOST_GROUPS = 32


def actions_on(action: Action, about: Records, detail: int | NDArray[Any] = 0) -> Records:
    """An action on each of these records, which have offset, store, group and transaction."""
    rows = np.zeros(len(about), ACTION)
    rows["action"] = action
    rows["detail"] = detail
    for name in ("offset", "store", "group", "transaction"):
        rows[name] = about[name]
    return rows


def actions_on_pending(action: Action, pending: Records, detail: int | NDArray[Any]) -> Records:
    """An action on each of these PENDING records."""
    rows = actions_on(action, pending, detail)
    rows["check_times"] = pending["check_times"]
    rows["repeated"] = pending["repeated"]
    return rows


def pending_by_group(pending: Records) -> Records:
    """PENDING actions: how many of these PENDING records each group has, of the MOST_GROUPS that have most."""
    groups, which, counts = np.unique(pending["group"], return_inverse=True, return_counts=True)
    oldest = np.full(len(groups), np.iinfo(np.int64).max)
    np.minimum.at(oldest, which, pending["born"])
    most = np.argsort(-counts, kind="stable")[:MOST_GROUPS]
    rows = np.zeros(len(most), ACTION)
    rows["action"] = Action.PENDING
    rows["group"], rows["check_times"], rows["due"] = groups[most], counts[most], oldest[most]
    return rows


def actions_on_scheduled(action: Action, scheduled: Records, detail: int | NDArray[Any] = 0) -> Records:
    """An action on each of these SCHEDULED records."""
    rows = actions_on(action, scheduled, detail)
    for name in ("check_times", "repeated", "due"):
        rows[name] = scheduled[name]
    return rows


#: The processor's output: a row per segment that the batch touches, a SEGMENT record and its ACTION records. One
#: column: Spark's and pandas' overhead per column and segment exceeds the cost of the decisions.
ACTIONS_SCHEMA = "block BINARY"
#: State of a segment after a batch: numbers of pending half messages and of scheduled messages, born time of the oldest
#: pending one (ms; 0 = none), its next timer (ms; -1 = none, 0 = the next batch, to be started at once); and the
#: batch's time (ms)
SEGMENT = np.dtype(
    [
        ("queue_id", "<i4"),
        ("segment", "<i8"),
        ("pending", "<i4"),
        ("scheduled", "<i4"),
        ("oldest", "<i8"),
        ("wake", "<i8"),
        ("batch_time", "<i8"),
    ]
)
#: pending and scheduled of a deferred segment: unchanged
AS_BEFORE = -1
#: Of the last PENDING actions of a segment: number of a group's pending half messages, and born time of the oldest (ms)
GROUP = np.dtype([("queue_id", "<i4"), ("segment", "<i8"), ("group", "<i8"), ("pending", "<i4"), ("oldest", "<i8")])
#: an ACTION and its half queue
QUEUED = np.dtype([("queue_id", "<i4"), *ACTION.descr])

#: actions that are rows of `decisions`
DECISIONS = (Action.COMMIT, Action.ROLLBACK, Action.DISCARD, Action.SCHEDULE, Action.CANCEL)
#: actions that publish a message, or keep it in `discarded`
PUBLISHED, KEPT = (Action.COMMIT, Action.DELIVER), (Action.DISCARD, Action.CANCEL)
#: actions on a pending half message or a scheduled message, and thus on one row of `half`: at most one in a batch
ACTED_ON = (*DECISIONS, Action.CHECK, Action.DELIVER)


def pack(segment: tuple[int, int, int, int, int, int, int], actions: Records) -> bytes:
    """A row of ACTIONS_SCHEMA from the fields of a SEGMENT record and ACTION records; equal rejections once."""
    return np.array([segment], SEGMENT).tobytes() + _without_copies(actions).tobytes()


def _without_copies(actions: Records) -> Records:
    """The actions, with those of rejected ops deduplicated.

    Ops that landed together and agree in all identifying fields have equal actions. One of them finds all their rows in
    `op` (`rejected.rejected_ops`), and the driver's memory is limited.
    """
    refused = np.flatnonzero(np.isin(actions["action"], (Action.REJECT_OP, Action.LATE_OP)))
    if len(refused) < 2:
        return actions
    names = ("action", "offset", "detail", "store", "group", "transaction")
    rows = actions[refused]
    order = np.lexsort([rows[name] for name in names])
    same = np.logical_and.reduce([rows[name][order][1:] == rows[name][order][:-1] for name in names])
    kept = np.ones(len(actions), bool)
    kept[refused[order[1:][same]]] = False
    return actions if kept.all() else actions[kept]


@dataclass(frozen=True)
class Actions:
    """QUEUED records in any order, and the batch's time (ms); GROUP records of the segments with a block."""

    records: Records
    batch_time: int
    pending: Records = field(default_factory=lambda: np.empty(0, GROUP))

    @classmethod
    def of(cls, rows: pa.Table) -> tuple[Actions, Records]:
        """The actions, and the SEGMENT records, in ACTIONS_SCHEMA."""
        told = rows.column("block").to_pylist()
        segments = np.frombuffer(b"".join(block[: SEGMENT.itemsize] for block in told), SEGMENT)
        blocks = [np.frombuffer(block, ACTION, offset=SEGMENT.itemsize) for block in told]
        records = np.empty(sum(map(len, blocks)), QUEUED)
        begin = 0
        for queue_id, block in zip(segments["queue_id"].tolist(), blocks, strict=True):
            part = records[begin : begin + len(block)]
            part["queue_id"] = queue_id
            for name in ACTION.names or ():
                part[name] = block[name]
            begin += len(block)
        batch_time = int(segments["batch_time"].max(initial=0))
        told_of = records["action"] == Action.PENDING
        pending = np.empty(int(told_of.sum()), GROUP)
        pending["segment"] = np.repeat(segments["segment"], np.array([*map(len, blocks)], np.int64))[told_of]
        for name, field_ in (("queue_id",) * 2, ("group",) * 2, ("pending", "check_times"), ("oldest", "due")):
            pending[name] = records[field_][told_of]
        return cls(records[~told_of], batch_time, pending), segments

    @cached_property
    def counts(self) -> dict[Action, int]:
        """Actions by kind; kinds that do not occur are left out."""
        kinds, counts = np.unique(self.records["action"], return_counts=True)
        return {Action(kind): int(count) for kind, count in zip(kinds, counts, strict=True)}

    def count(self, *kinds: Action) -> int:
        """Actions of these kinds."""
        return sum(self.counts.get(kind, 0) for kind in kinds)

    def only(self, *kinds: Action) -> Actions:
        """The actions of these kinds."""
        wanted = np.zeros(len(Action), bool)
        wanted[[*kinds]] = True
        return Actions(self.records[wanted[self.records["action"]]], self.batch_time)

    @property
    def need_bodies(self) -> bool:
        """True if any message is to be written with its body."""
        return self.count(*PUBLISHED, *KEPT) > 0

    @property
    def repeated(self) -> bool:
        """True if `half` has a second row that differs from one acted on only in its identity."""
        return bool(self.records["repeated"].any())

    def ranges(self, segment_size: int, most: int) -> list[Box]:
        """Boxes that contain the actions: at most one per segment."""
        order = np.lexsort((self.records["offset"], self.records["queue_id"]))
        queue_id, offset = self.records["queue_id"][order], self.records["offset"][order]
        segment = offset // segment_size
        last = np.flatnonzero((np.diff(queue_id) != 0) | (np.diff(segment) != 0))
        starts = np.concatenate([[0], last + 1]) if len(order) else last
        ends = np.concatenate([last, [len(order) - 1]]) if len(order) else last
        spans = zip(queue_id[starts].tolist(), offset[starts].tolist(), offset[ends].tolist(), strict=True)
        return merge_ranges((Range(*span) for span in spans), most)

    def columns(self, names: Iterable[str]) -> dict[str, NDArray[Any]]:
        """Some fields as contiguous arrays."""
        return {name: np.ascontiguousarray(self.records[name]) for name in names}
