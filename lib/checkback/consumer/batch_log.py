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
import pyarrow.parquet as pq

from checkback.consumer.batch_listing import BatchListing, ListedBatch
from checkback.consumer.position import BatchKey
from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.lease import boot_time
from checkback.storage.files.object_store import is_registered
from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.followed_log import FollowedLog
from checkback.storage.log.commit_reader import actions_of_kind
from checkback.storage.log.delta_errors import unreadable
from checkback.storage.schemas import TOPIC_PREFIX, arrow_schema, in_schema
from checkback.storage.valid_texts import python_values

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from checkback.storage.log.delta_log import DeltaLog
    from checkback.storage.tables import Tables

_TABLE = "batches"
_COLUMNS = ("application", "batch_id", "batch_time", "finished_at", "table_versions")
_SCHEMA = pa.schema([arrow_schema(_TABLE).field(column) for column in _COLUMNS])
#: Time after which a log in an object store is listed for new versions (s): the next one may have been cleaned up.
_LIST_S = 60.0
#: attempts at reading while VACUUM deletes the files that were listed
_ATTEMPTS = 5


class BatchLog:
    """The batches in the order in which a consumer reads them.

    The index of a batch stays the same until batches that were listed are gone, as after a restore: all are listed anew
    then, and ``listing`` is the next number. Not thread-safe: `refresh` is called by one thread; what is there can be
    read by others.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.place = tables.location(_TABLE)
        self._log = FollowedLog(tables, _TABLE)
        self._version = -1
        self._listed = boot_time()
        self._changed_at = 0
        self.listed = BatchListing()
        self.listing = 0

    @property
    def batches(self) -> list[ListedBatch]:
        """All of them."""
        return self.listed.batches

    def __len__(self) -> int:
        """Number of batches."""
        return len(self.batches)

    def open(self) -> None:
        """Open the log, as the first `refresh` does: in an object store by a dozen requests. Raises StorageError."""
        if self._version < 0:
            self._log.open()

    def refresh(self) -> bool:
        """Read the rows of new batches; True if there are any, or some are gone. Raises StorageError."""
        before = self.listing, len(self.batches)
        try:
            if self._version >= 0 and not self._is_new():
                return False
        except OSError as error:
            raise StorageError(f"the table's log cannot be read: {error}", self.place) from error
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
        return (self.listing, len(self.batches)) > before

    def _follow(self, log: DeltaLog) -> None:
        newest = log.version()
        try:
            for version in range(self._version + 1, newest + 1):
                with reading(self.place, unreadable, but=(FileNotFoundError,)):
                    added = [
                        (unquote(each["path"]), int(each["size"]))
                        for each in actions_of_kind(commit_file(self.place, version), "add")
                        if each.get("dataChange", True)
                    ]
                self.listed.extend(self._rows([(f"{self.place}/{name}", size) for name, size in added]))
                self._version = version
        except FileNotFoundError:  # cleaned up, or compacted
            self._reread(log)

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

    def _reread(self, log: DeltaLog) -> None:
        for _ in range(_ATTEMPTS):
            version = log.version()
            with suppress(FileNotFoundError):  # VACUUM deletes a file that was listed
                found = self._rows([(file.path, file.size) for file in log.data_files()])
                self._version = version
                self._listed_anew(found)
                return
        raise StorageError("a file of the table is missing", self.place, "restore it")

    def _listed_anew(self, found: Sequence[ListedBatch]) -> None:
        """All batches that there are now."""
        there = {batch.key for batch in found}
        if all(batch.key in there for batch in self.batches):
            self.listed.extend(found)
            return
        listed = BatchListing()
        listed.extend(found)
        self.listed = listed  # no other thread sees a part of it
        self.listing += 1

    def _rows(self, files: Sequence[tuple[str, int]]) -> list[ListedBatch]:
        """Those of files, paths and sizes in bytes."""
        found: list[ListedBatch] = []
        with reading(self.place, but=(FileNotFoundError,)):
            for source in table_files.sources(files):
                read = pq.read_table(source, columns=_SCHEMA.names, partitioning=None, coerce_int96_timestamp_unit="us")
                found += _listed(python_values(in_schema(read, _SCHEMA)))
        return found


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
            BatchKey(shared(application), batch_id, time),
            done,
            shared(frozenset(dict(wrote))) if wrote else None,
            tuple((shared(name), version) for name, version in wrote or () if _of_topic(name, version)),
        )
        for application, batch_id, time, done, wrote in zip(*columns, strict=True)
    ]


def _of_topic(name: str, version: int) -> bool:
    """True for the version of a topic's table, if it is known."""
    return version >= 0 and name.startswith(TOPIC_PREFIX)


def _ms(times: pa.ChunkedArray) -> list[int]:
    found: list[int] = (times.cast(pa.int64()).to_numpy() // 1000).tolist()
    return found
