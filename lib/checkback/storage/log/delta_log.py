"""The Delta log of a table in a local folder or an object store: created and read with delta-rs, appended to here.

Why not with Spark: Spark needs 0.4 s for an idempotent append (it runs jobs that reconstruct the table's state to look
up the application id), this a few milliseconds. And on local folders Spark's commit is atomic only inside one JVM
(HDFSLogStore checks whether the file exists, then renames over it), so `land` and `reconcile`, two applications, could
overwrite each other's commit; here the file is hard-linked into place, which fails if the version exists. In object
stores it is written on condition that there is none (If-None-Match), which Spark does not.
"""

from __future__ import annotations

import functools
import inspect
import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import RLock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import TableNotFoundError

from checkback.errors import StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.fsync import LogFlush
from checkback.storage.files.lease import boot_time
from checkback.storage.files.object_store import is_registered, options_of
from checkback.storage.files.paths import for_spark
from checkback.storage.files.table_files import LOG, commit_file
from checkback.storage.log import compatibility
from checkback.storage.log.checksum import write_checksum
from checkback.storage.log.compatibility import declared_schema
from checkback.storage.log.delta_errors import DELTA_ERRORS, FORGETS, forgotten, storage_error, unreadable
from checkback.storage.log.log_tail import LogTail
from checkback.storage.log.optimistic_transaction import OptimisticTransaction, alters, fenced, update
from checkback.storage.log.snapshot_files import DataFile, SnapshotFiles, data_files, open_listed, open_table
from checkback.storage.log.torn_commits import last_checkpoint, recover_log, refuse_torn
from checkback.storage.schemas import FORMAT_PROPERTY, SOURCES, TOPIC_PREFIX, properties_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from concurrent.futures import Future

    from checkback.storage.parquet.parquet_files import ParquetFile


#: commits between checkpoints if the table does not set delta.checkpointInterval
_INTERVAL = 100
#: Writes them in object stores, some thirty requests one after the other: commits do not wait for them.
BESIDE = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")


class LogCheckpoints:
    """Those of one log. ``properties``: the table's."""

    def __init__(self, place: str, properties: Mapping[str, str | None]) -> None:
        self._place = place
        interval = properties.get("delta.checkpointInterval") or ""
        self._interval = int(interval) if interval.isdecimal() and int(interval) else _INTERVAL
        self._beside: Future[DeltaTable | None] | None = None

    def due(self, before: int, version: int) -> int | None:
        """The version of which a checkpoint is due after the commits from ``before`` to ``version``; None = of none."""
        due = (version + 1) // self._interval * self._interval - 1
        return due if due > before else None

    def begin(self, due: int) -> None:
        """Have a checkpoint of version ``due`` written beside commits, unless one is being written."""
        self._beside = self._beside or BESIDE.submit(_checkpointed, self._place, due)

    def written(self) -> DeltaTable | None:
        """The table as it reads from the checkpoint of `begin`, once; None as long as that is not written."""
        if self._beside is None or not self._beside.done():
            return None
        beside, self._beside = self._beside, None
        return None if beside.exception() else beside.result()


def _checkpointed(place: str, due: int) -> DeltaTable | None:
    """The table, with a checkpoint of version ``due`` or a later one; None if that cannot be written."""
    with suppress(StorageError, *DELTA_ERRORS):  # best effort: the table is valid without it
        if last_checkpoint(place) < due:
            open_table(place).create_checkpoint()
        return open_table(place)
    return None


_C = TypeVar("_C", bound=type)


def synchronized(cls: _C) -> _C:
    """Each public method holds ``self._lock``, an RLock. Properties, static and class methods do not."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(cls, name, _locked(method))
    return cls


def _locked(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def locked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            return method(self, *args, **kwargs)

    return locked


#: files that make a folder a table's log
_OF_LOG = re.compile(r"[0-9]{20}\.(?:json|checkpoint\..*)")
#: tables that queries read as streams
_STREAMED = frozenset(name for names in SOURCES.values() for name in names)
#: time after which a log is listed for new versions (s); its retention is days
_LIST_S = 600.0


class AlteredError(StorageError):
    """The table was altered so that files cannot be appended to it unchanged."""


class UncommittedError(StorageError):
    """Before a commit the table's log could not be read: nothing was committed."""


