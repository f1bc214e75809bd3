"""The complete batches in order, as the table `batches` has them, followed commit by commit.

A batch's row is its last commit, so a consumer that reads the rows of these batches only never sees half of one.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.consumer.position import BEFORE_BATCHES, BatchKey, Position
from checkback.errors import StorageError
from checkback.storage import table_files
from checkback.storage.commit_reader import actions_of_kind
from checkback.storage.followed_log import FollowedLog
from checkback.storage.fsync import LOG
from checkback.storage.lease import boot_time
from checkback.storage.object_store import is_registered
from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Sequence

    from checkback.storage.delta_log import DeltaLog
    from checkback.storage.tables import Tables

_TABLE = "batches"
_COLUMNS = ["application", "batch_id", "batch_time", "finished_at", "table_versions"]
#: Time after which a log in an object store is listed for new versions (s): the next one may have been cleaned up.
_LIST_S = 60.0
#: attempts at reading while VACUUM deletes the files that were listed
_ATTEMPTS = 5


class ListedBatch(NamedTuple):
    """A batch, and the tables that it wrote; None = not known."""

    key: BatchKey
    finished_at: int
    tables: frozenset[str] | None


class BatchLog:
    """The batches in the order in which a consumer reads them; the index of one never changes.

    Index 0 stands for the messages before the first batch, of a release that had no table `batches`. Not thread-safe:
    `refresh` is called by one thread; what is there can be read by others.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._place = tables.location(_TABLE)
        self._log = FollowedLog(tables, _TABLE)
        self._version = -1
        self._listed = boot_time()
        self._changed_at = 0
        self._known: dict[tuple[str, int], int] = {}
        self._begins: list[int] = []
        self.batches: list[ListedBatch] = []

    def __len__(self) -> int:
        """Number of batches, index 0 included; 0 if there is no batch yet."""
        return len(self.batches)

    def open(self) -> None:
        """Open the log, as the first `refresh` does: in an object store by a dozen requests. Raises StorageError."""
        if self._version < 0:
            self._log.open()

    def refresh(self) -> bool:
        """Read the rows of new batches; True if there are any. Raises StorageError."""
        before = len(self.batches)
        try:
            if self._version >= 0 and not self._is_new():
                return False
        except OSError as error:
            raise StorageError(f"the table's log cannot be read: {error}", self._place) from error
        looked, changed_at = boot_time(), self._changes()
        opened = self._log.open()
        if opened is None:
            return False
        log, anew = opened
        if anew or self._version < 0:
            self._reread(log)
        else:
            self._follow(log)
        self._log.seen()
        self._listed, self._changed_at = looked, changed_at
        return len(self.batches) > before

    def index_of(self, key: BatchKey) -> int | None:
        """The batch's index; None if it is not there."""
        return self._known.get((key.application, key.batch_id))

    def consumed_before(self, index: int) -> Position:
        """The position before the batch with this index: all earlier ones are consumed."""
        last: dict[str, int] = {}
        for first, end in self._runs():
            if first < index:
                key = self.batches[min(end, index) - 1].key
                last[key.application] = max(key.batch_id, last.get(key.application, key.batch_id))
        latest = self.batches[index - 1].key.batch_time if index > 0 else None
        return Position().after_batches(last, latest)

    def first_since(self, time: int) -> int:
        """Index of the first batch of a time (ms) or later; the number of batches if there is none.

        0 if the time is before the first batch: nobody knows how old the messages before it are.
        """
        if self.batches and time < self.batches[0].key.batch_time:
            return 0
        return next((at for at, batch in enumerate(self.batches) if at and batch.key.batch_time >= time), len(self))

    def first_unconsumed(self, position: Position) -> int:
        """Index of the first batch that is not consumed whole; the number of batches if there is none."""
        for first, end in self._runs():
            last = position.consumed.get(self.batches[first].key.application)
            if last is None:
                return first
            at = bisect_right(self.batches, last, first, end, key=lambda batch: batch.key.batch_id)
            if at < end:
                return at
        return len(self)

    def _runs(self) -> Iterator[tuple[int, int]]:
        """First and last index + 1 of consecutive batches of one application."""
        return zip(self._begins, [*self._begins[1:], len(self.batches)], strict=False)

    def _follow(self, log: DeltaLog) -> None:
        newest = log.version()
        try:
            for version in range(self._version + 1, newest + 1):
                path = f"{self._place}/{LOG}/{version:020}.json"
                added = [
                    (unquote(each["path"]), int(each["size"]))
                    for each in actions_of_kind(path, "add")
                    if each.get("dataChange", True)
                ]
                self._extend(self._rows([(f"{self._place}/{name}", size) for name, size in added]))
                self._version = version
        except FileNotFoundError:  # cleaned up, or compacted
            self._reread(log)
        except (OSError, ValueError, KeyError) as error:
            raise StorageError("the table's log cannot be read", self._place) from error

    def _is_new(self) -> bool:
        """True if there may be new versions. One request, or two looks at the folder.

        The folder's time alone does not do: it has ticks, of up to 2 s, and two changes of one tick look alike.
        """
        if not is_registered(self._place):
            if self._changed_at != self._changes():
                return True
        elif boot_time() >= self._listed + _LIST_S:
            return True
        return table_files.exists(f"{self._place}/{LOG}/{self._version + 1:020}.json")

    def _changes(self) -> int:
        """When the log's folder was changed; 0 if that is not known."""
        with suppress(OSError):
            return 0 if is_registered(self._place) else os.stat(f"{self._place}/{LOG}").st_mtime_ns
        return 0

    def _reread(self, log: DeltaLog) -> None:
        for _ in range(_ATTEMPTS):
            version = log.version()
            with suppress(FileNotFoundError):  # VACUUM deletes a file that was listed
                self._extend(self._rows([(file.path, file.size) for file in log.data_files()]))
                self._version = version
                return
        raise StorageError("a file of the table is missing", self._place, "restore it")

    def _rows(self, files: Sequence[tuple[str, int]]) -> list[ListedBatch]:
        """Those of files, paths and sizes in bytes."""
        found: list[ListedBatch] = []
        for source in table_files.sources(files):
            read = pq.read_table(source, columns=_COLUMNS, partitioning=None)
            found += _listed(python_times(read))
        return found

    def _extend(self, found: list[ListedBatch]) -> None:
        new: dict[tuple[str, int], ListedBatch] = {}
        for batch in sorted(found, key=lambda each: each.finished_at):
            key = batch.key.application, batch.key.batch_id
            if key not in self._known:
                new.setdefault(key, batch)
        if not new:
            return
        if not self.batches:
            first = min(batch.key.batch_time for batch in new.values())
            self._append(ListedBatch(BatchKey(BEFORE_BATCHES, -1, first), first, None))
        begun: dict[str, int] = {}
        for batch in new.values():
            begun.setdefault(batch.key.application, batch.finished_at)
        for batch in sorted(new.values(), key=lambda each: (begun[each.key.application], each.key[:2])):
            self._append(batch)

    def _append(self, batch: ListedBatch) -> None:
        index = len(self.batches)
        last = self.batches[-1].key if self.batches else None
        if last is None or last.application != batch.key.application or last.batch_id > batch.key.batch_id:
            self._begins = [*self._begins, index]
        self._known[batch.key.application, batch.key.batch_id] = index
        self.batches.append(batch)


def _listed(rows: pa.Table) -> list[ListedBatch]:
    rows = rows.filter(pc.and_(pc.is_valid(rows.column("batch_id")), pc.is_valid(rows.column("batch_time"))))
    finished = pc.coalesce(rows.column("finished_at"), rows.column("batch_time"))
    columns: list[Any] = [
        pc.fill_null(rows.column("application"), "").to_pylist(),
        rows.column("batch_id").to_pylist(),
        _ms(rows.column("batch_time")),
        _ms(finished),
        rows.column("table_versions").to_pylist(),
    ]
    same: dict[Hashable, Any] = {}  # there may be millions of batches, of few applications and few sets of tables

    def shared(value: Hashable) -> Any:
        return same.setdefault(value, value)

    return [
        ListedBatch(
            BatchKey(shared(application), batch_id, time), done, shared(frozenset(dict(wrote))) if wrote else None
        )
        for application, batch_id, time, done, wrote in zip(*columns, strict=True)
    ]


def _ms(times: pa.ChunkedArray) -> list[int]:
    found: list[int] = (times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000).tolist()
    return found
