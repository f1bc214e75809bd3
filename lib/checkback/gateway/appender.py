"""The gateway's writes to `half` and `op`: fencing epochs, appends, and rows as Arrow."""

from __future__ import annotations

import itertools
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from checkback.errors import FencedError, SettingsError, StorageError
from checkback.gateway.ownership import (
    claimed,
    epoch_app,
    epoch_of,
    fenced,
    position_app,
)
from checkback.messages.limits import LONG_MAX
from checkback.storage.files import table_files
from checkback.storage.files.fsync import UnflushedError
from checkback.storage.files.object_store import is_registered
from checkback.storage.half_restored import refuse_half_restored
from checkback.storage.log.delta_log import AlteredError, DeltaLog, UncommittedError
from checkback.storage.parquet.parquet_files import FileWriter
from checkback.storage.schemas import ERASED, arrow_schema
from checkback.storage.tables import Tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from checkback.messages.half import Half
    from checkback.messages.op import Op
    from checkback.settings import Storage
    from checkback.storage.parquet.parquet_files import ParquetFile

    #: from a look-up of versions to the versions that a claim sets besides the epochs
    Change = Callable[[Callable[[Iterable[str]], dict[str, int | None]]], Mapping[str, int]]

#: `source` of the gateway's ops: the producer itself.
SOURCE = "producer"
#: texts that become a column in one go
_PART = 20_000


class OutcomeUnknownError(StorageError):
    """The outcome of a commit cannot be determined: only a restart, which reads the table, can."""


def tables_of(storage: Storage) -> Tables:
    """The tables. Raises SettingsError if they need Spark as their writer."""
    tables = Tables.of(storage)
    fix = "give it a local folder or an object store (s3://, abfss://, gs://), or land from files or Kafka"
    if storage.catalog:
        raise SettingsError("the gateway writes without Spark, so in no catalog", "storage.catalog", fix)
    if storage.writer == "spark":
        raise SettingsError("the gateway writes without Spark", "storage.writer", "set it to auto")
    if not tables.by_files:
        raise SettingsError("the gateway writes tables in local folders and object stores only", "storage.root", fix)
    return tables


