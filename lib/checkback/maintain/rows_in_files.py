"""Retention by files: those of which all rows go leave the table whole, by a commit without a rewrite.

Mixed ones are rewritten once half of their rows are to go. Each commit is complete in itself, so a run that breaks off
is continued by the next one. Memory: the keys of some million rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkback.maintain import bodies_in_files
from checkback.maintain.compaction import rewritten, rows_of, write_rows
from checkback.maintain.missed_messages import MissedMessages
from checkback.maintain.retained_rows import (
    FOLLOWING,
    FileGroup,
    Removed,
    at,
    columns_of_group,
    keyed,
    time_column,
    until,
)
from checkback.messages.limits import MS_MAX
from checkback.reconcile.ended_transactions import KEY, last_of_queues
from checkback.reconcile.publish.published_notes import waits
from checkback.storage.batch_runs import runs_of
from checkback.storage.horizon import HORIZON, never_back, versions_of, with_missed
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.queue_owners import operators_queues, owners_of
from checkback.storage.queue_owners import versions_of as owner_versions
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema
from checkback.storage.timestamps import EPOCH, ms_of, time_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from checkback.maintain.retained_rows import Ranges
    from checkback.reconcile.ended_transactions import Mask
    from checkback.storage.log.snapshot_files import DataFile
    from checkback.storage.tables import Tables

#: rows that are looked at together
_TOGETHER = 2_000_000


@dataclass(frozen=True)
class RowsInFiles:
    """`RetainedRows` of tables in folders and object stores. ``dry_run``: only count.

    ``going``: in a dry run the files of `half` that would be removed or rewritten.
    """

    tables: Tables
    dry_run: bool
    removed: dict[str, Removed] = field(default_factory=dict)
    going: set[str] = field(default_factory=set)

    def last_batch(self, before: int | None = None) -> int | None:
        """See RetainedRows."""
        if before is None:
            times = [file.spans["batch_time"][1] for file in self._files("batches") if "batch_time" in file.spans]
            return ms_of(max(times)) if times else None
        files = self.tables.log("batches").data_files({"batch_time": (EPOCH, time_of(before))})
        times = self._rows("batches", files, ("batch_time",)).column("batch_time")
        last = pc.max(times.filter(pc.less_equal(times, at(before)))).as_py()
        return None if last is None else ms_of(last)

    def groups(self, name: str, before: int) -> Iterator[FileGroup]:
        """See RetainedRows."""
        return self.grouped(name, self.tables.open_log(name).data_files(until(name, before)))

    def grouped(self, name: str, those: Iterable[DataFile]) -> Iterator[FileGroup]:
        """These files, the oldest first, some million rows together."""
        time = time_column(name)
        files: list[DataFile] = []
        rows = 0
        for file in sorted(those, key=lambda file: file.spans.get(time, ())):
            if files and rows + (file.rows or _TOGETHER) > _TOGETHER:
                yield self._group(name, files)
                files, rows = [], 0
            files.append(file)
            rows += file.rows or _TOGETHER
        if files:
            yield self._group(name, files)

    def _group(self, name: str, files: Sequence[DataFile]) -> FileGroup:
        # One by one: of `rejected`, whose rows may have megabytes each, only the KEY stays.
        parts = [keyed(name, rows_of(file.path, name, columns_of_group(name))) for file in files]
        return FileGroup(files, [part.num_rows for part in parts], pa.concat_tables(parts))

    def rows(self, name: str, columns: Sequence[str], ranges: Ranges | None = None) -> pa.Table:
        """See RetainedRows."""
        files = self._files(name)
        return self._rows(name, files if ranges is None else _within(files, ranges), columns)

    def halves(self, ranges: Ranges, columns: Sequence[str]) -> tuple[pa.Table, pa.Table]:
        """See RetainedRows."""
        files = _within(self._files("half"), ranges)
        left, going = (
            self._rows("half", [file for file in files if (file.path in self.going) is gone], columns)
            for gone in (False, True)
        )
        return left, going

    def least_since(self, since: int, ranges: Ranges) -> dict[int, int]:
        """See RetainedRows."""
        log = self.tables.log("half")
        owned = owners_of(owner_versions(log, ranges))
        of_files = {queue: span for queue, span in ranges.items() if queue not in owned}
        if not of_files:
            return {}
        files = _within(log.data_files({"store_timestamp": (time_of(since), time_of(MS_MAX))}), of_files)
        later = self._rows("half", files, (*KEY, "store_timestamp"))
        later = later.filter(pc.greater_equal(later.column("store_timestamp"), at(since)))
        least = later.group_by("queue_id").aggregate([("queue_offset", "min")])
        found = zip(*(least.column(name).to_pylist() for name in ("queue_id", "queue_offset_min")), strict=True)
        return {queue: offset for queue, offset in found if queue in of_files}

    def published_since(self, name: str, since: int, messages: pa.Table) -> pa.Table:
        """See RetainedRows."""
        key = messages.column_names
        offsets = pc.min_max(messages.column("half_queue_offset")).as_py()
        within = {"published_at": (time_of(since), time_of(MS_MAX))}
        if offsets["min"] is not None:
            within["half_queue_offset"] = offsets["min"], offsets["max"]
        files = self.tables.log(name).data_files(within)
        found = (self._rows(name, [file], key).join(messages, key, join_type="left semi") for file in files)
        return pa.concat_tables([messages.slice(0, 0), *found])

    def resumed(self, queue: int) -> pa.Table:
        """See RetainedRows."""
        log = self.tables.log("half")
        queues = sorted({queue} | operators_queues(log))
        files = log.data_files({"queue_id": (queues[0], queues[-1])})
        halves = self._rows("half", files, (*KEY, "properties"))
        return halves.filter(pc.is_in(halves.column("queue_id"), pa.array(queues, pa.int32())))

    def waits(self, rows: pa.Table) -> pa.Array:
        """See RetainedRows."""
        return waits(None, self.tables, rows)

    def remove(self, name: str, group: FileGroup, gone: Mask, horizon: int) -> None:
        """See RetainedRows: from each file where that is worth a rewrite."""
        log, place, done = self.tables.open_log(name), self.tables.location(name), self._done(name)
        files: list[DataFile] = []
        left: dict[str, pa.Array] = {}
        rows = size = 0
        for file, mask in zip(group.files, np.split(gone, np.cumsum(group.sizes)[:-1]), strict=True):
            number = int(mask.sum())
            if 2 * number < max(1, len(mask)):
                mask[:] = False
                continue
            files.append(file)
            if number < len(mask):
                left[file.path.removeprefix(f"{place}/")] = pa.array(~mask)
            rows, size = rows + number, size + file.size * number // len(mask)
        if self.dry_run:
            done.rows, done.bytes = done.rows + rows, done.bytes + size
            if name == "half":
                self.going.update(file.path for file in files)
        if not files or self.dry_run:
            return
        old = [file.path.removeprefix(f"{place}/") for file in files]
        new = [file for path, mask in left.items() for file in rewritten(name, self.tables.root, [path], {path: mask})]
        last = last_of_queues(group.rows, gone) if name == "half" else {}
        versions = never_back(log, versions_of(horizon, {queue: offset + 1 for queue, offset in last.items()}))
        if name in (*FOLLOWING, "ticks"):
            self._say(horizon)
        topic = name.removeprefix(TOPIC_PREFIX)
        if topic != name:
            versions |= with_missed(log, self._missed.of(topic, files, horizon))
        if log.remove(old, new, versions, changes=topic != name):
            done.rows, done.bytes = done.rows + rows, done.bytes + size

    def make_runs(self, horizon: int) -> None:
        """See RetainedRows."""
        name, log = "batches", self.tables.open_log("batches")
        done = self._done(name)
        for file in log.data_files(until(name, horizon)):
            rows = rows_of(file.path, name)
            begun, finished = (pc.less(rows.column(each), at(horizon)) for each in ("batch_time", "finished_at"))
            old = pc.fill_null(pc.and_(begun, finished), False)
            left = pa.concat_tables([runs_of(rows.filter(old)), rows.filter(pc.invert(old))])
            number = len(rows) - len(left)
            if 2 * number < len(rows):
                continue
            if not self.dry_run:
                path = file.path.removeprefix(f"{self.tables.location(name)}/")
                new = write_rows(name, self.tables.root, left)
                self._say(horizon)
                if not log.remove([path], new, never_back(log, versions_of(horizon, {})), changes=False):
                    continue
            done.rows, done.bytes = done.rows + number, done.bytes + file.size * number // len(rows)

    def empty_bodies(self, before: int, over: Callable[[pa.Table], Mask]) -> None:
        """See RetainedRows."""
        files = self.tables.log("half").data_files(until("half", before))
        left = [file for file in files if file.path not in self.going]
        done, found = self._done("half"), bodies_in_files.empty
        for count, size in found(self.tables, left, partial(self.grouped, "half"), before, over, self.dry_run):
            done.bodies, done.of_bodies = done.bodies + count, done.of_bodies + size

    def _say(self, horizon: int) -> None:
        """Have `half` say the horizon, by which the other tables are read, though it may have lost no row itself."""
        log = self.tables.open_log("half")
        said = log.versions([HORIZON])
        if (said[HORIZON] or 0) < horizon:
            log.commit_after([], said, {HORIZON: horizon})

    @cached_property
    def _missed(self) -> MissedMessages:
        return MissedMessages(self.tables)

    def _done(self, name: str) -> Removed:
        return self.removed.setdefault(name, Removed())

    def _files(self, name: str) -> list[DataFile]:
        return self.tables.log(name).data_files() if DeltaLog.exists(self.tables.location(name)) else []

    def _rows(self, name: str, files: Sequence[DataFile], columns: Sequence[str]) -> pa.Table:
        schema = pa.schema([arrow_schema(name).field(column) for column in columns])
        return pa.concat_tables([schema.empty_table(), *(rows_of(file.path, name, columns) for file in files)])


def _within(files: Iterable[DataFile], ranges: Ranges) -> list[DataFile]:
    """Those files that, by their statistics, may have rows in these ranges of offsets, by queue."""

    def may(file: DataFile) -> bool:
        queues, offsets = file.spans.get("queue_id"), file.spans.get("queue_offset")
        return (
            queues is None
            or offsets is None
            or any(
                queues[0] <= queue <= queues[1] and first <= offsets[1] and offsets[0] <= last
                for queue, (first, last) in ranges.items()
            )
        )

    return [file for file in files if may(file)]
