"""The Delta log of a table on a file system of this machine: made, read and committed to by delta-rs.

Why not by Spark: Spark needs 0.4 s for an idempotent append (it rebuilds the table's state in jobs of its own to look
up the application id), delta-rs a few milliseconds. And on local folders Spark's commit is atomic only inside one JVM
(HDFSLogStore asks whether the file is there, then renames over it), so that `land` and `reconcile`, two applications,
could overwrite one another's commit; delta-rs links its file into place, which fails if there is one.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction

from checkback.errors import NO_SPACE, NO_SPACE_FIX, FencedError, StorageError
from checkback.storage.checksum import takes_files, write_checksum
from checkback.storage.commit_files import actions_of_kind
from checkback.storage.fsync import LogFlush
from checkback.storage.schemas import TOPIC_PREFIX, properties_of, schema_of
from checkback.storage.timestamps import python_times
from checkback.storage.torn_commits import ACTIONS, last_checkpoint, recover_log, refuse_torn
from checkback.storage.transaction_versions import TransactionVersions

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from checkback.storage.parquet_files import ParquetFile

#: property of a table (PROTOCOL.md of delta-io/delta: Transaction Identifiers are dropped after it)
_FORGETS = "delta.setTransactionRetentionDuration"
#: of a column's metadata: what its values must be, or are made of
_RULES = ("delta.", "CURRENT_DEFAULT", "EXISTS_DEFAULT")
_ARROW, _COLOUR = "\u21b3", re.compile("\x1b\\[[0-9;]*m")
#: of a commit that must come right after the version that it has seen; some dozens a second come from others
_ATTEMPTS = 500
#: commits from one checkpoint to the next where the table does not say it
_INTERVAL = 100
#: A checkpoint is written when the commit is flushed: it must not outlive it.
_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


class AlteredError(StorageError):
    """Somebody has altered the table so that files cannot be appended to it as they are."""


@dataclass(frozen=True)
class DataFile:
    """A file of a table: absolute path, bytes, and (least, greatest) of the columns that have statistics."""

    path: str
    size: int
    spans: dict[str, tuple[Any, Any]]


class DeltaLog:
    """One table's log. Not for several threads at once."""

    def __init__(self, name: str, place: str, sync: bool = True) -> None:
        """``place``: the table's absolute folder. ``sync``: is each commit flushed to the disk (`fsync`)?

        Raises StorageError when there is no such table, and when its newest commits are torn (`torn_commits`).
        """
        self._name = name
        self._place = place
        self._sync = LogFlush(place) if sync else None
        self._judged: tuple[tuple[object, ...], bool] | None = None
        self._versions = TransactionVersions(place)
        refuse_torn(place, sync)
        try:
            self._table = DeltaTable(place)
        except TableNotFoundError as error:
            raise StorageError("there is no such table", place, "land something first") from error
        except (DeltaError, OSError) as error:
            raise _unreadable(place, error) from error
        interval = self._table.metadata().configuration.get("delta.checkpointInterval", "")
        self._interval = int(interval) if interval.isdecimal() and int(interval) else _INTERVAL

    @staticmethod
    def exists(place: str) -> bool:
        """Is there a Delta table in the folder? Raises StorageError when nobody can say."""
        try:
            return DeltaTable.is_deltatable(place)
        except (DeltaError, OSError) as error:
            raise _unreadable(place, error) from error

    @staticmethod
    def create(name: str, place: str, sync: bool = True) -> None:
        """Make the table if it is not there yet: the first thing that whoever writes it does.

        With ``sync`` commits that a power cut has torn are put aside before (`torn_commits`). Raises StorageError when
        the table cannot be made, or has torn commits and not ``sync``.
        """
        if sync:
            recover_log(place)
        else:
            refuse_torn(place, sync)
        if DeltaLog.exists(place):
            return
        try:
            DeltaTable.create(place, _schema(name), mode="ignore", configuration=properties_of(name))
        except (DeltaError, OSError) as error:
            raise StorageError(f"the table cannot be made: {_cause(error)}", place, _fix(error)) from error
        if sync:
            LogFlush(place).to()

    def flush(self) -> None:
        """Flush all versions that have been seen. Raises UnflushedError."""
        if self._sync is not None:
            self._sync.to(int(self._table.version()))

    def appendable(self) -> bool:
        """Can whole files be appended as they are? Not if somebody has clustered, partitioned or altered the table.

        Further columns that may be null do no harm: files without them are the table's, too.
        """
        now = self._table.protocol(), self._table.metadata().partition_columns, self._table.schema()
        if self._judged is None or self._judged[0] != now:
            self._judged = now, self._takes_files()
        return self._judged[1]

    def _takes_files(self) -> bool:
        protocol, schema = self._table.protocol(), self._table.schema()
        features = {*(protocol.writer_features or ()), *(protocol.reader_features or ())}
        if self._table.metadata().partition_columns or not takes_files(protocol.min_writer_version, features):
            return False
        ours, found = _columns(_schema(self._name)), _columns(schema)
        more = {name for name, (_, nullable) in found.items() if name not in ours and nullable}
        plain = not any(key.startswith(_RULES) for field in schema.fields for key in field.metadata)
        return plain and {name: column for name, column in found.items() if name not in more} == ours

    def rewritable(self) -> bool:
        """Is it appendable, and are its columns ours alone? Else files of others may hold more than we know of."""
        return self.appendable() and len(self._table.schema().fields) == len(_schema(self._name).fields)

    def readable(self) -> bool:
        """Are the table's rows simply those of its Parquet files?"""
        protocol = self._table.protocol()
        return protocol.min_reader_version == 1 and not self._table.metadata().partition_columns

    def table_id(self) -> str:
        """Delta's id of the table: a new table in the same place has another."""
        self._update()
        return str(self._table.metadata().id)

    def properties(self) -> dict[str, str]:
        """The table's properties."""
        self._update()
        return {key: value for key, value in self._table.metadata().configuration.items() if value is not None}

    def data_files(self, within: Mapping[str, tuple[Any, Any]] | None = None) -> list[DataFile]:
        """The files that the table consists of now, without those that by their statistics hold no row ``within``.

        ``within``: (least, greatest) of columns. A file without statistics of a column may hold any.
        """
        self._update()
        actions = python_times(pa.table(self._table.get_add_actions(flatten=True)))
        for name, (least, most) in (within or {}).items():
            if f"min.{name}" in actions.schema.names:
                below, above = actions.column(f"max.{name}"), actions.column(f"min.{name}")
                outside = pc.or_kleene(pc.less(below, least), pc.greater(above, most))
                actions = actions.filter(pc.invert(outside.fill_null(False)))
        names = [name[4:] for name in actions.schema.names if name.startswith("min.")]
        return [
            DataFile(
                path=os.path.join(self._place, row["path"]),
                size=row["size_bytes"],
                spans={
                    name: (row[f"min.{name}"], row[f"max.{name}"]) for name in names if row[f"min.{name}"] is not None
                },
            )
            for row in actions.to_pylist()
        ]

    @property
    def seen_version(self) -> int:
        """The newest version when the log was last looked at, or committed to."""
        return int(self._table.version())

    def version(self) -> int:
        """The newest version."""
        self._update()
        return int(self._table.version())

    def paths(self, version: int | None = None) -> set[str]:
        """Paths, in the table's folder, of the files that the table consists of, now or in a ``version``."""
        self._update()
        try:
            table = self._table if version is None else DeltaTable(self._place, version=version)
            return set(pa.table(table.get_add_actions()).column("path").to_pylist())
        except (DeltaError, OSError) as error:
            raise _unreadable(self._place, error) from error

    def plain_files(self, version: int) -> list[str] | None:
        """Absolute paths of the files whose rows, read by the schema of Checkback, are the table's in a ``version``.

        Each lies in the table's folder itself. None: only a reader of Delta can tell the rows. Raises StorageError.
        """
        try:
            table = self._table if self._table.version() == version else DeltaTable(self._place, version=version)
            columns = _columns(table.schema())
            plain = table.protocol().min_reader_version == 1 and not table.metadata().partition_columns
            names = pa.table(table.get_add_actions()).column("path").to_pylist()
        except (DeltaError, OSError) as error:
            raise _unreadable(self._place, error) from error
        if not plain or not set(_columns(_schema(self._name))) <= set(columns) or any("/" in name for name in names):
            return None
        return [os.path.join(self._place, name) for name in names]

    def history(self, commits: int) -> dict[int, int]:
        """The last ``commits``: version and when it was made (ms)."""
        self._update()
        return {entry["version"]: int(entry["timestamp"]) for entry in self._table.history(commits)}

    def has(self, app: str, version: int) -> bool:
        """Has the application committed this version, or a later one? Then it is flushed, whoever did."""
        last = self.versions([app])[app]
        if last is None or last < version:
            return False
        self.flush()
        return True

    def commit(self, files: Sequence[ParquetFile], app: str | None = None, version: int = 0) -> None:
        """Append the files, with ``app`` once: the same (app, version) is skipped when it comes again.

        That is Delta's transaction identifier (PROTOCOL.md of delta-io/delta); Spark's txnAppId and txnVersion write
        the same. Raises FencedError when another process commits for ``app`` at the same time, StorageError when
        the log cannot be written, UnflushedError when it cannot be flushed.
        """
        if app is None:
            # A commit looks through all versions since the one that the table was last seen in.
            self._update()
        elif self.has(app, version):
            return
        if files:
            self._append(files, {} if app is None else {app: version})

    def versions(self, apps: Iterable[str]) -> dict[str, int | None]:
        """The last version that each application has committed; None = it never has.

        Raises StorageError, also where Delta is told to forget versions: then None says nothing.
        """
        self._update()
        forgets = _FORGETS in self._table.metadata().configuration
        known = None if forgets else self._versions.at(int(self._table.version()))
        look_up = self._table.transaction_version if known is None else known.get
        found = {app: look_up(app) for app in apps}
        if None in found.values() and forgets:
            fix = f"ALTER TABLE delta.`{self._place}` UNSET TBLPROPERTIES ('{_FORGETS}')"
            raise StorageError(f"{_FORGETS} is set: nobody can tell what was committed", self._place, fix)
        return found

    def commit_after(
        self, files: Sequence[ParquetFile], expected: Mapping[str, int | None], versions: Mapping[str, int]
    ) -> None:
        """Append the files, and take each application from its ``expected`` version to the one of ``versions``.

        Without files only the versions are committed. So an application whose every commit names the version that it
        wrote itself has no second writer: whoever writes a version between, seen or not, makes the next commit fail.
        Raises FencedError, or AlteredError when the table takes no files any more: nothing is committed then. Raises
        StorageError when the log cannot be read or written; ``versions`` tells afterwards whether the commit was made.
        Raises UnflushedError: it was, and cannot be flushed.
        """
        found = self.versions(expected)
        if found != dict(expected):
            raise self._fenced()
        if files and not self.appendable():
            what = "somebody has clustered, partitioned or altered the table: files cannot be appended to it"
            raise AlteredError(what, self._place, "undo it, or run again: where Spark can append, it does")
        self._append(files, versions)

    def replace(self, old: Collection[str], new: Sequence[ParquetFile]) -> bool:
        """Put files with the same rows in the place of others (paths in the table's folder); no reader sees a change.

        False, and nothing is committed, when one of the ``old`` is not the table's any more. Appends at the same time
        lose nothing. Raises StorageError when the log cannot be read or written.
        """
        gone = set(old) - self.paths()
        seen = int(self._table.version())
        for _ in range(_ATTEMPTS):
            newest = self.version()
            for version in range(seen + 1, newest + 1):
                gone |= removed_by(self._place, version).intersection(old)
            if gone:
                return False
            if self._replace(old, new):
                return True
            seen = newest
        raise StorageError("others commit all the time: no turn for a commit of ours", self._place, "run it again")

    def _replace(self, old: Collection[str], new: Sequence[ParquetFile]) -> bool:
        """One attempt; False: another commit came between the look at the log and this one."""
        now = round(time.time() * 1000)
        seen = self._table.version()
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now, False, file.stats) for file in new
        ]
        actions += [
            RemoveAction(path=path, data_change=False, deletion_timestamp=now, size=self._size(path)) for path in old
        ]
        try:
            # delta-rs does not see that another commit removed the same files: their rows would be there twice.
            # Without retries its commit is the one after the version that was looked at, or none.
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                commit_properties=CommitProperties(custom_metadata=_counted(actions), max_commit_retries=0),
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            if self.version() > seen:
                return False
            raise StorageError(f"the commit failed: {_cause(error)}", self._place, _fix(error)) from error
        except (DeltaError, OSError) as error:
            raise StorageError(f"the commit failed: {_cause(error)}", self._place, _fix(error)) from error
        self._committed()
        return True

    def _size(self, path: str) -> int | None:
        """Bytes of a file of the table; None = it cannot be seen."""
        with suppress(OSError):
            return os.path.getsize(os.path.join(self._place, path))
        return None

    def checkpoint(self) -> None:
        """Write the table's state as a checkpoint: readers need no commit before it. Raises StorageError."""
        self._update()
        self.flush()
        try:
            self._table.create_checkpoint()
        except (DeltaError, OSError) as error:
            raise StorageError(f"no checkpoint can be written: {_cause(error)}", self._place, _fix(error)) from error
        if self._sync is not None:
            self._sync.checkpoint(int(self._table.version()))

    def _append(self, files: Sequence[ParquetFile], versions: Mapping[str, int]) -> None:
        now = round(time.time() * 1000)
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.path, file.size, {}, now, True, file.stats) for file in files
        ]
        transactions = [Transaction(app, version, now) for app, version in versions.items()]
        try:
            self._table.create_write_transaction(
                actions,
                "append",
                self._table.schema(),
                commit_properties=CommitProperties(
                    custom_metadata=_counted([*actions, *transactions]), app_transactions=transactions or None
                ),
                post_commithook_properties=_HOOKS,
            )
        except CommitFailedError as error:
            if "Concurrent transaction" in str(error):
                raise self._fenced() from error
            raise StorageError(f"the commit failed: {_cause(error)}", self._place, _fix(error)) from error
        except (DeltaError, OSError) as error:
            raise StorageError(f"the commit failed: {_cause(error)}", self._place, _fix(error)) from error
        self._committed()

    def _committed(self) -> None:
        """What follows a commit: it is flushed; then what is only true of versions that stay is made of it."""
        before = version = int(self._table.version())
        while os.path.exists(f"{self._place}/_delta_log/{version + 1:020}.json"):
            version += 1
        if self._sync is not None:
            self._sync.to(version)
        write_checksum(self._place, version)
        due = (version + 1) // self._interval * self._interval - 1
        if due > before:
            with suppress(StorageError, DeltaError, OSError):  # the table is whole without
                if last_checkpoint(self._place) < due:
                    self.checkpoint()
                # It is read from there: what an open table has taken up commit by commit makes each commit slower.
                self._table = DeltaTable(self._place)

    def _fenced(self) -> FencedError:
        return FencedError(
            "another process writes the same batches", self._place, "stop one of the two, then run again"
        )

    def _update(self) -> None:
        try:
            self._table.update_incremental()
        except (DeltaError, OSError) as error:
            raise _unreadable(self._place, error) from error


