"""A table's log that is followed for long, while somebody may delete the table and make another in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkback.errors import StorageError
from checkback.storage.log.delta_log import DeltaLog
from checkback.storage.log.log_store import commit_mark, is_commit

if TYPE_CHECKING:
    from checkback.storage.log.log_store import Mark
    from checkback.storage.tables import Tables


class FollowedLog:
    """Opens a table's log, and reopens it if the newest commit that it has seen is not there or another one.

    delta-rs reads on from the version that it knows, whichever table that is of. Not thread-safe.
    """

    def __init__(self, tables: Tables, name: str, sync: bool = False) -> None:
        """``sync``: commits through it are flushed to disk."""
        self._tables = tables
        self._name = name
        self._sync = sync
        self.place = tables.location(name)
        self._log: DeltaLog | None = None
        self._mark: Mark | None = None

    def open(self) -> tuple[DeltaLog, bool] | None:
        """The log, and whether it was opened just now; None if there is no table. Raises StorageError, StateError."""
        if self._log is not None and is_commit(self.place, self._log.seen_version, self._mark):
            return self._log, False
        self._log = None
        self._tables.refuse_half_restored()
        if not DeltaLog.exists(self.place):
            return None
        self._log = DeltaLog(self._name, self.place, self._sync)
        self.seen()
        return self._log, True

    def refused(self, what: str, fix: str) -> StorageError:
        """The error for a table that cannot be used; it is reopened when it is requested again."""
        self._log = None
        return StorageError(what, self.place, fix)

    def seen(self) -> None:
        """The log was read up to its newest version: remember that commit."""
        if self._log is not None:
            self._mark = commit_mark(self.place, self._log.seen_version)