class ReplacedError(UncommittedError):
    """Another table is in the place of the one that was read."""


@synchronized
class DeltaLog:
    """One table's log. Thread-safe: the reconcile query commits to tables that the check query reads."""

    def __init__(self, name: str, place: str, sync: bool = True, confirm: Callable[[], object] = bool) -> None:
        """``place``: the table's absolute folder, or its URI. ``sync``: flush each commit to disk (`fsync`).

        ``confirm``: is called before each attempt at a commit; raises FencedError if this process may not write any
        more. Raises StorageError if the table does not exist, its newest commits are torn (`torn_commits`) or it is of
        another format.
        """
        self._name = name
        self._place = place
        self._confirm = confirm
        self._lock = RLock()
        self._sync = LogFlush(place) if sync else None
        self._judged: tuple[tuple[object, ...], bool] | None = None
        self._listed = boot_time()
        refuse_torn(place, sync)
        with reading(place, _unopened):
            self._table = open_listed(place, 0)
        if not name.startswith(TOPIC_PREFIX) or self.is_topic():  # somebody may have made another in a topic's place
            compatibility.refuse_format(self._table.metadata().configuration.get(FORMAT_PROPERTY), place)
        self._tail = LogTail(place, int(self._table.version()))
        #: what readers of all rows ask for
        self.files = SnapshotFiles(name, place, self._at, self._lock)
        self._checkpoints = LogCheckpoints(place, self._table.metadata().configuration)

    @staticmethod
    def exists(place: str) -> bool:
        """True if the folder holds a Delta table. Raises StorageError if that cannot be determined."""
        with reading(place, unreadable):
            if is_registered(place):  # delta-rs would keep the other threads waiting during the request
                first = table_files.exists(commit_file(place, 0))  # one request; maintenance removes it some day
                return first or any(map(_OF_LOG.fullmatch, table_files.names(f"{place}/{LOG}")))
            return DeltaTable.is_deltatable(place)

    @classmethod
    def create(cls, name: str, place: str, sync: bool = True) -> None:
        """Create the table if it does not exist. Every writer calls this first.

        With ``sync``, torn commits (after a power cut) are moved aside first (`torn_commits`). Raises StorageError if
        the table cannot be created, or has torn commits and ``sync`` is false.
        """
        if sync:
            recover_log(place)
        else:
            refuse_torn(place, sync)
        if cls.exists(place):
            return
        try:
            DeltaTable.create(
                place,
                declared_schema(name),
                mode="ignore",
                configuration=properties_of(name),
                storage_options=options_of(place) or None,
                # Retried, it becomes a later version beside another process's creation: the table with another id.
                commit_properties=CommitProperties(max_commit_retries=0),
                raise_if_key_not_exists=False,  # FORMAT_PROPERTY
            )
        except DELTA_ERRORS as error:
            if not cls.exists(place):  # else another process was faster
                raise storage_error("the table cannot be created", place, error) from error
            return
        if sync:
            LogFlush(place).to()
        if name in _STREAMED:
            write_checksum(place, 0)

    @classmethod
    def created(cls, name: str, place: str, sync: bool = True) -> DeltaLog:
        """`create`, and the table's log."""
        cls.create(name, place, sync)
        return cls(name, place, sync)

    def flush(self) -> None:
        """Flush all versions seen so far to disk. Raises UnflushedError."""
        if self._sync is not None:
            self._sync.to(self._tail.version)

    def appendable(self) -> bool:
        """True if whole files can be appended unchanged: the table was not clustered, partitioned or altered.

        Additional nullable columns are allowed: files without them are still valid.
        """
        metadata = self._table.metadata()
        now = self._table.protocol(), metadata.partition_columns, metadata.configuration, self._table.schema()
        if self._judged is None or self._judged[0] != now:
            self._judged = now, compatibility.takes_files(self._table, self._name)
        return self._judged[1]

    def maintainable(self) -> bool:
        """True if its files may be rewritten, and its log may be cleaned up."""
        rewritable = self.appendable() and compatibility.adds_plain_columns(self._table, self._name)
        return rewritable and not compatibility.keeps_log(self._table)

    def readable(self) -> bool:
        """True if the table's rows are exactly those of its Parquet files (reader version 1, not partitioned)."""
        return compatibility.is_plain(self._table)

    def table_id(self) -> str:
        """Delta's table id: a table recreated in the same place has a different one."""
        self._update()
        return str(self._table.metadata().id)

    def created_at(self) -> int:
        """When the table was made, as of the last read (ms); 0 = not known."""
        return int(self._table.metadata().created_time or 0)

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        self._update()
        return {key: value for key, value in self._table.metadata().configuration.items() if value is not None}

    def data_files(self, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
        """The current snapshot's data files, after data skipping by ``within``: (min, max) by column.

        A file without statistics for a column is never skipped.
        """
        return data_files(self._snapshot(), self._place, within)

    @property
    def seen_version(self) -> int:
        """The newest version as of the last read of the log or commit."""
        return self._tail.version

    def version(self) -> int:
        """The newest version."""
        self._update()
        return self._tail.version

    def refresh(self) -> int:
        """The newest version. Its files are known then: it is read without opening the log once more."""
        self._snapshot()
        return self._tail.version

    def paths(self, version: int | None = None) -> set[str]:
        """Paths, relative to the table's folder, of the data files of the current snapshot or of ``version``."""
        with reading(self._place, unreadable):
            table = self._snapshot() if version is None else open_table(self._place, version)
            return set(pa.table(table.get_add_actions()).column("path").to_pylist())

    def _at(self, version: int) -> DeltaTable:
        return self._table if self._table.version() == version else open_table(self._place, version)

    def schema_mismatch(self) -> str:
        """See `compatibility.schema_mismatch`."""
        return compatibility.schema_mismatch(self._table, self._name)

    def is_topic(self) -> bool:
        """May the table be a topic's? Somebody may have made another in its place."""
        return compatibility.has_key(self._table)

    def history(self, commits: int) -> dict[int, int]:
        """The last ``commits``: commit timestamp (ms) by version."""
        with reading(self._place, unreadable):
            return {entry["version"]: int(entry["timestamp"]) for entry in self._snapshot().history(commits)}

    def has(self, app: str, version: int) -> bool:
        """True if the application has committed this version or a later one; if so, it is flushed to disk first."""
        last = self.versions([app])[app]
        if last is None or last < version:
            return False
        self.flush()
        return True

    def commit(
        self,
        files: Sequence[ParquetFile],
        app: str | None = None,
        version: int = 0,
        also: Mapping[str, int] = MappingProxyType({}),
    ) -> bool:
        """Append the files; idempotent with ``app``: a repeated (app, version) is skipped, which returns False.

        ``also``: versions of further applications, which the same commit sets.

        (app, version) is Delta's transaction identifier (PROTOCOL.md of delta-io/delta), as written by Spark's
        txnAppId and txnVersion. Raises FencedError if another process commits for ``app`` concurrently, AlteredError,
        with nothing committed, if files cannot be appended any more, StorageError if the log cannot be written,
        UnflushedError if it cannot be flushed.
        """
        if app is None:
            # A commit checks all versions since the last one read for conflicts.
            self._update()
        elif self.has(app, version):
            return False
        if files:
            self._refuse_altered()
            self._append(files, {} if app is None else {app: version, **also})
        return True

    def versions(self, apps: Iterable[str]) -> dict[str, int | None]:
        """The last version committed by each application; None if it never committed.

        Raises StorageError, also if one is missing and the table expires transaction identifiers: it may have expired.
        """
        self._update()
        return self._versions(apps)

    def _versions(self, apps: Iterable[str]) -> dict[str, int | None]:
        """`versions`, as the log was last read."""
        forgets = FORGETS in self._table.metadata().configuration
        known = None if forgets else self._tail.transactions.at(self._tail.version)
        with reading(self._place, unreadable):
            look_up = self._snapshot().transaction_version if known is None else known.get
            found = {app: look_up(app) for app in apps}
        if None in found.values() and forgets:
            raise forgotten(self._place, f"delta.`{for_spark(self._place)}`")
        return found

    def applications(self) -> Mapping[str, int]:
        """The last version of each application, by name. Raises StorageError.

        Empty if only a Delta reader knows (`TransactionVersions.at`).
        """
        self._update()
        return dict(self._tail.transactions.at(self._tail.version) or {})

    def commit_after(
        self, files: Sequence[ParquetFile], expected: Mapping[str, int | None], versions: Mapping[str, int]
    ) -> None:
        """Append the files and advance each application from its ``expected`` version to that in ``versions``.

        Without files only the versions are committed. This is a compare-and-set: an application that always expects
        the version of its own last commit is fenced as soon as a second writer has committed one in between.

        Raises FencedError, AlteredError if files cannot be appended any more, or UncommittedError; nothing is committed
        then. Raises StorageError if the log cannot be read or written; ``versions`` shows afterwards whether the commit
        was made. Raises UnflushedError if the commit was made but cannot be flushed.
        """
        try:
            self._update()
        except UncommittedError:
            raise
        except StorageError as error:
            raise UncommittedError(error.what, error.where, error.fix) from error
        found = self._versions(expected)
        if found != dict(expected):
            raise fenced(self._place)
        if files:
            self._refuse_altered()
        self._append(files, versions, expected)

    def _refuse_altered(self) -> None:
        if not self.appendable():
            what = "somebody has clustered, partitioned or altered the table: files cannot be appended to it"
            raise AlteredError(what, self._place, "undo it, or run again: where Spark can append, it does")

    def replace(self, old: Collection[str], new: Sequence[ParquetFile]) -> bool:
        """Replace files (paths relative to the table's folder) with ones that hold the same rows: a compaction.

        False, with nothing committed, if one of ``old`` was removed concurrently. Concurrent appends are kept. Raises
        StorageError if the log cannot be read or written.
        """
        return self._replace(old, new, {}, {}, changes=False)

    def remove(
        self, old: Collection[str], left: Sequence[ParquetFile], versions: Mapping[str, int], changes: bool
    ) -> bool:
        """Replace files with ``left``, which hold some of their rows: retention. As `replace`.

        ``versions``: see `storage.horizon`. ``changes``: other streams stop there, unless they skip it.
        """
        about = {app: str(version) for app, version in versions.items() if "/" not in app}
        return self._replace(old, left, versions, {f"checkback.{name}": what for name, what in about.items()}, changes)

    def _replace(
        self,
        old: Collection[str],
        new: Sequence[ParquetFile],
        versions: Mapping[str, int],
        about: Mapping[str, str],
        changes: bool,
    ) -> bool:
        gone = set(old) - self.paths()
        if gone or not self._transaction(self._snapshot()).replace(old, new, versions, about, changes):
            return False
        before = self._tail.version
        self._load()
        self._committed(before)
        return True

    def checkpoint(self) -> None:
        """Write a Delta checkpoint: readers need no earlier commit. Raises StorageError."""
        table = self._snapshot()
        self.flush()
        try:
            table.create_checkpoint()
        except DELTA_ERRORS as error:
            raise storage_error("no checkpoint can be written", self._place, error) from error
        if self._sync is not None:
            self._sync.checkpoint(int(self._table.version()))

    def _append(
        self, files: Sequence[ParquetFile], versions: Mapping[str, int], expected: Collection[str] = ()
    ) -> None:
        """Append; the log has just been read (`_update`)."""
        before = self._tail.version
        if self.appendable():
            self._transaction(self._table).append(self._tail, files, versions, expected)
            if boot_time() >= self._listed + 2 * _LIST_S:
                self._refuse_gap()
        else:
            self._transaction(self._snapshot()).append_by_delta_rs(files, versions, expected)
            self._load()
        self._committed(before)

    def _transaction(self, table: DeltaTable) -> OptimisticTransaction:
        return OptimisticTransaction(table, self._place, self._confirm)

    def _refuse_gap(self) -> None:
        """Check that this process was not stopped between its look at the log and the commit, until log cleanup.

        The commit may then have filled the place of a version that was removed; nobody reads it.
        """
        version = self._tail.version
        self._load()
        if last_checkpoint(self._place) >= version:
            self._tail = LogTail(self._place, int(self._table.version()))
            what = "this process was stopped while it committed: whether the commit was made is not known"
            raise StorageError(what, self._place, "run it again")

    def _committed(self, before: int) -> None:
        """Flush the commits since version ``before``, then write a checksum and, if due, a checkpoint.

        A checkpoint must not outlive the commit.
        """
        version = self._tail.version
        if self._sync is not None:
            self._sync.to(version)
        if self._name in _STREAMED or not is_registered(self._place):  # a request, for what Spark reads in each batch
            found = write_checksum(self._place, version, self._tail.checksum)
            self._tail.checksum = None if found is None else (version, found)
        reopened = self._checkpoints.written()
        if reopened is not None and int(reopened.version()) >= int(self._table.version()):
            self._table = reopened
        due = self._checkpoints.due(before, version)
        if due is None:
            return
        if is_registered(self._place):
            self._checkpoints.begin(due)
            return
        with suppress(StorageError, *DELTA_ERRORS):  # best effort: the table is valid without it
            if last_checkpoint(self._place) < due:
                self.checkpoint()
            # Reload from the checkpoint: state accumulated commit by commit makes each commit slower.
            self._table = open_table(self._place)

    def _snapshot(self) -> DeltaTable:
        """The table with its files, at the newest version. Raises StorageError."""
        self._update()
        if int(self._table.version()) < self._tail.version:
            self._load()
        return self._table

    def _update(self) -> None:
        """Read the log up to its newest version, commit by commit; list it if that does not do, and now and then.

        Log cleanup may remove the next version after days, while later ones exist. Afterwards ``_table`` has the
        newest metadata and protocol, but not necessarily the newest files (`_snapshot`).
        """
        commits = self._tail.read()
        if self._tail.replaced or self._tail.gone:
            self._reopen()
        elif commits is None or boot_time() >= self._listed + _LIST_S or any(map(alters, commits)):
            self._load()

    def _reopen(self) -> None:
        """Open the table if it is still the same one: delta-rs would read on from the known version of any.

        Raises ReplacedError if it is not, StorageError if it was restored to an older state: what is appended would be
        behind a gap.
        """
        known = self._tail.version if self._tail.gone else 0
        with reading(self._place, unreadable):
            reopened = open_listed(self._place, known)
        if reopened.metadata().id != self._table.metadata().id:
            raise ReplacedError("the table was recreated meanwhile", self._place, "run it again")
        if int(reopened.version()) < known:
            raise self._put_back()
        self._table, self._tail = reopened, LogTail(self._place, int(reopened.version()))
        self._listed = boot_time()

    def _load(self) -> None:
        """List the log, and read the table's newest version. Raises StorageError."""
        now = boot_time()
        update(self._table, self._place)
        if int(self._table.version()) < self._tail.version:
            with reading(self._place, unreadable):
                reopened = open_listed(self._place, self._tail.version)
            if int(reopened.version()) >= self._tail.version:
                self._table = reopened
        if int(self._table.version()) < self._tail.version:
            raise self._put_back()
        self._tail.at(int(self._table.version()))
        self._listed = now

    def _put_back(self) -> StorageError:
        what = f"the log does not list its version {self._tail.version} any more"
        return StorageError(what, self._place, "run it again; the table may have been restored or recreated")


def _unopened(place: str, error: BaseException) -> StorageError:
    """The error for a table that cannot be opened."""
    if isinstance(error, TableNotFoundError):
        return StorageError("there is no such table", place, "land something first")
    return unreadable(place, error)
