"""The table commits a checkpoint has seen, to detect a restored table with other commits under the same versions.

They are stored in the file ``seen`` in the checkpoint's folder: by table a version and the hash of its commit file,
which is immutable. Only for tables whose commit files can be read without Spark.
"""

from __future__ import annotations

import hashlib
import json
from functools import partial
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback.errors import StateError, StorageError
from checkback.storage import filesystem, table_files
from checkback.storage.commit_reader import actions_of_kind
from checkback.storage.fsync import versions
from checkback.storage.object_store import concurrently

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        self._refuse(self._kept, seen)
        new = {name: version for name, version in seen.items() if version != self._kept.get(name, (None, ""))[0]}
        commits = {name: (version, _commit(self._tables, name, version)) for name, version in new.items()}
        self._refuse(commits, {})
        known: Kept = {name: (version, commit) for name, (version, commit) in commits.items() if commit is not None}
        if known:
            self._kept |= known
            filesystem.write(spark, f"{self.place}/{FILE}", json.dumps(self._kept))

    def keep_newest(self, spark: SparkSession | None, *names: str) -> None:
        """Flush the newest versions of tables that the query has just written, and record them as `keep` does."""
        seen: dict[str, int] = {}
        for name in names:
            log = self._tables.log(name)
            seen[name] = log.version()
            log.flush()
        self.keep(spark, seen)

    def _refuse(self, noted: Mapping[str, tuple[int, str | None]], upto: Mapping[str, int]) -> None:
        lost = _lost(self._tables, noted, upto)
        if lost is not None:
            raise StateError(lost, self.place, self._fix)


def replaced(spark: SparkSession | None, tables: Tables, query: str) -> str | None:
    """How a table differs from what the query's checkpoint has seen; None if none does.

    Commits removed by log cleanup cannot be compared. Raises StorageError.
    """
    return _lost(tables, _noted(spark, tables, query))


def _noted(spark: SparkSession | None, tables: Tables, query: str) -> Kept:
    file = f"{tables.checkpoint(query)}/{FILE}"
    if not filesystem.exists(spark, file):
        return {}
    try:
        return _KEPT.validate_json(filesystem.text(spark, file))
    except ValidationError as error:
        raise StorageError("cannot be read", file, "delete it: it is created again") from error


def _lost(
    tables: Tables, noted: Mapping[str, tuple[int, str | None]], upto: Mapping[str, int] | None = None
) -> str | None:
    """How a table differs from the record; None if none does. A commit None matches any.

    ``upto``: by table, the last version to search for removed rows; None = the newest.
    """
    for name, (version, commit) in noted.items():
        log = _log(tables, name)
        if log is None:
            continue
        found = _commit(tables, name, version)
        if (version > max(versions(log), default=-1)) if found is None else (commit not in (found, None)):
            return f"the table {name} was put back to an older state: it lacks a commit that the checkpoint has seen"
        last = None if upto is None else upto.get(name, version)
        removing = _removing(log, version, last)
        if removing is not None:
            return f"version {removing} of the table {name} has taken rows out of it (RESTORE does, append-only or not)"
    return None


def _removing(log: str, after: int, upto: int | None) -> int | None:
    """The first version after ``after``, up to ``upto`` (None = the newest), that removes rows; None if none does.

    Rewritten files (dataChange false) remove no rows.
    """
    later = range(after + 1, upto + 1) if upto is not None else sorted(versions(log, after + 1))
    for version, removes in zip(later, concurrently(log, partial(_removes, log), later), strict=True):
        if removes:
            return version
    return None


def _removes(log: str, version: int) -> bool:
    """True if a commit removes rows; False if it was cleaned up."""
    file = f"{log}/{version:020}.json"
    try:
        return any(removed.get("dataChange", True) for removed in actions_of_kind(file, "remove"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError) as error:
        raise StorageError("a commit of the table's log cannot be read", file, "restore it from a backup") from error


def _log(tables: Tables, name: str) -> str | None:
    """A table's log folder; None if only Spark can read it."""
    return f"{tables.location(name)}/_delta_log" if tables.readable else None


def _commit(tables: Tables, name: str, version: int) -> str | None:
    """The hash of a commit file; None if it does not exist or only Spark can read it. Raises StorageError."""
    log = _log(tables, name)
    file = f"{log}/{version:020}.json"
    try:
        if log is not None:
            return hashlib.sha256(table_files.read(file)).hexdigest()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror or error}", file) from error
    return None