class Appender:
    """One table, some queues of which only this process writes. Blocking; for one thread at a time.

    Each queue is an appId of Delta's transaction identifiers (`ownership`). Its version is a fencing epoch, incremented
    at every start (`claim`), and a commit counter within it. The previous version is a precondition of every commit, so
    the writer of an older epoch is fenced at its next commit. The position of a journal is a version likewise: what it
    has is in the table exactly once.
    """

    def __init__(self, root: str, name: str, queues: Sequence[int], sync: bool = True) -> None:
        """Creates the table if it does not exist. ``sync``: fsync each commit. Raises StorageError, StateError."""
        self._root = root
        self._name = name
        self._sync = sync
        self.place = f"{root}/{name}"
        self._log = DeltaLog.created(name, self.place, sync)
        refuse_half_restored(root)  # not before only: a restore marks the place, and then looks for tables
        if not self._log.appendable():
            raise _altered(self.place)
        self._queues = queues
        self._versions: dict[str, int | None] = {}
        self._journal = ""
        #: of a commit whose outcome is not known
        self._doubtful: dict[str, int] = {}
        #: files of commits that were not made, but may be until the next one
        self._late: list[ParquetFile] = []

    @property
    def log(self) -> DeltaLog:
        """The table's log. Not thread-safe."""
        return self._log

    def table_id(self) -> str:
        """Delta's id of the table."""
        return self._log.table_id()

    def epoch(self) -> int:
        """The last epoch in which any of the queues was claimed; 0 = never."""
        return epoch_of(self._log.versions(map(epoch_app, self._queues)), self._queues)

    def versions(self, apps: Iterable[str]) -> dict[str, int | None]:
        """The versions of applications. Raises StorageError."""
        return self._log.versions(apps)

    def use(self, journal: int) -> int:
        """Commit the position of this journal with each append. Returns that which the table has."""
        self._journal = position_app(journal)
        self._versions = self._log.versions([self._journal])
        return self.position

    def without_journal(self) -> None:
        """Commit no position any more: the journal is drained."""
        self._versions.pop(self._journal, None)

    @property
    def position(self) -> int:
        """The journal's position up to which the table has its records."""
        return self._versions[self._journal] or 0

    def claim(self, epoch: int, change: Change | None = None) -> None:
        """Take ownership of the queues. Raises FencedError if a process that started later owns one.

        ``change``: given how to look up versions, those with which the queues change hands.
        """
        found: dict[str, int | None] = {}

        def look_up(apps: Iterable[str]) -> dict[str, int | None]:
            # What a change relies on must not change meanwhile either: another gateway may claim a queue given up.
            looked_up = self._log.versions(apps)
            found.update(looked_up)
            return looked_up

        while True:
            found.clear()
            look_up(map(epoch_app, self._queues))
            if epoch_of(found, self._queues) >= epoch:
                raise fenced(self.place)
            versions = claimed(epoch, self._queues)
            if change is not None:
                versions |= change(look_up)
            try:
                self._log.commit_after([], found, versions)
            except FencedError:
                continue  # a concurrent commit won; compare its epoch
            self._versions |= claimed(epoch, self._queues)
            return

    def append(self, *parts: pa.Table, position: int | None = None) -> None:
        """Commit the rows, a file for each part. ``position``: of the journal, once they are committed.

        Before `claim`, only the journal's position is a precondition.

        Raises FencedError if another gateway owns the queues now, AlteredError if the table can no longer be appended
        to, OutcomeUnknownError if it is unknown whether the rows were committed, and StorageError or OSError if nothing
        was committed, or if `settle` is to be called, with a journal, which still has the rows.
        """
        versions = {app: (version or 0) + 1 for app, version in self._versions.items()}
        if position is not None:
            versions[self._journal] = position
        files: list[ParquetFile] = []
        try:
            for rows in parts:
                with FileWriter(self._root, sync=self._sync) as writer:
                    writer.write(self._name, rows)
                    files += writer.close()
        except Exception:
            self._remove(files)
            raise
        # Outside the writer's context, which removes the files on an error: they may be committed by then.
        try:
            try:
                self._log.commit_after(files, self._versions, versions)
            except FencedError as error:
                self._remove(files)
                raise fenced(self.place) from error
            except AlteredError as error:
                self._remove(files)
                raise _altered(self.place) from error
            except UnflushedError:
                raise
            except UncommittedError:
                self._not_made(files)
                raise
            except StorageError as error:
                if not self._made(versions, error):
                    self._not_made(files)
                    raise
                self._log.flush()
        except UnflushedError as error:
            raise OutcomeUnknownError(error.what, error.where, error.fix) from error
        self._versions = {**versions}
        if self._late:
            self._remove(self._late)
            self._late = []

    def settle(self) -> None:
        """Find out whether the last commit was made, if that is not known: the position is then right again.

        Raises StorageError if the log cannot be read yet, and as `append` does.
        """
        if not self._doubtful:
            return
        if self._is_made(self._doubtful):
            try:
                self._log.flush()
            except UnflushedError as error:
                raise OutcomeUnknownError(error.what, error.where, error.fix) from error
            self._versions = {**self._doubtful}
        self._doubtful = {}

    def _not_made(self, files: Sequence[ParquetFile]) -> None:
        """Remove the files of a commit that was not made.

        A request to an object store that has failed may still be on its way: only once a later commit has been made
        does it come too late.
        """
        if is_registered(self.place):
            self._late += files
        else:
            self._remove(files)

    def _remove(self, files: Sequence[ParquetFile]) -> None:
        for file in files:
            with suppress(OSError):  # `maintain` removes what no commit names
                table_files.remove(f"{self.place}/{file.path}")

    def _made(self, versions: dict[str, int], error: StorageError) -> bool:
        """Did the commit succeed after all?"""
        try:
            return self._is_made(versions)
        except StorageError as unread:
            what = f"whether a commit was made is not known: {error.what}"
            fix = unread.fix or "repair the table's folder"
            if self._journal in versions:
                self._doubtful = versions
                raise StorageError(what, error.where, fix) from unread
            raise OutcomeUnknownError(what, error.where, f"{fix}, then start again") from unread

    def _is_made(self, versions: dict[str, int]) -> bool:
        """Has the table these versions? No other gateway writes them: its epoch differs."""
        found = self._log.versions(self._versions)
        if found not in (versions, self._versions):
            raise fenced(self.place)
        return found == versions


