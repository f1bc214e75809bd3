"""The complete batches in order, as the table `batches` has them, followed commit by commit.

A batch's row is its last commit, so a consumer that reads the rows of these batches only never sees half of one.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left, bisect_right
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkback.consumer.position import BEFORE_BATCHES, BatchKey, Position, last_of
from checkback.errors import StorageError
from checkback.storage import table_files
from checkback.storage.commit_reader import actions_of_kind
from checkback.storage.followed_log import FollowedLog
from checkback.storage.fsync import LOG
from checkback.storage.lease import boot_time
from checkback.storage.object_store import is_registered
from checkback.storage.schemas import TOPIC_PREFIX
from checkback.storage.timestamps import python_times

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from checkback.storage.delta_log import DeltaLog
    from checkback.storage.tables import Tables

_TABLE = "batches"
_COLUMNS = ["application", "batch_id", "batch_time", "finished_at", "table_versions"]
#: Time after which a log in an object store is listed for new versions (s): the next one may have been cleaned up.
_LIST_S = 60.0
#: attempts at reading while VACUUM deletes the files that were listed
_ATTEMPTS = 5


class ListedBatch(NamedTuple):
    """A batch, and the tables that it wrote; None = not known. ``versions``: theirs, until it is listed."""

    key: BatchKey
    finished_at: int
    tables: frozenset[str] | None
    versions: tuple[tuple[str, int], ...] = ()


class _Listing:
    """Batches in order; only appended to. ``latest``: the latest time up to each batch of its run.

    ``needed``: by table the indices of batches and the least version of the table that these and all later ones name,
    ascending. Where a later batch names a smaller version, the table was made anew, or restored, before it.
    """

    def __init__(self) -> None:
        self.batches: list[ListedBatch] = []
        self.index: dict[BatchKey, int] = {}
        self.begins: list[int] = []
        self.latest: list[int] = []
        self.needed: dict[str, tuple[array[int], array[int]]] = {}

    def append(self, batch: ListedBatch) -> None:
        at, time = len(self.batches), batch.key.batch_time
        last = self.batches[-1].key if self.batches else None
        if last is None or last.application != batch.key.application or last.batch_id > batch.key.batch_id:
            self.begins = [*self.begins, at]
        else:
            time = max(time, self.latest[-1])
        self.index[batch.key] = at
        self.latest.append(time)
        self.batches.append(batch._replace(versions=()))
        for name, version in batch.versions:
            places, versions = self.needed.get(name) or (array("q"), array("q"))
            kept = bisect_right(versions, version)
            if kept < len(versions):  # copies: another thread may read them
                places, versions = places[:kept], versions[:kept]
            places.append(at)
            versions.append(version)
            self.needed[name] = places, versions

    def extend(self, found: Iterable[ListedBatch]) -> None:
        """Append those that are new, application by application."""
        new = {
            batch.key: batch for batch in sorted(found, key=lambda one: one.finished_at) if batch.key not in self.index
        }
        if not new:
            return
        if not self.batches:
            first = min(key.batch_time for key in new)
            self.append(ListedBatch(BatchKey(BEFORE_BATCHES, -1, first), first, None))
        begun: dict[str, int] = {}
        for batch in new.values():
            begun.setdefault(batch.key.application, batch.finished_at)
        for batch in sorted(new.values(), key=lambda one: (begun[one.key.application], one.key)):
            self.append(batch)

    def runs(self) -> Iterator[tuple[str, int, int]]:
        """Consecutive batches of one application: that, the first index, and the last one + 1."""
        for first, end in zip(self.begins, [*self.begins[1:], len(self.batches)], strict=False):
            yield self.batches[first].key.application, first, end

    def end(self, batch_id: int, first: int, end: int) -> int:
        """Behind the batches of a run with ids up to this one."""
        return bisect_right(self.batches, batch_id, first, end, key=lambda batch: batch.key.batch_id)


class BatchLog:
    """The batches in the order in which a consumer reads them.

    Index 0 stands for the messages before the first batch, of a release that had no table `batches`. The index of a
    batch stays the same until batches that were listed are gone, as after a restore: all are listed anew then, and
    ``listing`` is the next number. Not thread-safe: `refresh` is called by one thread; what is there can be read by
    others.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.place = tables.location(_TABLE)
        self._log = FollowedLog(tables, _TABLE)
        self._version = -1
        self._listed = boot_time()
        self._changed_at = 0
        self._all = _Listing()
        self.listing = 0

    @property
    def batches(self) -> list[ListedBatch]:
        """All of them."""
        return self._all.batches

    def __len__(self) -> int:
        """Number of batches, index 0 included; 0 if there is no batch yet."""
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

    def index_of(self, key: BatchKey) -> int | None:
        """The batch's index; None if it is not there."""
        return self._all.index.get(key)

    def first_behind(self, table: str, version: int, created_at: int) -> tuple[int, int] | None:
        """Index of the first batch whose rows a table of this version may lack, and the version that has them.

        None: it has those of all. ``created_at``: when the table was made (ms); what was in its place before does not
        matter, nor does where a batch's version is not known.
        """
        listed = self._all
        places, versions = listed.needed.get(table) or (array("q"), array("q"))
        old = bisect_left(places, created_at, key=lambda at: listed.batches[at].finished_at)
        at = max(old, bisect_right(versions, version))
        return None if at >= len(places) else (places[at - 1] + 1 if at else 0, versions[at])

    def consumed_before(self, index: int) -> Position:
        """The position before the batch with this index: all earlier ones are consumed."""
        listed, last = self._all, dict[str, BatchKey]()
        for application, first, end in listed.runs():
            if first < index:
                at = min(end, index) - 1
                last = last_of([BatchKey(application, listed.batches[at].key.batch_id, listed.latest[at])], last)
        latest = listed.batches[index - 1].key.batch_time if index > 0 else None
        return Position().after_batches(last.values(), latest)

    def dated(self, position: Position) -> Position:
        """The position with the times that the release before has not kept.

        If the batches that it names are there, those up to them are consumed; else the time up to which all was.
        """
        until = position.settled_at
        lacking = position.consumed.keys() - position.times.keys() - {BEFORE_BATCHES}
        if not lacking or until is None:
            return position
        listed = self._all
        newest = next((name for name, *_ in reversed(list(listed.runs())) if name in position.consumed), "")
        same = self._has(newest, position.consumed.get(newest, 0), until)
        times = {name: self._latest(name, position.consumed[name]) if same else None for name in lacking}
        dated = {name: until if time is None else time for name, time in times.items()}
        return replace(position, times={**position.times, **dated})

    def lacks(self, position: Position) -> bool:
        """True if a batch that the position names is gone: the table was restored from a backup."""
        return any(
            not self._has(name, last, position.times.get(name))
            for name, last in position.consumed.items()
            if name != BEFORE_BATCHES
        )

    def _has(self, application: str, batch_id: int, until: int | None) -> bool:
        """True if there is such a batch, of a time up to ``until`` (None: of any)."""
        listed = self._all
        for name, first, end in listed.runs():
            if name == application:
                at = listed.end(batch_id - 1, first, end)
                if at < end:
                    key = listed.batches[at].key
                    if key.batch_id == batch_id and (until is None or key.batch_time <= until):
                        return True
        return False

    def _latest(self, application: str, batch_id: int) -> int | None:
        """The latest time of the application's batches up to this id; None if there is none.

        The release before took of the batches whose application is not known the first one with an id.
        """
        listed, found, seen = self._all, list[int](), set[int]()
        for name, first, end in listed.runs():
            behind = listed.end(batch_id, first, end) if name == application else first
            if application and behind > first:
                found.append(listed.latest[behind - 1])
            for batch in () if application else listed.batches[first:behind]:
                if batch.key.batch_id not in seen:
                    found.append(batch.key.batch_time)
                seen.add(batch.key.batch_id)
        return max(found, default=None)

    def first_since(self, time: int) -> int:
        """Index of the first batch of a time (ms) or later; the number of batches if there is none.

        0 if the time is before the first batch: nobody knows how old the messages before it are.
        """
        if self.batches and time < self.batches[0].key.batch_time:
            return 0
        return next((at for at, batch in enumerate(self.batches) if at and batch.key.batch_time >= time), len(self))

    def first_unconsumed(self, position: Position) -> int:
        """Index of the first batch that is not consumed whole; the number of batches if there is none."""
        listed = self._all
        for application, first, end in listed.runs():
            last, until = position.consumed.get(application), position.times.get(application)
            if last is None:
                return first
            at = listed.end(last, first, end)
            if until is not None:
                at = bisect_right(listed.latest, until, first, at)
            if at < end:
                return at
        return len(self)

    def _follow(self, log: DeltaLog) -> None:
        newest = log.version()
        try:
            for version in range(self._version + 1, newest + 1):
                path = f"{self.place}/{LOG}/{version:020}.json"
                added = [
                    (unquote(each["path"]), int(each["size"]))
                    for each in actions_of_kind(path, "add")
                    if each.get("dataChange", True)
                ]
                self._all.extend(self._rows([(f"{self.place}/{name}", size) for name, size in added]))
                self._version = version
        except FileNotFoundError:  # cleaned up, or compacted
            self._reread(log)
        except (OSError, ValueError, KeyError) as error:
            raise StorageError("the table's log cannot be read", self.place) from error

    def _is_new(self) -> bool:
        """True if there may be new versions. One request, or two looks at the folder.

        The folder's time alone does not do: it has ticks, of up to 2 s, and two changes of one tick look alike.
        """
        if not is_registered(self.place):
            if self._changed_at != self._changes():
                return True
        elif boot_time() >= self._listed + _LIST_S:
            return True
        return table_files.exists(f"{self.place}/{LOG}/{self._version + 1:020}.json")

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
        if any(batch.key not in there for batch in self.batches[1:]):
            self._all = _Listing()
            self.listing += 1
        self._all.extend(found)

    def _rows(self, files: Sequence[tuple[str, int]]) -> list[ListedBatch]:
        """Those of files, paths and sizes in bytes."""
        found: list[ListedBatch] = []
        for source in table_files.sources(files):
            read = pq.read_table(source, columns=_COLUMNS, partitioning=None)
            found += _listed(python_times(read))
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
    found: list[int] = (times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_numpy() // 1000).tolist()
    return found
