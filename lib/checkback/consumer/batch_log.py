"""The complete batches in order, as the table `batches` has them, followed commit by commit.

A batch's row is its last commit, so a consumer that reads the rows of these batches only never sees half of one.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from checkback.consumer.batch_listing import BatchListing, ListedBatch
from checkback.consumer.position import BatchKey, Position
from checkback.consumer.unread_batches import UnreadBatches, passed
from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.lease import boot_time
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.followed_log import FollowedLog
from checkback.storage.log.commit_reader import actions_of_kind
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.timestamps import time_of

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.tables import Tables

_TABLE = "batches"
#: newest batches that stay by themselves: others become runs
_ALONE = 4096
#: Time after which a log in an object store is listed for new versions (s): the next one may have been cleaned up.
_LIST_S = 60.0
#: attempts at reading while VACUUM deletes the files that were listed
_ATTEMPTS = 5


class BatchLog:
    """The batches in the order in which a consumer reads them.

    Those that are consumed already are left out, and old ones are made runs, so memory depends on what is unread. The
    index of a batch stays the same until `refresh` rereads the table. ``listing`` changes when batches that were
    listed are gone, as after a restore. Not thread-safe: `refresh` is called by one thread; what is there can be read
    by others.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.place = tables.location(_TABLE)
        self._log = FollowedLog(tables, _TABLE)
        self._version = -1
        self._listed = boot_time()
        self._changed_at = 0
        #: number of batches after which the table is reread: what is consumed by then is left out
        self._most = _ALONE
        self.listed = BatchListing()
        self.listing = 0

    @property
    def batches(self) -> list[ListedBatch]:
        """All of them."""
        return self.listed.batches

    def __len__(self) -> int:
        """Number of batches and runs."""
        return len(self.batches)

    @property
    def is_full(self) -> bool:
        """True if `refresh` rereads the table: what is consumed by now is left out then."""
        return len(self.batches) > self._most

    def another(self) -> BatchLog:
        """A log with all batches, of the same table. Raises StorageError."""
        found = BatchLog(self._tables)
        found.refresh()
        return found

    def apart(self, run: ListedBatch) -> list[ListedBatch]:
        """The batches of a run in order, as far as the table has them apart. Raises StorageError."""
        opened = self._log.open()
        within = (run.first_time, run.key.batch_time)
        first, last = map(time_of, within)
        files = [] if opened is None else opened[0].data_files({"batch_time": (first, last)})
        with reading(self.place):
            rows = UnreadBatches(self.place, Position(), [(file.path, file.size) for file in files], within).read()
        found = [batch for batch in _listed(rows) if batch.key.application == run.key.application]
        return sorted(batch for batch in found if run.of(batch.key.batch_id, batch.key.batch_time))

    def open(self) -> None:
        """Open the log, as the first `refresh` does: in an object store by a dozen requests. Raises StorageError."""
        if self._version < 0:
            self._log.open()

    def refresh(self, floor: Position | None = None) -> bool:
        """Read the rows of new batches; True if there are any, or some are gone. Raises StorageError.

        ``floor``: what it has consumed need not be read; None = all batches are needed. Batches that an earlier call
        has left out are read if they are needed now.
        """
        floor = floor or Position()
        lower = not floor.covers(self.listed.floor)
        before = self.listed, len(self.batches)
        try:
            if self._version >= 0 and not lower and not self._is_new():
                return False
        except OSError as error:
            raise StorageError(f"the table's log cannot be read: {error}", self.place) from error
        looked, changed_at = boot_time(), self._changes()
        opened = self._log.open()
        if opened is None:
            return False
        log, reopened = opened
        if reopened or lower or self._version < 0 or self.is_full:
            self._reread(log, floor)
        else:
            self._follow(log, floor)
        self._log.seen()
        self._listed, self._changed_at = looked, changed_at
        return (self.listed, len(self.batches)) != before

    def _follow(self, log: DeltaLog, floor: Position) -> None:
        newest = log.version()
        try:
            for version in range(self._version + 1, newest + 1):
                with reading(self.place, unreadable, but=(FileNotFoundError,)):
                    added = [
                        (unquote(each["path"]), int(each["size"]))
                        for each in actions_of_kind(commit_file(self.place, version), "add")
                        if each.get("dataChange", True)
                    ]
                rows = UnreadBatches(self.place, floor, [(f"{self.place}/{name}", size) for name, size in added])
                # A run is made of batches that are known.
                self.listed.extend(batch for batch in _listed(rows.read()) if batch.first is None)
                self._version = version
        except FileNotFoundError:  # cleaned up, or compacted
            self._reread(log, floor)

    def _is_new(self) -> bool:
        """True if there may be new versions. One request, or two looks at the folder.

        The folder's time alone does not do: it has ticks, of up to 2 s, and two changes of one tick look alike.
        """
        if not is_registered(self.place):
            if self._changed_at != self._changes():
                return True
        elif boot_time() >= self._listed + _LIST_S:
            return True
        return table_files.exists(commit_file(self.place, self._version + 1))

    def _changes(self) -> int:
        """When the log's folder was changed; 0 if that is not known."""
        with suppress(OSError):
            return 0 if is_registered(self.place) else os.stat(f"{self.place}/{LOG}").st_mtime_ns
        return 0

    def _reread(self, log: DeltaLog, floor: Position) -> None:
        for _ in range(_ATTEMPTS):
            version = log.version()
            with suppress(FileNotFoundError):  # VACUUM deletes a file that was listed
                files = [file for file in log.data_files() if not passed(floor, file.spans, file.without_nulls)]
                unread = UnreadBatches(self.place, floor, [(file.path, file.size) for file in files])
                found = _listed(unread.read(_ALONE))
                self._version = version
                self._list_again(found, floor)
                return
        raise StorageError("a file of the table is missing", self.place, "restore it")

    def _list_again(self, found: Sequence[ListedBatch], floor: Position | None = None) -> None:
        """All batches that there are now, apart from those that ``floor`` has."""
        listed = BatchListing(floor)
        listed.extend(found)
        known = self.batches
        self._most = len(listed.batches) + _ALONE
        self.listed = listed  # no other thread sees a part of it
        if not all(listed.floor.has_batch(batch.key) or listed.index_of(batch.key) is not None for batch in known):
            self.listing += 1


