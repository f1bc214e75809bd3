"""The table commits a checkpoint has seen, to detect a restored table with other commits under the same versions.

They are stored in the file ``seen`` in the checkpoint's folder: by table a version and the hash of its commit file,
which is immutable. Only for tables whose commit files can be read without Spark.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback.errors import StateError, StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import filesystem, table_files
from checkback.storage.files.object_store import concurrently
from checkback.storage.files.table_files import commit_file, versions
from checkback.storage.log.delta_errors import commit_unreadable
from checkback.storage.schemas import properties_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

#: in the folder of the checkpoint
FILE = "seen"
Kept = dict[str, tuple[int, str]]
_KEPT = TypeAdapter(Kept)


class SeenCommits:
    """Records the table versions that a query's batches have seen."""

    def __init__(self, tables: Tables, query: str, fix: str) -> None:
        """``fix``: the fix to name if the tables are not those that the query has seen."""
        self._tables = tables
        self._query = query
        self._fix = fix
        self.place = tables.checkpoint(query)
        self._kept: Kept | None = None

    def keep(self, spark: SparkSession | None, seen: Mapping[str, int]) -> None:
        """Record the newest version seen of each table; all must be flushed.

        Raises StateError if a table lacks a commit recorded earlier; the record is kept, so that the next start is
        refused, too. Raises StorageError.
        """
        if self._kept is None:
            self._kept = _noted(spark, self._tables, self._query)
        commits = _Commits(self._tables)
        read = [(name, number) for name, upto in seen.items() for number in range(self._first(name, upto), upto + 1)]
        commits.read({*read, *((name, version) for name, (version, _) in self._kept.items())})
        self._refuse(self._kept, seen, commits)
        new = {name: version for name, version in seen.items() if version != self._kept.get(name, (None, ""))[0]}
        found = {name: (version, commits.hash_of(name, version)) for name, version in new.items()}
        self._refuse(found, {}, commits)
        known: Kept = {name: (version, commit) for name, (version, commit) in found.items() if commit is not None}
        if known:
            self._kept |= known
            filesystem.write(spark, f"{self.place}/{FILE}", json.dumps(self._kept))

    def _first(self, name: str, upto: int) -> int:
        """The first version that must be read to record version ``upto`` of a table."""
        return min(upto, (self._kept or {}).get(name, (upto, ""))[0])

    def keep_newest(self, spark: SparkSession | None, *names: str) -> None:
        """Flush the newest versions of tables that the query has just written, and record them as `keep` does."""
        seen: dict[str, int] = {}
        for name in names:
            log = self._tables.log(name)
            seen[name] = log.version()
            log.flush()
        self.keep(spark, seen)

    def _refuse(self, noted: Mapping[str, tuple[int, str | None]], upto: Mapping[str, int], commits: _Commits) -> None:
        lost = _lost(commits, noted, upto)
        if lost is not None:
            raise StateError(lost, self.place, self._fix)


@dataclass(frozen=True)
class _Commit:
    """A commit file: its hash, and whether it removes rows. Rewritten files (dataChange false) remove none.

    ``restores``: whether it is a RESTORE, which may also bring rows back that retention has removed.
    """

    hash: str
    removes: bool
    restores: bool


class _Commits:
    """Commit files, each read once."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._found: dict[tuple[str, int], _Commit | None] = {}

    def read(self, wanted: Collection[tuple[str, int]]) -> None:
        """Read these, (table, version), some at a time in an object store. Raises StorageError."""
        unread = sorted(set(wanted).difference(self._found))
        place = self._tables.root if self._tables.readable else ""
        self._found |= zip(unread, concurrently(place, lambda one: self._commit(*one), unread), strict=True)

    def hash_of(self, name: str, version: int) -> str | None:
        """None if there is no such commit or only Spark can read it. Raises StorageError."""
        self.read([(name, version)])
        commit = self._found[name, version]
        return None if commit is None else commit.hash

    def found(self, name: str, versions: Collection[int]) -> Iterator[tuple[int, _Commit]]:
        """Those of these versions that the log has, in order. Raises StorageError."""
        self.read([(name, version) for version in versions])
        for version in sorted(versions):
            commit = self._found[name, version]
            if commit is not None:
                yield version, commit

    def place(self, name: str) -> str | None:
        """A table's folder or URI; None if only Spark can read its log."""
        return self._tables.location(name) if self._tables.readable else None

    def _commit(self, name: str, version: int) -> _Commit | None:
        place = self.place(name)
        if place is None:
            return None
        file = commit_file(place, version)
        try:
            with reading(file, commit_unreadable, but=(FileNotFoundError,)):
                content = table_files.read(file)
                return _Commit(hashlib.sha256(content).hexdigest(), _removes(content), _restores(content))
        except FileNotFoundError:
            return None


def replaced(spark: SparkSession | None, tables: Tables, query: str) -> str | None:
    """How a table differs from what the query's checkpoint has seen; None if none does.

    Commits removed by log cleanup cannot be compared. Raises StorageError.
    """
    return _lost(_Commits(tables), _noted(spark, tables, query))


def removals(tables: Tables, name: str, versions: Collection[int]) -> list[int]:
    """Those of these versions of a table that have taken rows out of it, in order; none that the log no longer has.

    The table's log must be readable without Spark. Raises StorageError.
    """
    return [version for version, commit in _Commits(tables).found(name, versions) if commit.removes]


def _noted(spark: SparkSession | None, tables: Tables, query: str) -> Kept:
    file = f"{tables.checkpoint(query)}/{FILE}"
    if not filesystem.exists(spark, file):
        return {}
    try:
        return _KEPT.validate_json(filesystem.text(spark, file))
    except ValidationError as error:
        raise StorageError("cannot be read", file, "delete it: it is created again") from error


def _lost(
    commits: _Commits, noted: Mapping[str, tuple[int, str | None]], upto: Mapping[str, int] | None = None
) -> str | None:
    """How a table differs from the record; None if none does. A commit None matches any.

    Of append-only tables also whether rows were removed. ``upto``: by table, the last version to search for removed
    rows; None = the newest.
    """
    for name, (version, commit) in noted.items():
        place = commits.place(name)
        if place is None:
            continue
        found = commits.hash_of(name, version)
        if (version > max(versions(place), default=-1)) if found is None else (commit not in (found, None)):
            return f"the table {name} was restored to an older state: it lacks a commit that the checkpoint has seen"
        if "delta.appendOnly" not in properties_of(name):  # rows of such a table may be deleted (docs/tables.md)
            continue
        later = versions(place, version + 1) if upto is None else range(version + 1, upto.get(name, version) + 1)
        for number, one in commits.found(name, later):
            if one.removes:
                return (
                    f"version {number} of the table {name} has taken rows out of it (RESTORE does, append-only or not)"
                )
            if one.restores:
                return f"version {number} of the table {name} is a RESTORE, which may bring removed rows back"
    return None


def _restores(commit: bytes) -> bool:
    lines = (line for line in commit.split(b"\n") if line.startswith(b'{"commitInfo"'))
    return any(json.loads(line)["commitInfo"].get("operation") == "RESTORE" for line in lines)


def _removes(commit: bytes) -> bool:
    lines = (line for line in commit.split(b"\n") if line.startswith(b'{"remove"'))
    return any(json.loads(line)["remove"].get("dataChange", True) for line in lines)
