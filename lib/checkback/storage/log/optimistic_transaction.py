"""Commits to a Delta table under optimistic concurrency control (OptimisticTransaction.scala of Delta).

Appends are written by `log_tail`; delta-rs commits what replaces files, and to tables that do not take files unchanged.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError
from deltalake.transaction import AddAction, RemoveAction

from checkback.errors import FencedError, StorageError
from checkback.storage.failure_scope import reading
from checkback.storage.files import table_files
from checkback.storage.files.object_store import is_registered
from checkback.storage.log.commit_reader import read_actions, read_commit, removed_by
from checkback.storage.log.compatibility import adds_columns
from checkback.storage.log.delta_errors import DELTA_ERRORS, storage_error, unreadable
from checkback.storage.log.log_store import COMMIT_ID
from checkback.storage.log.snapshot_files import newest
from checkback.storage.log.torn_commits import ACTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from checkback.storage.log.log_tail import Commit, LogTail
    from checkback.storage.parquet.parquet_files import ParquetFile

#: attempts at a commit, each at the version after the one read; other writers commit some dozens a second
_ATTEMPTS = 500
#: maximum pause between two attempts (s)
_PAUSE_S = 0.2
#: No checkpoint in the post-commit hook: it is written once the commit is flushed, as it must not outlive the commit.
HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)


@dataclass(frozen=True)
class OptimisticTransaction:
    """A commit at the version after the newest one, retried while other writers commit first.

    ``table`` has read the log; it must be updated afterwards. ``place``: the table's absolute folder, or its URI.
    ``confirm`` is called before each attempt: another process may have taken over since the one before. The methods
    raise StorageError if the log cannot be read or written, and what ``confirm`` raises.
    """

    table: DeltaTable
    place: str
    confirm: Callable[[], object] = bool

    def append(
        self, tail: LogTail, files: Sequence[ParquetFile], versions: Mapping[str, int], expected: Collection[str] = ()
    ) -> None:
        """Append the files and advance each application to its version in ``versions``.

        The table takes files unchanged. ``tail`` is its log, which is followed, and ``table`` has the metadata of the
        version that is known there. ``expected``: further applications that must not commit meanwhile. Raises
        FencedError if one of all these does.
        """
        apps = {*versions, *expected}
        for attempt in range(_ATTEMPTS):
            self.confirm()
            self._refuse_removed(files)
            if tail.commit(files, versions):
                return
            before = self.table.metadata(), self.table.schema()
            commits = tail.read_on()
            if any(map(alters, commits)):
                update(self.table, self.place)
            widened = adds_columns(before, (self.table.metadata(), self.table.schema()))
            self._refuse_conflicts(commits, apps, widened)
            _pause(attempt)
        raise self._starved()

    def append_by_delta_rs(
        self, files: Sequence[ParquetFile], versions: Mapping[str, int], expected: Collection[str] = ()
    ) -> None:
        """`append` to any table. ``table`` has read the whole log, and must be updated afterwards."""
        now = round(time.time() * 1000)
        additions, transactions = _additions(files, now), [Transaction(*last, now) for last in versions.items()]
        apps = {*versions, *expected}
        for attempt in range(_ATTEMPTS):
            seen, before = int(self.table.version()), (self.table.metadata(), self.table.schema())
            self._refuse_removed(files)
            if self._commit_next(additions, transactions):
                return
            widened = adds_columns(before, (self.table.metadata(), self.table.schema()))
            others = range(seen + 1, int(self.table.version()) + 1)
            self._refuse_conflicts([read_commit(self.place, version) for version in others], apps, widened)
            _pause(attempt)
        raise self._starved()

    def replace(
        self,
        old: Collection[str],
        new: Sequence[ParquetFile],
        versions: Mapping[str, int] = MappingProxyType({}),
        about: Mapping[str, str] = MappingProxyType({}),
        changes: bool = False,
    ) -> bool:
        """Replace files of the table's version (paths relative to its folder); False if another commit removed one.

        ``versions``: of applications, which the commit sets. ``about``: what its commitInfo says besides. ``changes``:
        whether streams are to notice that rows are gone (Delta's dataChange).
        """
        for _ in range(_ATTEMPTS):
            now = round(time.time() * 1000)
            # Without a time no checkpoint lists them. Only VACUUM wants that, for a week: a million files in the end.
            removals: list[AddAction | RemoveAction] = [
                RemoveAction(path=path, data_change=changes, deletion_timestamp=0, size=self._size(path))
                for path in old
            ]
            transactions = [Transaction(*each, now) for each in versions.items()]
            seen = int(self.table.version())
            if self._commit_next(_additions(new, now, not changes) + removals, transactions, about):
                return True
            # delta-rs does not detect that another commit removed the same files, which would duplicate their rows.
            for version in range(seen + 1, int(self.table.version()) + 1):
                if not removed_by(self.place, version).isdisjoint(old):
                    return False
        raise self._starved()

    def _size(self, path: str) -> int | None:
        """Size of a data file in bytes; None if it cannot be read."""
        with suppress(OSError):
            return table_files.size(f"{self.place}/{path}")
        return None

    def _commit_next(
        self,
        actions: list[AddAction | RemoveAction],
        transactions: Sequence[Transaction] = (),
        more: Mapping[str, str] = MappingProxyType({}),
    ) -> bool:
        """Commit these actions as the version after the table's; False, and the newest version, if there is one.

        delta-rs's own retries do not suffice: in an object store the answer to a request may be lost, and the repeated
        request meets the commit that it has made. That is this one, and is not committed again as the next version.
        """
        self.confirm()
        seen, commit_id = int(self.table.version()), uuid.uuid4().hex
        # The number of actions reveals a commit truncated between two of them.
        about = {ACTIONS: str(len(actions) + len(transactions)), COMMIT_ID: commit_id, **more}
        try:
            self.table.create_write_transaction(
                actions,
                "append",
                self.table.schema(),
                commit_properties=CommitProperties(about, 0, list(transactions) or None),
                post_commithook_properties=HOOKS,
            )
        except CommitFailedError as error:
            update(self.table, self.place)
            newest = int(self.table.version())
            if newest == seen:
                raise storage_error("the commit failed", self.place, error) from error
            return any(
                info.get(COMMIT_ID) == commit_id
                for version in range(seen + 1, newest + 1)
                for info in read_actions(self.place, version, "commitInfo")
            )
        except DELTA_ERRORS as error:
            raise storage_error("the commit failed", self.place, error) from error
        return True

    def _refuse_removed(self, files: Iterable[ParquetFile]) -> None:
        """Check that the files are there: `maintain` takes one for orphaned if this process was stopped for so long.

        The table could not be read any more. In an object store the lease tells (``confirm``), without requests.
        """
        if not is_registered(self.place) and not all(os.path.exists(f"{self.place}/{file.path}") for file in files):
            what = "a file was removed before its commit: this process was stopped for longer than maintain.retention"
            raise StorageError(what, self.place, "run it again")

    def _refuse_conflicts(self, commits: Iterable[Commit], apps: Collection[str], widened: bool) -> None:
        """Check that an append may follow these concurrent commits (PROTOCOL.md of delta-io/delta, transactions).

        ``widened``: the table has the same columns as before them, or only more, which anybody may add. Delta itself
        refuses any change of metadata.
        """
        for commit in commits:
            if any(action["txn"]["appId"] in apps for action in commit if "txn" in action):
                raise fenced(self.place)
            if any("protocol" in action or ("metaData" in action and not widened) for action in commit):
                raise StorageError("the table was altered meanwhile", self.place, "run it again")

    def _starved(self) -> StorageError:
        return StorageError("too many concurrent commits", self.place, "run it again")


def alters(commit: Commit) -> bool:
    """True if a commit changes the table's metadata or protocol."""
    return any("metaData" in action or "protocol" in action for action in commit)


def _pause(attempt: int) -> None:
    time.sleep(random.uniform(0, min(0.002 * attempt, _PAUSE_S)))  # noqa: S311 - spreads the writers


def update(table: DeltaTable, place: str) -> None:
    """Read the log up to its newest version. Raises StorageError."""
    with reading(place, unreadable):
        newest(place, table.update_incremental, table.load_as_version)


def fenced(place: str) -> FencedError:
    """Another process has committed for the same application."""
    return FencedError("another process writes the same batches", place, "stop one of the two, then run again")


def _additions(files: Sequence[ParquetFile], now: int, rewritten: bool = False) -> list[AddAction | RemoveAction]:
    return [AddAction(file.path, file.size, {}, now, not rewritten, file.stats) for file in files]