def _listed(rows: pa.Table) -> list[ListedBatch]:
    finished = pc.coalesce(rows.column("finished_at"), rows.column("batch_time"))
    first_times = pc.coalesce(rows.column("first_batch_time"), rows.column("batch_time"))
    columns: list[Any] = [
        pc.fill_null(rows.column("application"), "").to_pylist(),
        rows.column("batch_id").to_pylist(),
        _ms(rows.column("batch_time")),
        _ms(finished),
        rows.column("table_versions").to_pylist(),
        rows.column("first_batch_id").to_pylist(),
        _ms(first_times),
    ]
    same: dict[Hashable, Any] = {}  # there may be many batches, of few applications and few sets of tables

    def shared(value: Hashable) -> Any:
        return same.setdefault(value, value)

    return [
        ListedBatch(
            BatchKey(shared(application), batch_id, time),
            done,
            shared(frozenset(dict(wrote))) if wrote else None,
            tuple((shared(name), version) for name, version in wrote or () if _of_topic(name, version)),
            None if first_id is None else (first_id, first_time),
        )
        for application, batch_id, time, done, wrote, first_id, first_time in zip(*columns, strict=True)
    ]


def _of_topic(name: str, version: int) -> bool:
    """True for the version of a topic's table, if it is known."""
    return version >= 0 and name.startswith(TOPIC_PREFIX)


def _ms(times: pa.ChunkedArray) -> list[int]:
    found: list[int] = (times.cast(pa.int64()).to_numpy() // 1000).tolist()
    return found