def claim(half: Appender, op: Appender, change: Change | None = None) -> None:
    """Take ownership of the queues in both tables: of concurrent starts, the one with the last epoch owns both.

    ``change``: as in `Appender.claim`, of `half`. Raises FencedError.
    """
    epoch = 1 + max(half.epoch(), op.epoch())
    half.claim(epoch, change)
    op.claim(epoch)


def half_rows(halves: Sequence[Half], queue_id: int, first: int, stored: int) -> pa.Table:
    """Rows of `half` at the queue's offsets from ``first`` on; ``stored`` in ms.

    Raises StorageError if the queue has too few offsets left.
    """
    if first + len(halves) - 1 > LONG_MAX:
        raise StorageError("no offsets are left", f"queue {queue_id}", "give the gateway other gateway.queues")
    return half_rows_at(halves, queue_id, first + np.arange(len(halves)), stored)


def half_rows_at(halves: Sequence[Half], queue_id: int, offsets: npt.NDArray[np.int64], stored: int) -> pa.Table:
    """Rows of `half` at these offsets of the queue; ``stored`` in ms."""
    columns: dict[str, Any] = dict(zip(halves[0]._fields, zip(*halves, strict=True), strict=True))
    columns["queue_id"] = np.full(len(halves), queue_id)
    columns["queue_offset"] = offsets
    columns["properties"] = _maps(columns["properties"])
    columns[ERASED] = pa.nulls(len(halves))
    columns["deliver_at"] = [None if at is None else at * 1000 for at in columns["deliver_at"]]
    return _table(arrow_schema("half"), columns, stored)


def op_rows(ops: Sequence[Op], remarks: Sequence[str | None], stored: int) -> pa.Table:
    """Rows of `op`; ``stored`` in ms."""
    columns: dict[str, Any] = dict(zip(ops[0]._fields, zip(*ops, strict=True), strict=True))
    columns["source"] = [SOURCE] * len(ops)
    columns["remark"] = remarks
    return _table(arrow_schema("op"), columns, stored)


def _table(schema: pa.Schema, columns: dict[str, Any], stored: int) -> pa.Table:
    born = np.array(columns["born_timestamp"], np.int64)
    columns["born_timestamp"] = born * 1000
    columns["store_timestamp"] = np.full(len(born), stored * 1000)
    arrays = [_array(columns[field.name], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    return values.cast(kind) if isinstance(values, pa.Array) else pa.array(values, kind)


def _maps(dicts: Sequence[dict[str, str]]) -> pa.Array:
    """Dicts as a map column, without a Python object for each entry."""
    ends = np.cumsum([0, *map(len, dicts)], dtype=np.int32)
    names = _texts(itertools.chain.from_iterable(dicts))
    texts = _texts(itertools.chain.from_iterable(map(dict.values, dicts)))
    return pa.MapArray.from_arrays(pa.array(ends), names, texts)


def _texts(texts: Iterator[str]) -> pa.Array:
    """Texts as a column. In parts: other threads do not run while one is made."""
    parts = [pa.array(list(itertools.islice(texts, _PART)), pa.string())]
    while part := list(itertools.islice(texts, _PART)):
        parts.append(pa.array(part, pa.string()))
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _altered(place: str) -> AlteredError:
    what = "somebody has clustered, partitioned or altered the table: the gateway cannot append to it"
    return AlteredError(what, place, "undo it, or land from files or Kafka")