def actions_of(place: str, version: int, kind: str) -> Iterator[dict[str, Any]]:
    """The actions of a kind (``add``, ``remove``) in one commit of the table in ``place``. Raises StorageError."""
    path = f"{place}/_delta_log/{version:020}.json"
    try:
        yield from actions_of_kind(path, kind)
    except (OSError, ValueError, KeyError) as error:
        raise StorageError("a commit of the table's log cannot be read", path, "put it back as it was") from error


def _counted(actions: Sequence[object]) -> dict[str, str]:
    """What is noted with a commit: how many actions it has, so that one that is cut off between two is known for it."""
    return {ACTIONS: str(len(actions))}


def removed_by(place: str, version: int) -> set[str]:
    """Paths of the files that a commit took out of the table. Raises StorageError."""
    return {unquote(action["path"]) for action in actions_of(place, version, "remove")}


def _schema(name: str) -> Schema:
    return _schema_of(TOPIC_PREFIX if name.startswith(TOPIC_PREFIX) else name)


@cache
def _schema_of(kind: str) -> Schema:
    return Schema.from_json(schema_of(kind).json())


def _columns(schema: Schema) -> dict[str, tuple[str, bool]]:
    """By name, type and whether it may be null. Whether parts of a value may be, who made the table said otherwise."""
    return {field.name: (field.type.to_json().replace("false", "true"), field.nullable) for field in schema.fields}


def _unreadable(place: str, error: Exception) -> StorageError:
    return StorageError(f"the table's log cannot be read: {_cause(error)}", place, "restore the folder _delta_log")


def _fix(error: Exception) -> str:
    return NO_SPACE_FIX if NO_SPACE in str(error) else ""


def _cause(error: Exception) -> str:
    """What the error says in one line: of a chain (delta-rs colours it, an arrow before each cause) the last cause."""
    lines = [_COLOUR.sub("", line).strip() for line in str(error).splitlines()]
    causes = [line.removeprefix(_ARROW).strip() for line in lines if line.startswith(_ARROW)]
    return next((line for line in [*causes[-1:], *lines] if line), type(error).__name__)
