"""Which commits of tables a checkpoint has seen: a table that was put back may have others under the same versions.

They stand in the file ``seen`` of the checkpoint's folder: by table a version, and the hash of its commit file, which
nobody ever changes. Only for tables in local folders: elsewhere the commits cannot be looked into.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from checkback.errors import StorageError
from checkback.storage import filesystem
from checkback.storage.fsync import versions
from checkback.storage.paths import local_path

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from checkback.storage.tables import Tables

#: in the folder of the checkpoint
FILE = "seen"
_KEPT = TypeAdapter(dict[str, tuple[int, str]])


class SeenCommits:
    """Keeps what the batches of a query have seen."""

    def __init__(self, tables: Tables, query: str) -> None:
        self._tables = tables
        self.place = tables.checkpoint(query)
        self._kept: dict[str, int] = {}

    def keep(self, spark: SparkSession | None, seen: Mapping[str, int]) -> None:
        """Write down the newest version that was seen of each table, all of which are flushed. Raises StorageError."""
        if seen == self._kept:
            return
        commits = {name: (version, _commit(self._tables, name, version)) for name, version in seen.items()}
        known = {name: each for name, each in commits.items() if each[1] is not None}
        if known:
            filesystem.write(spark, f"{self.place}/{FILE}", json.dumps(known))
        self._kept = dict(seen)


def replaced(spark: SparkSession | None, tables: Tables, query: str) -> str | None:
    """The name of a table that no longer has a commit that the query's checkpoint has seen; None = all have theirs.

    What the table's log has cleaned up cannot be compared. Raises StorageError.
    """
    file = f"{tables.checkpoint(query)}/{FILE}"
    if not filesystem.exists(spark, file):
        return None
    try:
        kept = _KEPT.validate_json(filesystem.text(spark, file))
    except ValidationError as error:
        raise StorageError("cannot be read", file, "remove it: it is written anew") from error
    for name, (version, commit) in kept.items():
        log = _log(tables, name)
        if log is None:
            continue
        found = _commit(tables, name, version)
        if found != commit and (found is not None or version > max(versions(log), default=-1)):
            return name
    return None


def _log(tables: Tables, name: str) -> str | None:
    """The folder of a table's log; None where it is not local."""
    place = None if tables.catalog else local_path(tables.location(name))
    return None if place is None else f"{place}/_delta_log"


def _commit(tables: Tables, name: str, version: int) -> str | None:
    """The hash of a commit; None = it is not there, or not to be seen. Raises StorageError."""
    log = _log(tables, name)
    file = f"{log}/{version:020}.json"
    try:
        if log is not None:
            with open(file, "rb") as content:
                return hashlib.sha256(content.read()).hexdigest()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(f"cannot be read: {error.strerror}", file) from error
    return None
